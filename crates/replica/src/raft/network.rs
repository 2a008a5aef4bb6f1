//! What the consensus says to other replicas.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use ag_core::name::ReplicaId;
use ag_proto::peer_v1 as peer;
use futures::stream::{self, BoxStream};
use futures::{FutureExt as _, Stream, StreamExt as _};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, stream_append_sequential};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult};
use openraft::raft::{TransferLeaderError, TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse};
use openraft::{BasicNode, OptionalSend, RaftNetworkFactory, RaftNetworkV2};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};

use super::snapshot::SnapshotFiles;
use super::{LogId, TypeConfig, Vote, codec};
use crate::applied::AppliedState;
use crate::identity::Identity;
use crate::limits;
use crate::peer::connect::{Connector, PeerClient, was_not_sent};
use crate::peer::header::Header;

type RpcError = RPCError<TypeConfig>;
type AppendOutcome = Result<StreamAppendResult<TypeConfig>, RpcError>;
type Appends<'s> = BoxStream<'s, AppendOutcome>;

/// Makes the connections of the consensus. Each has one of its own for the log, for heartbeats and votes, and for
/// snapshots, so that a heartbeat never waits behind data.
pub(crate) struct NetworkFactory {
    pub here: Identity,
    pub connector: Arc<Connector>,
    /// Knows where replicas have moved to since they were added.
    pub applied: Arc<AppliedState>,
    /// A follower that answers no append for this long is dialled anew.
    pub silence: Duration,
}

impl NetworkFactory {
    fn network(&self, target: u64, node: &BasicNode, lane: Lane) -> Network {
        let header = Header { from: self.here, to: ReplicaId(target) };
        let (applied, at_first) = (Arc::clone(&self.applied), node.addr.clone());
        let client = self.connector.own(move || applied.peer_addr(target).unwrap_or_else(|| at_first.clone()));
        Network { header, client, lane, silence: self.silence }
    }
}

impl RaftNetworkFactory<TypeConfig> for NetworkFactory {
    type Network = Network;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Network {
        self.network(target, node, Lane::Log)
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &BasicNode) -> Network {
        self.network(target, node, Lane::Heartbeat)
    }

    async fn new_snapshot_client(&mut self, target: u64, node: &BasicNode) -> Network {
        self.network(target, node, Lane::Snapshot)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Log,
    Heartbeat,
    Snapshot,
}

/// One connection to one replica.
pub(crate) struct Network {
    header: Header,
    client: PeerClient,
    lane: Lane,
    silence: Duration,
}

impl Network {
    /// One call with a timeout.
    async fn call<T, R, F>(
        &self,
        message: T,
        option: &RPCOption,
        call: impl FnOnce(PeerClient, Request<T>) -> F,
    ) -> Result<R, RpcError>
    where
        F: Future<Output = Result<tonic::Response<R>, Status>>,
    {
        let mut request = self.header.request(message);
        request.set_timeout(option.hard_ttl());
        match tokio::time::timeout(option.hard_ttl(), call(self.client.clone(), request)).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(rpc_error(&status)),
            Err(_) => Err(network_error("no answer in time")),
        }
    }

    async fn stream<'s, S>(&'s mut self, input: S, option: RPCOption) -> Result<Appends<'s>, RpcError>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static,
    {
        let (requests, receiver) = mpsc::channel(limits::APPENDS_IN_FLIGHT_MAX);
        let request = self.header.request(ReceiverStream::new(receiver));
        let mut client = self.client.clone();
        let answer = tokio::time::timeout(option.hard_ttl(), client.stream_append(request)).await;
        let responses = match answer {
            Ok(Ok(response)) => response.into_inner(),
            Ok(Err(status)) => return Err(rpc_error(&status)),
            Err(_) => return Err(network_error("no answer in time")),
        };
        let pipeline = Pipeline { input, requests: Some(requests), responses, unanswered: 0, silence: self.silence };
        Ok(stream::unfold(Some(pipeline), Pipeline::next).boxed())
    }
}

/// Requests on their way to a follower. It owns both directions: what the consensus locks while it makes a request is
/// let go as soon as this is dropped.
struct Pipeline<S> {
    input: S,
    /// `None`: all are sent.
    requests: Option<mpsc::Sender<peer::AppendRequest>>,
    responses: Streaming<peer::AppendResponse>,
    unanswered: usize,
    silence: Duration,
}

