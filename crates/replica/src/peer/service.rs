//! The service of the peer port.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ag_core::name::{PrincipalName, ReplicaId};
use ag_proto::peer_v1 as peer;
use ag_proto::peer_v1::peer_service_server::PeerService;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use super::header;
use crate::announce;
use crate::barrier::{self, Unready};
use crate::forward::{self, Forwarded};
use crate::identity::Identity;
use crate::inner::Inner;
use crate::raft::{codec, service};
use crate::running::Running;

/// Serves the peer port of one replica.
pub(crate) struct PeerHandler {
    /// Connections that linger must not keep the data directory.
    pub inner: Weak<Inner>,
}

impl PeerHandler {
    fn inner(&self) -> Result<Arc<Inner>, Status> {
        self.inner.upgrade().ok_or_else(|| Status::unavailable("this replica is shutting down"))
    }

    /// The running replica, if the call is meant for it. Gives the caller's id too.
    fn check(&self, metadata: &MetadataMap) -> Result<(Arc<Running>, ReplicaId), Status> {
        let inner = self.inner()?;
        let running = inner.running();
        let running = running.ok_or_else(|| Status::failed_precondition("this replica is in no cluster yet"))?;
        let cluster_version = inner.applied.read(|state| state.meta().cluster_version);
        let from = header::check(metadata, running.here, cluster_version)?;
        Ok((running, from))
    }
}

#[tonic::async_trait]
impl PeerService for PeerHandler {
    type StreamAppendStream = service::AppendResponses;

    async fn describe(&self, _: Request<peer::DescribeRequest>) -> Result<Response<peer::DescribeResponse>, Status> {
        let inner = self.inner()?;
        let identity = inner.identity().map_err(|error| Status::internal(error.to_string()))?;
        let replica_id = identity.map_or(ReplicaId(0), |identity| identity.replica_id);
        let announcement = announce::announcement(&announce::member(&inner.config, replica_id));
        let cluster_id = identity.map_or_else(Vec::new, |identity| identity.cluster_id.0.to_vec());
        Ok(Response::new(peer::DescribeResponse { cluster_id: cluster_id.into(), announcement: Some(announcement) }))
    }

    async fn join(&self, request: Request<peer::JoinRequest>) -> Result<Response<peer::JoinResponse>, Status> {
        let inner = self.inner()?;
        let message = request.into_inner();
        let cluster_id = header::cluster_id(&message.cluster_id).filter(|cluster_id| cluster_id.is_set());
        let cluster_id =
            cluster_id.ok_or_else(|| Status::invalid_argument("cluster_id must be 16 bytes, not all 0"))?;
        if message.replica_id == 0 {
            return Err(Status::invalid_argument("replica_id must not be 0"));
        }
        let (min, max) = (ag_wire::version::CLUSTER_VERSION_MIN, ag_wire::version::CLUSTER_VERSION_MAX);
        if !(min..=max).contains(&message.cluster_version) {
            return Err(Status::failed_precondition(format!(
                "the cluster is at version {}, and the replica at {} supports {min} to {max}: install another release \
                 there",
                message.cluster_version, inner.config.peer_addr
            )));
        }
        let identity = Identity { replica_id: ReplicaId(message.replica_id), cluster_id };
        let joined = inner.join(identity).await;
        joined.map_err(|error| Status::failed_precondition(crate::failure::causes(&error)))?;
        let announcement = announce::announcement(&announce::member(&inner.config, identity.replica_id));
        Ok(Response::new(peer::JoinResponse { announcement: Some(announcement) }))
    }

    async fn append(&self, request: Request<peer::AppendRequest>) -> Result<Response<peer::AppendResponse>, Status> {
        let (running, _) = self.check(request.metadata())?;
        service::append(&running.raft, request.into_inner()).await.map(Response::new)
    }

