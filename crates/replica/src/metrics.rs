//! Numbers for operators.

use std::collections::BTreeMap;

use ag_core::name::ReplicaId;
use openraft::async_runtime::WatchReceiver as _;

use crate::inner::Inner;

/// Numbers of one replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaMetrics {
    /// `None`: it is in no cluster.
    pub replica_id: Option<ReplicaId>,
    /// It was elected, as far as it knows.
    pub is_leader: bool,
    /// Who leads, as far as it knows.
    pub leader: Option<ReplicaId>,
    /// The current term.
    pub term: u64,
    /// The last index of its log.
    pub last_log_index: Option<u64>,
    /// The last index that is known here to be committed.
    pub committed_index: Option<u64>,
    /// The last index that is applied here.
    pub applied_index: Option<u64>,
    /// The last index of its newest snapshot.
    pub snapshot_index: Option<u64>,
    /// The last index that its log does not hold any more.
    pub purged_index: Option<u64>,
    /// Claims that wait for jobs.
    pub waiting_claims: usize,
    /// Commands that wait to be proposed.
    pub queued_commands: usize,
    /// Entries by which each other replica is behind; only on the leader.
    pub lag: BTreeMap<ReplicaId, u64>,
}

impl ReplicaMetrics {
    pub(crate) fn of(inner: &Inner) -> Self {
        let Some(running) = inner.running() else { return Self::default() };
        let metrics = running.raft.metrics().borrow_watched().clone();
        let last = metrics.last_log_index.map_or(0, |log_index| log_index + 1);
        let lag = metrics.replication.iter().flatten().map(|(replica_id, matched)| {
            let matched = matched.as_ref().map_or(0, |log_id| log_id.index + 1);
            (ReplicaId(*replica_id), last.saturating_sub(matched))
        });
        Self {
            replica_id: Some(running.here.replica_id),
            is_leader: running.leadership.borrow().is_elected(),
            leader: metrics.current_leader.map(ReplicaId),
            term: metrics.current_term,
            last_log_index: metrics.last_log_index,
            committed_index: metrics.local_committed.map(|log_id| log_id.index),
            applied_index: inner.applied.last().map(|log_id| log_id.index),
            snapshot_index: metrics.snapshot.map(|log_id| log_id.index),
            purged_index: metrics.purged.map(|log_id| log_id.index),
            waiting_claims: inner.applied.waiters.count(),
            queued_commands: running.proposer.queued(),
            lag: lag.filter(|(replica_id, _)| *replica_id != running.here.replica_id).collect(),
        }
    }
}