impl<S> Pipeline<S>
where
    S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static,
{
    /// The next answer; sends requests meanwhile.
    async fn next(state: Option<Self>) -> Option<(Result<StreamAppendResult<TypeConfig>, RpcError>, Option<Self>)> {
        let mut this = state?;
        let mut silent_since = tokio::time::Instant::now();
        loop {
            if this.requests.is_none() && this.unanswered == 0 {
                return None;
            }
            let may_send = this.requests.is_some() && this.unanswered < limits::APPENDS_IN_FLIGHT_MAX;
            tokio::select! {
                biased;
                response = this.responses.next() => return this.answered(response),
                request = this.input.next(), if may_send => {
                    if this.unanswered == 0 {
                        silent_since = tokio::time::Instant::now();
                    }
                    this.send(request);
                }
                () = tokio::time::sleep_until(silent_since + this.silence), if this.unanswered > 0 => {
                    return Some((Err(network_error("a follower answers no appends")), None));
                }
            }
        }
    }

    fn send(&mut self, request: Option<AppendEntriesRequest<TypeConfig>>) {
        let sent = request.zip(self.requests.as_ref()).is_some_and(|(request, requests)| {
            // There is room: the channel holds as many as may be unanswered. It is closed when the connection broke,
            // which the side of the answers reports.
            requests.try_send(codec::append_request(request)).is_ok()
        });
        if sent {
            self.unanswered += 1;
        } else {
            self.requests = None;
        }
    }

    fn answered(
        mut self,
        response: Option<Result<peer::AppendResponse, Status>>,
    ) -> Option<(AppendOutcome, Option<Self>)> {
        match response? {
            Ok(message) => match codec::parse_stream_response(&message) {
                Ok(result) => {
                    self.unanswered = self.unanswered.saturating_sub(1);
                    Some((Ok(result), Some(self)))
                }
                Err(malformed) => Some((Err(network_error(malformed)), None)),
            },
            Err(status) => Some((Err(rpc_error(&status)), None)),
        }
    }
}

impl RaftNetworkV2<TypeConfig> for Network {
    type SnapshotData = SnapshotFiles;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RpcError> {
        let call = |mut client: PeerClient, request| async move { client.append(request).await };
        let message = self.call(codec::append_request(rpc), &option, call).await?;
        codec::parse_append_response(&message).map_err(network_error)
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> futures::future::BoxFuture<'s, Result<Appends<'s>, RpcError>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        match self.lane {
            Lane::Log => self.stream(input, option).boxed(),
            // A heartbeat is one request: a stream for it would only cost more.
            Lane::Heartbeat | Lane::Snapshot => stream_append_sequential(self, input, option),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RpcError> {
        let call = |mut client: PeerClient, request| async move { client.vote(request).await };
        let message = self.call(codec::vote_request(&rpc), &option, call).await?;
        codec::parse_vote_response(&message).map_err(network_error)
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RpcError> {
        let call = |mut client: PeerClient, request| async move { client.pre_vote(request).await };
        let message = self.call(codec::vote_request(&rpc), &option, call).await?;
        codec::parse_vote_response(&message).map_err(network_error)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: openraft::alias::SnapshotOf<TypeConfig, SnapshotFiles>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let (parts, receiver) = mpsc::channel(4);
        let request = self.header.request(ReceiverStream::new(receiver));
        let mut client = self.client.clone();
        let install = async {
            let response = client.install_snapshot(request).await.map_err(|status| rpc_error(&status))?;
            codec::parse_vote(&response.into_inner().vote).map_err(network_error)
        };
        // If the files cannot be read, the stream ends early, and the other side says that it is incomplete.
        let send = super::snapshot::send(vote, snapshot.snapshot, parts);
        tokio::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            (sent, installed) = futures::future::join(send, install) => match (sent, installed) {
                (_, Ok(vote)) => Ok(SnapshotResponse::new(vote)),
                (Err(error), Err(_)) => Err(StreamingError::Network(NetworkError::new(&error))),
                (Ok(()), Err(error)) => Err(error.into()),
            },
        }
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RpcError> {
        use peer::transfer_leader_response::Refusal;
        let call = |mut client: PeerClient, request| async move { client.transfer_leader(request).await };
        let message = self.call(codec::transfer_request(&req), &option, call).await?;
        Ok(match message.refusal {
            None => Ok(()),
            Some(Refusal::VoteChanged(actual)) => {
                let actual = codec::parse_vote(&Some(actual)).map_err(network_error)?;
                Err(TransferLeaderError::VoteChanged { expected: *req.from_leader(), actual })
            }
            Some(Refusal::LogBehind(appended)) => {
                let actual: Option<LogId> = appended.last.as_ref().map(codec::parse_log_id);
                Err(TransferLeaderError::LogNotFlushed { expected: req.last_log_id().copied(), actual })
            }
        })
    }
}

fn network_error(what: impl ToString) -> RpcError {
    RPCError::Network(NetworkError::from_string(what))
}

fn rpc_error(status: &Status) -> RpcError {
    let what = format!("{:?}: {}", status.code(), status.message());
    match was_not_sent(status) || status.code() == tonic::Code::FailedPrecondition {
        true => RPCError::Unreachable(Unreachable::from_string(what)),
        false => RPCError::Network(NetworkError::from_string(what)),
    }
}
