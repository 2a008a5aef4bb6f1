//! Changes of the cluster: making it, adding and removing replicas, moving the leadership, raising the version.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ag_core::command::{Actor, Command, InitCluster, Member, Operation};
use ag_core::name::{Addr, ClusterId, ReplicaId};
use ag_core::outcome::Outcome;
use ag_core::rejection::Rejection;
use ag_proto::peer_v1 as peer;
use openraft::async_runtime::WatchReceiver as _;
use openraft::errors::{ClientWriteError, InitializeError, RaftError};
use openraft::{BasicNode, ChangeMembers};

use crate::announce;
use crate::error::{ClusterError, ProposeError, ReplicaError};
use crate::identity::Identity;
use crate::inner::Inner;
use crate::leadership::Leadership;
use crate::limits;
use crate::peer::header::Header;
use crate::raft::TypeConfig;
use crate::running::Running;

/// The first replica of a cluster.
const FIRST: ReplicaId = ReplicaId(1);
/// How often a new cluster's first replica stands for election until it leads.
const ELECT_INTERVAL: Duration = Duration::from_millis(500);

type Result<T> = std::result::Result<T, ClusterError>;

/// Makes a cluster of this replica and those at `peers`, all of them empty. Can be repeated after an error, with the
/// same peers in the same order.
pub(crate) async fn init(inner: &Inner, actor: Actor, peers: Vec<Addr>, deadline: Instant) -> Result<()> {
    let operation = "make the cluster";
    check_peers(inner, &peers)?;
    let known = inner.identity().map_err(own_data)?;
    if inner.applied.read(|state| state.meta().cluster_id.is_set()) {
        return Err(ClusterError::Rejected(Rejection::ClusterExists));
    }
    let here = known.unwrap_or_else(|| Identity { replica_id: FIRST, cluster_id: ClusterId(rand::random()) });
    if here.replica_id != FIRST {
        return Err(refused(format!(
            "this replica is number {} of a cluster that another replica is making: repeat it there",
            here.replica_id
        )));
    }
    // Written first, so that it is the same cluster when this is repeated.
    let running = inner.join(here).await.map_err(own_data)?;
    let mut members = vec![announce::member(&inner.config, FIRST)];
    for (replica_id, peer_addr) in (2..).map(ReplicaId).zip(&peers) {
        let identity = Identity { replica_id, ..here };
        members.push(join(inner, peer_addr, identity, 1, deadline).await?);
    }
    let nodes: BTreeMap<u64, BasicNode> =
        members.iter().map(|member| (member.replica_id.0, BasicNode::new(member.peer_addr.as_str()))).collect();
    match running.raft.initialize(nodes).await {
        Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => {}
        Err(error) => return Err(refused(format!("the consensus does not take these replicas: {error}"))),
    }
    lead(&running, deadline).await?;
    let init = Operation::InitCluster(InitCluster { cluster_id: here.cluster_id, members });
    propose(&running, operation, actor, init, deadline).await.map(drop)
}

fn check_peers(inner: &Inner, peers: &[Addr]) -> Result<()> {
    let distinct: BTreeSet<_> = peers.iter().chain([&inner.config.peer_addr]).collect();
    if distinct.len() <= peers.len() {
        return Err(refused("the peer addresses must be those of other replicas, each named once".to_owned()));
    }
    match peers.len() < ag_core::limits::REPLICAS_MAX {
        true => Ok(()),
        false => Err(ClusterError::Rejected(Rejection::TooManyReplicas { max: ag_core::limits::REPLICAS_MAX as u64 })),
    }
}

/// Stands for election until this replica leads.
async fn lead(running: &Running, deadline: Instant) -> Result<()> {
    let mut leadership = running.leadership.clone();
    loop {
        let settled = leadership.wait_for(|now| now.term().is_some() || matches!(now, Leadership::Stopped));
        // The guard that the watch gives must not live on into the election below.
        let leads = tokio::time::timeout(ELECT_INTERVAL, settled).await;
        let leads = leads.map(|now| now.is_ok_and(|now| now.term().is_some()));
        match leads {
            Ok(true) => return Ok(()),
            Ok(false) => return Err(stopped("make the cluster")),
            Err(_) if Instant::now() >= deadline => {
                return Err(ClusterError::TimedOut { what: "the election of the first leader".to_owned() });
            }
            Err(_) => {
                let elected = running.raft.trigger().elect(true).await;
                elected.map_err(|_| stopped("make the cluster"))?;
            }
        }
    }
}

