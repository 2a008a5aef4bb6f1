//! The cluster: what it is, and changes of it.

use ag_core::command::Actor;
use ag_core::name::{Addr, FieldError, ReplicaId};
use ag_proto::v1;
use ag_replica::{ClusterError, ClusterView, ReplicaView};
use tonic::Code;

use crate::failure::{Failure, Verb};
use crate::service::{Call, NotRun, Reply, Service, reply};

pub(super) async fn get_cluster(service: &Service, call: &Call) -> Result<Reply, Failure> {
    Ok(show(service, call).await)
}

async fn show(service: &Service, call: &Call) -> Reply {
    let view = service.replica.cluster(call.deadline).await;
    reply(&cluster(&view), service.replica.applied())
}

fn cluster(view: &ClusterView) -> v1::Cluster {
    v1::Cluster {
        cluster_id: if view.cluster_id.is_set() { view.cluster_id.to_string() } else { String::new() },
        cluster_version: view.cluster_version,
        leader: view.leader.map(|leader| leader.0),
        term: view.term,
        replicas: view.replicas.iter().map(replica).collect(),
        version_held: view.version_held,
        answered_by: view.answered_by.map_or(0, |replica_id| replica_id.0),
    }
}

fn replica(view: &ReplicaView) -> v1::Replica {
    let member = &view.member;
    let role = if view.is_voter { v1::ReplicaRole::Voter } else { v1::ReplicaRole::Learner };
    v1::Replica {
        id: member.replica_id.0,
        addr: member.addr.as_str().into(),
        role: role.into(),
        release: member.release.clone(),
        min_version: member.min_version,
        max_version: member.max_version,
        applied_index: view.applied_index,
        state_hash: view.state_hash.map_or_else(String::new, |hash| hash.to_string()),
        state_hash_index: view.state_hash_index,
        peer_addr: member.peer_addr.as_str().into(),
    }
}

fn actor(call: &Call) -> Actor {
    Actor::Principal(call.caller.principal.clone())
}

fn peer_addr(field: &str, text: &str) -> Result<Addr, FieldError> {
    let port = text.rsplit_once(':').and_then(|(host, port)| port.parse::<u16>().ok().filter(|_| !host.is_empty()));
    match port {
        Some(1..) => Addr::parse(field, text),
        _ => Err(FieldError::new(field, "must be `host:port`")),
    }
}

pub(super) async fn init_cluster(
    service: &Service,
    call: &Call,
    request: &v1::InitClusterRequest,
) -> Result<Reply, Failure> {
    let addrs = request.peer_addrs.iter().enumerate();
    let peers = addrs.map(|(position, addr)| peer_addr(&format!("peer_addrs[{position}]"), addr));
    let peers = peers.collect::<Result<Vec<_>, _>>()?;
    if peers.len() >= ag_core::limits::REPLICAS_MAX {
        let bound = format!("at most {}", ag_core::limits::REPLICAS_MAX - 1);
        return Err(FieldError::new("peer_addrs", bound).into());
    }
    service.replica.init_cluster(actor(call), peers, call.deadline).await.map_err(|error| failure(&error))?;
    Ok(show(service, call).await)
}

pub(super) async fn add_replica(
    service: &Service,
    call: &Call,
    request: &v1::AddReplicaRequest,
) -> Result<Reply, NotRun> {
    let addr = peer_addr("peer_addr", &request.peer_addr)?;
    let added = service.replica.add_replica(actor(call), addr, request.learner, call.deadline).await;
    added.map_err(not_run)?;
    Ok(show(service, call).await)
}

pub(super) async fn remove_replica(
    service: &Service,
    call: &Call,
    request: &v1::RemoveReplicaRequest,
) -> Result<Reply, NotRun> {
    let replica_id = ReplicaId(request.replica_id);
    service.replica.remove_replica(actor(call), replica_id, call.deadline).await.map_err(not_run)?;
    Ok(show(service, call).await)
}

pub(super) async fn transfer_leadership(
    service: &Service,
    call: &Call,
    request: &v1::TransferLeadershipRequest,
) -> Result<Reply, NotRun> {
    let to = Some(ReplicaId(request.replica_id)).filter(|replica_id| replica_id.0 != 0);
    service.replica.transfer_leadership(to, call.deadline).await.map_err(not_run)?;
    Ok(show(service, call).await)
}

pub(super) async fn set_cluster_version(
    service: &Service,
    call: &Call,
    request: &v1::SetClusterVersionRequest,
) -> Result<Reply, NotRun> {
    if request.version == 0 && request.hold.is_none() {
        return Err(FieldError::new("version", "must be given, or hold").into());
    }
    if let Some(held) = request.hold {
        service.replica.hold_cluster_version(actor(call), held, call.deadline).await.map_err(not_run)?;
    }
    if request.version != 0 {
        service.replica.set_cluster_version(actor(call), request.version, call.deadline).await.map_err(not_run)?;
    }
    Ok(show(service, call).await)
}

fn not_run(error: ClusterError) -> NotRun {
    match error {
        ClusterError::Propose { source: ag_replica::ProposeError::NotLeader { .. }, .. } => NotRun::NotLeader,
        other => NotRun::Failed(failure(&other)),
    }
}

fn failure(error: &ClusterError) -> Failure {
    match error {
        ClusterError::Propose { source, .. } => Failure::propose(source),
        ClusterError::Rejected(rejection) => Failure::rejection(rejection, Verb::Cluster, None),
        ClusterError::Unreachable { .. } => Failure::new(Code::Unavailable, "REPLICA_UNREACHABLE", error.to_string()),
        ClusterError::Refused { .. } => Failure::new(Code::FailedPrecondition, "CLUSTER", error.to_string()),
        ClusterError::TimedOut { .. } => Failure::new(Code::DeadlineExceeded, "DEADLINE_EXCEEDED", error.to_string()),
        ClusterError::Store(source) => super::unreadable(source.as_ref()),
    }
}