    async fn stream_append(
        &self,
        request: Request<Streaming<peer::AppendRequest>>,
    ) -> Result<Response<Self::StreamAppendStream>, Status> {
        let (running, _) = self.check(request.metadata())?;
        Ok(Response::new(service::stream_append(&running.raft, request.into_inner())))
    }

    async fn vote(&self, request: Request<peer::VoteRequest>) -> Result<Response<peer::VoteResponse>, Status> {
        let (running, _) = self.check(request.metadata())?;
        service::vote(&running.raft, request.get_ref()).await.map(Response::new)
    }

    async fn pre_vote(&self, request: Request<peer::VoteRequest>) -> Result<Response<peer::VoteResponse>, Status> {
        let (running, _) = self.check(request.metadata())?;
        service::pre_vote(&running.raft, request.get_ref()).await.map(Response::new)
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<peer::SnapshotPart>>,
    ) -> Result<Response<peer::InstallSnapshotResponse>, Status> {
        let (running, _) = self.check(request.metadata())?;
        let installed = service::install_snapshot(&running.raft, &self.inner()?.snapshots, request.into_inner()).await;
        installed.map(Response::new)
    }

    async fn transfer_leader(
        &self,
        request: Request<peer::TransferLeaderRequest>,
    ) -> Result<Response<peer::TransferLeaderResponse>, Status> {
        let (running, _) = self.check(request.metadata())?;
        service::transfer_leader(&running.raft, request.get_ref()).await.map(Response::new)
    }

    async fn read_index(
        &self,
        request: Request<peer::ReadIndexRequest>,
    ) -> Result<Response<peer::ReadIndexResponse>, Status> {
        let (running, _) = self.check(request.metadata())?;
        match barrier::read_index(&running.raft).await {
            Ok(log_id) => Ok(Response::new(peer::ReadIndexResponse { log_id: Some(codec::log_id(&log_id)) })),
            Err(Unready::NotLeader) => Err(Status::unavailable("this replica cannot show that it leads")),
            Err(Unready::Stopped) => Err(Status::unavailable("this replica has stopped")),
        }
    }

    async fn forward(&self, request: Request<peer::ForwardRequest>) -> Result<Response<peer::ForwardResponse>, Status> {
        self.check(request.metadata())?;
        let inner = self.inner()?;
        let handler = inner.handler.get();
        let handler = handler.ok_or_else(|| Status::failed_precondition("this replica does not serve clients yet"))?;
        let message = request.into_inner();
        let principal = PrincipalName::parse("principal", &message.principal);
        let principal = principal.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let forwarded = Forwarded {
            method: message.method,
            body: message.body,
            principal,
            roles: message.roles,
            deadline: Instant::now() + Duration::from_millis(message.timeout_ms.min(forward::TIMEOUT_MS_MAX)),
        };
        Ok(Response::new(forward::answer_message(handler.handle(forwarded).await)))
    }

    async fn announce(
        &self,
        request: Request<peer::AnnounceRequest>,
    ) -> Result<Response<peer::AnnounceResponse>, Status> {
        let (running, from) = self.check(request.metadata())?;
        let announcement = request.get_ref().announcement.as_ref();
        let announcement = announcement.ok_or_else(|| Status::invalid_argument("announcement: must be there"))?;
        let member = announce::parse_announcement(announcement);
        let member = member.map_err(|error| Status::invalid_argument(error.to_string()))?;
        if member.replica_id != from {
            return Err(Status::invalid_argument("a replica speaks for itself only"));
        }
        match announce::register(&running.proposer, &running.applied, member).await {
            true => Ok(Response::new(peer::AnnounceResponse {})),
            false => Err(Status::unavailable("not known to the cluster now; try again")),
        }
    }

    async fn get_status(
        &self,
        request: Request<peer::GetStatusRequest>,
    ) -> Result<Response<peer::GetStatusResponse>, Status> {
        self.check(request.metadata())?;
        Ok(Response::new(self.inner()?.status(request.get_ref().hash_at)))
    }
}
