//! What a replica can tell of the cluster, with or without a leader.

use std::time::Instant;

use ag_core::command::Member;
use ag_core::digest::Digest;
use ag_core::name::{ClusterId, ReplicaId};
use ag_proto::peer_v1 as peer;
use futures::future::join_all;
use openraft::async_runtime::WatchReceiver as _;

use crate::inner::Inner;
use crate::limits;
use crate::peer::header::Header;
use crate::running::Running;

/// The cluster as one replica sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// All zeros: there is none yet.
    pub cluster_id: ClusterId,
    /// The version that all replicas have agreed on; 0 before there is a cluster.
    pub cluster_version: u32,
    /// The operator holds the version.
    pub version_held: bool,
    /// The current term.
    pub term: u64,
    /// Who leads, as far as is known.
    pub leader: Option<ReplicaId>,
    /// Who answers; `None`: a replica that is in no cluster.
    pub answered_by: Option<ReplicaId>,
    /// All members, in the order of their ids.
    pub replicas: Vec<ReplicaView>,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaView {
    /// What it says of itself.
    pub member: Member,
    /// `false`: it only receives the log.
    pub is_voter: bool,
    /// How far it has applied the log; `None`: it did not answer.
    pub applied_index: Option<u64>,
    /// The hash of its state after the entry at `state_hash_index`; `None`: it did not answer, or has it no more.
    pub state_hash: Option<Digest>,
    /// The same for all replicas.
    pub state_hash_index: u64,
}

/// Asks all members how far they are, and for the state hash at one index that they share.
pub(crate) async fn cluster(inner: &Inner, running: Option<&Running>, deadline: Instant) -> ClusterView {
    let Some(running) = running else { return ClusterView::default() };
    let metrics = running.raft.metrics().borrow_watched().clone();
    let (meta, members) = inner.applied.read(|state| (state.meta().clone(), state.members().cloned().collect()));
    let members: Vec<Member> = members;
    let is_made = meta.cluster_id.is_set();

    let first = statuses(inner, running, members.iter().map(Some), None, deadline).await;
    let applied: Vec<Option<u64>> = first.iter().map(|status| status.as_ref().and_then(|s| s.applied_index)).collect();
    let common = common_index(&applied);
    let answered = members.iter().zip(&applied).map(|(member, applied)| applied.map(|_| member));
    let second = statuses(inner, running, answered, common, deadline).await;
    let voters: Vec<u64> = metrics.membership_config.voter_ids().collect();
    let view =
        |((member, applied_index), status): ((Member, Option<u64>), Option<peer::GetStatusResponse>)| ReplicaView {
            is_voter: voters.contains(&member.replica_id.0),
            member,
            applied_index,
            state_hash: status.and_then(|status| <[u8; 32]>::try_from(&status.state_hash[..]).ok()).map(Digest),
            state_hash_index: common.unwrap_or(0),
        };
    ClusterView {
        cluster_id: if is_made { meta.cluster_id } else { ClusterId::default() },
        cluster_version: if is_made { meta.cluster_version } else { 0 },
        version_held: meta.version_held,
        term: metrics.current_term,
        leader: metrics.current_leader.map(ReplicaId),
        answered_by: Some(running.here.replica_id),
        replicas: members.into_iter().zip(applied).zip(second).map(view).collect(),
    }
}

/// An index that all have applied and still know the hash of, except those that are far behind.
fn common_index(applied: &[Option<u64>]) -> Option<u64> {
    let newest = applied.iter().flatten().max()?;
    let oldest_kept = newest.saturating_sub(limits::HASHES_KEPT as u64 / 2);
    applied.iter().flatten().filter(|index| **index >= oldest_kept).min().copied()
}

/// The answers of members, in their order; `None` is not asked.
async fn statuses(
    inner: &Inner,
    running: &Running,
    members: impl Iterator<Item = Option<&Member>>,
    hash_at: Option<u64>,
    deadline: Instant,
) -> Vec<Option<peer::GetStatusResponse>> {
    let until = deadline.min(Instant::now() + limits::STATUS_TIMEOUT);
    let ask = |member: Option<&Member>| {
        let member = member.map(|member| (member.replica_id, member.peer_addr.clone()));
        async move {
            let (replica_id, peer_addr) = member?;
            if replica_id == running.here.replica_id {
                return Some(inner.status(hash_at));
            }
            let header = Header { from: running.here, to: replica_id };
            let mut client = inner.connector.shared(peer_addr.as_str());
            let asked = client.get_status(header.request(peer::GetStatusRequest { hash_at }));
            let answer = tokio::time::timeout_at(until.into(), asked).await;
            answer.ok()?.ok().map(tonic::Response::into_inner)
        }
    };
    join_all(members.map(ask)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_index_is_the_oldest_that_is_not_far_behind() {
        assert_eq!(common_index(&[Some(100), None, Some(90)]), Some(90));
        assert_eq!(common_index(&[Some(1_000_000), Some(5), Some(999_990)]), Some(999_990));
        assert_eq!(common_index(&[None, None]), None);
    }
}