/// Adds the empty replica at `peer_addr`. Can be repeated after a timeout.
pub(crate) async fn add(
    inner: &Inner,
    running: &Running,
    actor: Actor,
    (peer_addr, is_learner): (Addr, bool),
    deadline: Instant,
) -> Result<ReplicaId> {
    must_lead(running)?;
    let member = match describe(inner, &peer_addr).await? {
        None => adopt(inner, running, actor, &peer_addr, deadline).await?,
        Some((cluster_id, member)) => known(running, cluster_id, member)?,
    };
    let (replica_id, node) = (member.replica_id, BasicNode::new(member.peer_addr.as_str()));
    let voters: BTreeSet<u64> = running.raft.voter_ids().collect();
    if !voters.contains(&replica_id.0) {
        tracing::info!(%replica_id, %peer_addr, "a replica catches up");
        let learns = running.raft.add_learner(replica_id.0, node, true);
        in_time(deadline, &format!("catching up of replica {replica_id}"), learns).await?;
        if !is_learner {
            let change = ChangeMembers::AddVoterIds(BTreeSet::from([replica_id.0]));
            let votes = running.raft.change_membership(change, true);
            in_time(deadline, &format!("making replica {replica_id} a voter"), votes).await?;
        }
    }
    tracing::info!(%replica_id, %peer_addr, is_learner, "a replica was added");
    Ok(replica_id)
}

/// Gives a new id to the replica at `peer_addr`, and makes it a member that is known and not yet counted.
async fn adopt(inner: &Inner, running: &Running, actor: Actor, peer_addr: &Addr, deadline: Instant) -> Result<Member> {
    let operation = "take a replica id";
    let allocated = propose(running, operation, actor, Operation::AllocateReplica, deadline).await?;
    let Outcome::ReplicaAllocated(replica_id) = allocated else {
        return Err(refused("no replica id was given".to_owned()));
    };
    let cluster_version = running.applied.read(|state| state.meta().cluster_version);
    let identity = Identity { replica_id, cluster_id: running.here.cluster_id };
    let member = join(inner, peer_addr, identity, cluster_version, deadline).await?;
    let register = Operation::RegisterReplica(member.clone());
    propose(running, "register the replica", Actor::System, register, deadline).await?;
    Ok(member)
}

/// A replica that is in a cluster already may be added again only where an earlier attempt got to.
fn known(running: &Running, cluster_id: ClusterId, member: Member) -> Result<Member> {
    if cluster_id != running.here.cluster_id {
        return Err(refused(format!("the replica at {} belongs to the cluster {cluster_id}", member.peer_addr)));
    }
    match running.applied.read(|state| state.member(member.replica_id).is_some()) {
        true => Ok(member),
        false => Err(refused(format!(
            "the replica at {} was number {} of this cluster and is not any more: empty its data directory first, it \
             will get a new number",
            member.peer_addr, member.replica_id
        ))),
    }
}

/// Removes a replica. Its id is never used again.
pub(crate) async fn remove(
    inner: &Inner,
    running: &Running,
    actor: Actor,
    replica_id: ReplicaId,
    deadline: Instant,
) -> Result<()> {
    must_lead(running)?;
    let membership = running.raft.server_metrics().borrow_watched().membership_config.clone();
    let voters: BTreeSet<u64> = membership.voter_ids().collect();
    let is_known = running.applied.read(|state| state.member(replica_id).is_some());
    if !is_known && membership.get_node(&replica_id.0).is_none() {
        return Err(ClusterError::Rejected(Rejection::ReplicaNotFound));
    }
    if voters.contains(&replica_id.0) && voters.len() == 1 {
        return Err(refused(format!("replica {replica_id} is the only voter: add another one first")));
    }
    if replica_id == running.here.replica_id {
        // The next leader removes this one.
        let next = transfer(inner, running, None, deadline).await?;
        let source = ProposeError::NotLeader { leader: running.applied.hint(Some(next.0)) };
        return Err(ClusterError::Propose { operation: "remove the leader", source });
    }
    if membership.get_node(&replica_id.0).is_some() {
        let ids = BTreeSet::from([replica_id.0]);
        let change = match voters.contains(&replica_id.0) {
            true => ChangeMembers::RemoveVoters(ids),
            false => ChangeMembers::RemoveNodes(ids),
        };
        let removes = running.raft.change_membership(change, false);
        in_time(deadline, &format!("removing replica {replica_id}"), removes).await?;
    }
    if is_known {
        let forget = Operation::ForgetReplica(replica_id);
        propose(running, "forget the replica", actor, forget, deadline).await?;
    }
    tracing::info!(%replica_id, "a replica was removed");
    Ok(())
}

