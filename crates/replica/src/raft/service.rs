//! What the consensus answers to other replicas.

use ag_proto::peer_v1 as peer;
use ag_store::Snapshots;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use openraft::errors::{Fatal, RaftError};
use openraft::raft::TransferLeaderError;
use tonic::{Status, Streaming};

use super::codec::{self, Malformed};
use super::{Raft, TypeConfig, snapshot, state_machine};

/// Answers to appends, in the order of the requests.
pub(crate) type AppendResponses = BoxStream<'static, Result<peer::AppendResponse, Status>>;

pub(crate) async fn append(raft: &Raft, message: peer::AppendRequest) -> Result<peer::AppendResponse, Status> {
    let request = codec::parse_append_request(message).map_err(malformed)?;
    let response = raft.append_entries(request).await.map_err(stopped)?;
    Ok(codec::append_response(response))
}

pub(crate) fn stream_append(raft: &Raft, messages: Streaming<peer::AppendRequest>) -> AppendResponses {
    // Nothing after a broken or malformed request is taken: the leader begins anew.
    let requests =
        tokio_stream::StreamExt::map_while(messages, |message| match message.map(codec::parse_append_request) {
            Ok(Ok(request)) => Some(request),
            Ok(Err(error)) => {
                tracing::warn!(%error, "an append was refused");
                None
            }
            Err(_) => None,
        });
    let responses = raft.stream_append(requests);
    responses.map(|response| response.map(codec::stream_response).map_err(|fatal| fatal_status(&fatal))).boxed()
}

pub(crate) async fn vote(raft: &Raft, message: &peer::VoteRequest) -> Result<peer::VoteResponse, Status> {
    let request = codec::parse_vote_request(message).map_err(malformed)?;
    Ok(codec::vote_response(&raft.vote(request).await.map_err(stopped)?))
}

pub(crate) async fn pre_vote(raft: &Raft, message: &peer::VoteRequest) -> Result<peer::VoteResponse, Status> {
    let request = codec::parse_vote_request(message).map_err(malformed)?;
    Ok(codec::vote_response(&raft.pre_vote(request).await.map_err(stopped)?))
}

pub(crate) async fn install_snapshot(
    raft: &Raft,
    snapshots: &Snapshots,
    parts: Streaming<peer::SnapshotPart>,
) -> Result<peer::InstallSnapshotResponse, Status> {
    let (vote, files) = snapshot::receive(snapshots, parts).await?;
    let snapshot = state_machine::received(files).map_err(|error| Status::data_loss(error.to_string()))?;
    let response = raft.install_full_snapshot(vote, snapshot).await.map_err(|fatal| fatal_status(&fatal))?;
    Ok(peer::InstallSnapshotResponse { vote: Some(codec::vote(&response.vote)) })
}

pub(crate) async fn transfer_leader(
    raft: &Raft,
    message: &peer::TransferLeaderRequest,
) -> Result<peer::TransferLeaderResponse, Status> {
    use peer::transfer_leader_response::Refusal;
    let request = codec::parse_transfer_request(message).map_err(malformed)?;
    let accepted = raft.handle_transfer_leader(request).await.map_err(|fatal| fatal_status(&fatal))?;
    let refusal = match accepted {
        Ok(()) => None,
        Err(TransferLeaderError::VoteChanged { actual, .. }) => Some(Refusal::VoteChanged(codec::vote(&actual))),
        Err(TransferLeaderError::LogNotFlushed { actual, .. }) => {
            Some(Refusal::LogBehind(peer::Appended { last: actual.as_ref().map(codec::log_id) }))
        }
    };
    Ok(peer::TransferLeaderResponse { refusal })
}

fn malformed(error: Malformed) -> Status {
    Status::invalid_argument(error.to_string())
}

fn stopped(error: RaftError<TypeConfig>) -> Status {
    match error {
        RaftError::APIError(infallible) => match infallible {},
        RaftError::Fatal(fatal) => fatal_status(&fatal),
    }
}

fn fatal_status(fatal: &Fatal<TypeConfig>) -> Status {
    Status::unavailable(format!("this replica has stopped: {fatal}"))
}
