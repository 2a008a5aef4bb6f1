//! The replicated state, and what can be read from it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::audit::AuditHead;
use crate::canonical::Writer;
use crate::change::{Reply, ReplyKey};
use crate::command::Member;
use crate::digest::Digest;
use crate::hash::RowSum;
use crate::job::Job;
use crate::name::{ClusterId, DedupeKey, JobId, QueueName, ReplicaId};
use crate::queue::{QueueCounts, QueuePolicy};
use crate::time::{LeaseTime, WallTime};

/// The whole replicated state but the blobs. Only [`State::evolve`] changes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub(crate) meta: Meta,
    pub(crate) jobs: BTreeMap<JobId, Job>,
    pub(crate) queues: BTreeMap<QueueName, Queue>,
    pub(crate) replies: BTreeMap<ReplyKey, Reply>,
    pub(crate) members: BTreeMap<ReplicaId, Member>,
    /// Invariant: exactly the unfinished jobs that have a dedupe key.
    pub(crate) dedupe: BTreeMap<(QueueName, DedupeKey), JobId>,
    /// Invariant: exactly the replies, by number.
    pub(crate) reply_order: BTreeMap<u64, ReplyKey>,
    /// Invariant: exactly the scheduled jobs, by `run_at`.
    pub(crate) scheduled: BTreeSet<(WallTime, JobId)>,
    /// Invariant: exactly the held claims, by the end of their lease.
    pub(crate) deadlines: BTreeSet<(LeaseTime, JobId)>,
    /// Invariant: for each queue with finished jobs, when the first of them is dropped.
    pub(crate) drops: BTreeSet<(WallTime, QueueName)>,
}

/// The single values of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Zeros: the cluster has not been made.
    pub cluster_id: ClusterId,
    /// The feature level that all replicas have agreed on.
    pub cluster_version: u32,
    /// The operator holds the cluster version where it is.
    pub version_held: bool,
    /// The last applied lease time.
    pub lease_now: LeaseTime,
    /// The last applied wall time.
    pub wall_now: WallTime,
    /// The number of the next job.
    pub next_job_id: JobId,
    /// The next replica id.
    pub next_replica_id: ReplicaId,
    /// The number of the newest reply.
    pub reply_number: u64,
    /// The head of the audit log.
    pub audit_head: AuditHead,
    /// The sum over all rows.
    pub rows: RowSum,
    /// The head of a chain of hashes over what is stored beside the rows, in the order in which it was stored: the
    /// bytes of jobs, attestations, and answers to calls with a request id. Zeros: nothing yet.
    pub content_head: Digest,
}

impl Default for Meta {
    fn default() -> Self {
        Self {
            cluster_id: ClusterId::default(),
            cluster_version: 1,
            version_held: false,
            lease_now: LeaseTime(0),
            wall_now: WallTime(0),
            next_job_id: JobId(1),
            next_replica_id: ReplicaId(1),
            reply_number: 0,
            audit_head: AuditHead::default(),
            rows: RowSum::default(),
            content_head: Digest::default(),
        }
    }
}

/// A queue with its indexes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queue {
    pub policy: QueuePolicy,
    /// Invariant: exactly the ready jobs.
    pub ready: BTreeSet<ReadyKey>,
    /// Invariant: exactly the lapsed claims.
    pub lapsed: BTreeSet<ReadyKey>,
    /// Invariant: exactly the finished jobs, by when they were finished.
    pub finished: BTreeSet<(WallTime, JobId)>,
    /// Invariant: as many as there are, in each state.
    pub counts: QueueCounts,
}

/// The order of claims within one class (lapsed, or new): priority, then `run_at`, then job id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReadyKey {
    pub priority: Reverse<i32>,
    pub run_at: WallTime,
    pub job_id: JobId,
}

impl ReadyKey {
    pub fn of(job: &Job) -> Self {
        Self { priority: Reverse(job.priority), run_at: job.run_at, job_id: job.job_id }
    }
}

impl State {
    /// The single values.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// A hash of the whole state, comparable between replicas that have applied the same log as far.
    pub fn state_hash(&self) -> Digest {
        let meta = &self.meta;
        let mut w = Writer::of("meta");
        w.bytes(1, &meta.cluster_id.0);
        w.number(2, meta.cluster_version.into());
        w.number(3, meta.version_held.into());
        w.number(4, meta.lease_now.0);
        w.number(5, meta.wall_now.0);
        w.number(6, meta.next_job_id.0);
        w.number(7, meta.next_replica_id.0);
        w.number(8, meta.reply_number);
        w.number(9, meta.audit_head.sequence);
        w.bytes(10, &meta.audit_head.hash.0);
        w.bytes(11, &meta.rows.to_bytes());
        w.bytes(12, &meta.content_head.0);
        Digest::of(&w.bytes)
    }

    /// The job of this number.
    pub fn job(&self, job_id: JobId) -> Option<&Job> {
        self.jobs.get(&job_id)
    }

    /// Jobs with a greater number than `after`, in order.
    pub fn jobs_after(&self, after: JobId) -> impl Iterator<Item = &Job> {
        self.jobs.range((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded)).map(|(_, job)| job)
    }

    /// How many jobs there are.
    pub fn job_count(&self) -> usize {
        self.jobs.len()
    }

    /// How many claims are held.
    pub fn held_claim_count(&self) -> usize {
        self.deadlines.len()
    }

    /// How many replies are kept.
    pub fn reply_count(&self) -> usize {
        self.replies.len()
    }

    /// A queue's policy and counts.
    pub fn queue(&self, name: &QueueName) -> Option<(&QueuePolicy, QueueCounts)> {
        self.queues.get(name).map(|queue| (&queue.policy, queue.counts))
    }

    /// The names of queues after `after`, in order; all for `None`.
    pub fn queues_after<'a>(&'a self, after: Option<&'a QueueName>) -> impl Iterator<Item = &'a QueueName> {
        let start = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        self.queues.range::<QueueName, _>((start, std::ops::Bound::Unbounded)).map(|(name, _)| name)
    }

    /// The earliest `run_at` of a queue's ready jobs. Walks over the distinct priorities that are waiting.
    pub fn oldest_ready(&self, name: &QueueName) -> Option<WallTime> {
        let ready = &self.queues.get(name)?.ready;
        let mut first = ready.first();
        let mut oldest = None;
        while let Some(key) = first {
            oldest = Some(oldest.map_or(key.run_at, |at: WallTime| at.min(key.run_at)));
            let last = ReadyKey { priority: key.priority, run_at: WallTime(u64::MAX), job_id: JobId(u64::MAX) };
            first = ready.range((std::ops::Bound::Excluded(last), std::ops::Bound::Unbounded)).next();
        }
        oldest
    }

    /// The members, in the order of their ids.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// A member.
    pub fn member(&self, replica_id: ReplicaId) -> Option<&Member> {
        self.members.get(&replica_id)
    }

    /// Whether a claim on these queues would be handed a job now.
    pub fn is_claimable(&self, queues: &[QueueName]) -> bool {
        self.next_candidate(queues).is_some()
    }

    /// When the passing of lease time next changes something.
    pub fn next_lease_event(&self) -> Option<LeaseTime> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// When the passing of wall time next changes something.
    pub fn next_wall_event(&self) -> Option<WallTime> {
        let scheduled = self.scheduled.first().map(|(at, _)| *at);
        let dropped = self.drops.first().map(|(at, _)| *at);
        scheduled.into_iter().chain(dropped).min()
    }
}