/// Hands the leadership to a voter; `None`: to the one that is furthest ahead. Gives who leads then.
pub(crate) async fn transfer(
    inner: &Inner,
    running: &Running,
    to: Option<ReplicaId>,
    deadline: Instant,
) -> Result<ReplicaId> {
    must_lead(running)?;
    let here = running.here.replica_id;
    if to == Some(here) {
        return Ok(here);
    }
    let to = successor(inner, running, to).await?;
    running.raft.trigger().transfer_leader(to.0).await.map_err(|_| stopped("hand the leadership over"))?;
    let mut leadership = running.leadership.clone();
    let handed_over = leadership.wait_for(|now| match now {
        Leadership::Following { leader } => leader.is_some(),
        Leadership::Rising | Leadership::Leading(_) => false,
        Leadership::Stopped => true,
    });
    match tokio::time::timeout_at(deadline.into(), handed_over).await.map(|now| now.map(|now| now.clone())) {
        Ok(Ok(Leadership::Following { leader: Some(leader) })) => Ok(ReplicaId(leader)),
        Ok(_) => Err(stopped("hand the leadership over")),
        Err(_) => Err(ClusterError::TimedOut { what: "handing the leadership over".to_owned() }),
    }
}

/// A voter that answers and is not behind: while it catches up, nobody would lead.
async fn successor(inner: &Inner, running: &Running, wanted: Option<ReplicaId>) -> Result<ReplicaId> {
    let metrics = running.raft.metrics().borrow_watched().clone();
    let last_index = metrics.last_log_index.unwrap_or(0);
    let voters: BTreeSet<u64> = metrics.membership_config.voter_ids().collect();
    let matched = metrics.replication.unwrap_or_default();
    let mut candidates: Vec<(u64, u64)> = matched
        .iter()
        .filter(|(replica_id, _)| voters.contains(replica_id) && **replica_id != running.here.replica_id.0)
        .filter(|(replica_id, _)| wanted.is_none_or(|wanted| wanted.0 == **replica_id))
        .map(|(replica_id, matched)| (matched.as_ref().map_or(0, |log_id| log_id.index), *replica_id))
        .filter(|(matched, _)| last_index.saturating_sub(*matched) <= limits::TRANSFER_LAG_MAX)
        .collect();
    candidates.sort_unstable_by(|a, b| b.cmp(a));
    for (_, replica_id) in candidates {
        let Some(node) = metrics.membership_config.get_node(&replica_id) else { continue };
        let header = Header { from: running.here, to: ReplicaId(replica_id) };
        let mut client = inner.connector.shared(&node.addr);
        let asked = client.get_status(header.request(peer::GetStatusRequest { hash_at: None }));
        if let Ok(Ok(_)) = tokio::time::timeout(limits::STATUS_TIMEOUT, asked).await {
            return Ok(ReplicaId(replica_id));
        }
    }
    Err(refused(match wanted {
        Some(wanted) => format!("replica {wanted} is no voter, does not answer, or is too far behind"),
        None => "no other voter answers and is not too far behind".to_owned(),
    }))
}

/// Proposes a command of the cluster.
pub(crate) async fn propose(
    running: &Running,
    operation: &'static str,
    actor: Actor,
    command: Operation,
    deadline: Instant,
) -> Result<Outcome> {
    let proposed = running.proposer.propose(Command { actor, operation: command }, deadline).await;
    match proposed.map_err(|source| ClusterError::Propose { operation, source })?.outcome {
        Outcome::Rejected(rejection) => Err(ClusterError::Rejected(rejection)),
        outcome => Ok(outcome),
    }
}

fn must_lead(running: &Running) -> Result<()> {
    if running.leadership.borrow().is_elected() {
        return Ok(());
    }
    let leader = running.leader().map(|(leader, _)| leader.0);
    let source = ProposeError::NotLeader { leader: running.applied.hint(leader) };
    Err(ClusterError::Propose { operation: "change the cluster", source })
}

/// Who the replica at `peer_addr` is; `None`: in no cluster.
async fn describe(inner: &Inner, peer_addr: &Addr) -> Result<Option<(ClusterId, Member)>> {
    let mut client = inner.connector.shared(peer_addr.as_str());
    let answer = tokio::time::timeout(limits::JOIN_TIMEOUT, client.describe(peer::DescribeRequest {})).await;
    let answer = answer.map_err(|_| unreachable(peer_addr, "it does not answer"))?;
    let answer = answer.map_err(|status| unreachable(peer_addr, status.message()))?.into_inner();
    let Some(cluster_id) = crate::peer::header::cluster_id(&answer.cluster_id) else { return Ok(None) };
    Ok(Some((cluster_id, member_of(peer_addr, answer.announcement)?)))
}

/// Makes the replica at `peer_addr` a member.
async fn join(
    inner: &Inner,
    peer_addr: &Addr,
    identity: Identity,
    cluster_version: u32,
    deadline: Instant,
) -> Result<Member> {
    let mut client = inner.connector.shared(peer_addr.as_str());
    let cluster_id = identity.cluster_id.0.to_vec().into();
    let message = peer::JoinRequest { cluster_id, replica_id: identity.replica_id.0, cluster_version };
    let until = deadline.min(Instant::now() + limits::JOIN_TIMEOUT);
    let answer = tokio::time::timeout_at(until.into(), client.join(message)).await;
    let answer = answer.map_err(|_| unreachable(peer_addr, "it does not answer"))?;
    let answer = answer.map_err(|status| match status.code() {
        tonic::Code::FailedPrecondition => refused(format!("the replica at {peer_addr}: {}", status.message())),
        _ => unreachable(peer_addr, status.message()),
    })?;
    member_of(peer_addr, answer.into_inner().announcement)
}

fn member_of(peer_addr: &Addr, announcement: Option<peer::Announcement>) -> Result<Member> {
    let member = announcement.as_ref().map(announce::parse_announcement);
    let member = member.ok_or_else(|| unreachable(peer_addr, "its answer lacks who it is"))?;
    member.map_err(|error| unreachable(peer_addr, &error.to_string()))
}

/// Waits for a change of the membership.
async fn in_time<T>(
    deadline: Instant,
    what: &str,
    change: impl Future<Output = std::result::Result<T, RaftError<TypeConfig, ClientWriteError<TypeConfig>>>>,
) -> Result<()> {
    match tokio::time::timeout_at(deadline.into(), change).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) => {
            let source = ProposeError::NotLeader { leader: None };
            Err(ClusterError::Propose { operation: "change the membership", source })
        }
        Ok(Err(RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)))) => {
            Err(ClusterError::Propose { operation: "change the membership", source: ProposeError::Unknown })
        }
        Ok(Err(RaftError::APIError(error))) => Err(refused(format!("{what} is not possible now: {error}"))),
        Ok(Err(RaftError::Fatal(_))) => Err(stopped("change the membership")),
        Err(_) => Err(ClusterError::TimedOut { what: what.to_owned() }),
    }
}

fn refused(why: String) -> ClusterError {
    ClusterError::Refused { why }
}

fn stopped(operation: &'static str) -> ClusterError {
    ClusterError::Propose { operation, source: ProposeError::ShuttingDown }
}

fn unreachable(peer_addr: &Addr, why: &str) -> ClusterError {
    ClusterError::Unreachable { peer_addr: peer_addr.clone(), why: why.to_owned() }
}

fn own_data(error: ReplicaError) -> ClusterError {
    match error {
        ReplicaError::Store { source, .. } => ClusterError::Store(source),
        other => refused(crate::failure::causes(&other)),
    }
}
