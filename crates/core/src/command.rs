//! What can be asked of the state machine. Every value in here has been parsed; bounds are not checked again.

use std::collections::BTreeMap;

use crate::cluster_version;
use crate::name::{Addr, AttestationType, ClusterId, DedupeKey, JobId, PrincipalName, QueueName, ReplicaId, RequestId};
use crate::name::{LogPosition, WorkerLabel};
use crate::queue::QueuePolicyPatch;
use crate::time::{LeaseTime, WallTime};

/// One entry of the replicated log: the two clocks as the leader stamped them, and the commands that share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The leader's lease clock.
    pub lease_now: LeaseTime,
    /// The leader's wall clock.
    pub wall_now: WallTime,
    /// Applied in this order. Empty: time passes, nothing else (a tick).
    pub commands: Vec<Command>,
}

/// Where an entry stands in the log. It comes with the entry.
pub type Context = LogPosition;

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Actor {
    /// An authenticated caller.
    Principal(PrincipalName),
    /// The cluster itself.
    System,
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Who asks.
    pub actor: Actor,
    /// What is asked.
    pub operation: Operation,
}

/// What is asked. Wire kinds are fixed for ever, see `wire`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Put jobs into queues, all or none.
    Enqueue(Enqueue),
    /// Claim up to `jobs_max` jobs.
    Claim(ClaimJobs),
    /// Extend claims, each on its own.
    Heartbeat(Vec<Heartbeat>),
    /// Complete claimed jobs, each on its own.
    Complete(Vec<Complete>),
    /// Report a failed claim.
    Fail(Fail),
    /// Give a claim back unused.
    Release(Release),
    /// Give back claims whose answers nobody received. By the cluster itself.
    ReleaseUndelivered(Vec<Undelivered>),
    /// Cancel a job.
    Cancel(JobId),
    /// Give a dead or cancelled job a fresh retry budget.
    Retry(JobId),
    /// Change a queue's policy.
    UpdateQueue(UpdateQueue),
    /// The first command of a cluster's life.
    InitCluster(InitCluster),
    /// A replica says what it is and which cluster versions it supports.
    RegisterReplica(Member),
    /// Take the next replica id.
    AllocateReplica,
    /// A replica has left the cluster.
    ForgetReplica(ReplicaId),
    /// Raise the cluster version.
    SetClusterVersion(u32),
    /// Hold the cluster version, or let it be raised by itself again.
    HoldClusterVersion(bool),
}

impl Operation {
    /// The lowest cluster version at which this may be in the log.
    pub fn min_version(&self) -> u32 {
        let needs_fence = match self {
            Self::Heartbeat(entries) => entries.iter().any(|entry| entry.fencing_token.is_some()),
            Self::Complete(entries) => entries.iter().any(|entry| entry.fencing_token.is_some()),
            Self::Fail(fail) => fail.fencing_token.is_some(),
            Self::Release(release) => release.fencing_token.is_some(),
            Self::UpdateQueue(update) => update.patch.fencing.is_some(),
            Self::Enqueue(_)
            | Self::Claim(_)
            | Self::ReleaseUndelivered(_)
            | Self::Cancel(_)
            | Self::Retry(_)
            | Self::InitCluster(_)
            | Self::RegisterReplica(_)
            | Self::AllocateReplica
            | Self::ForgetReplica(_)
            | Self::SetClusterVersion(_)
            | Self::HoldClusterVersion(_) => false,
        };
        if needs_fence { cluster_version::FENCING } else { 1 }
    }

    /// Takes out what needs a higher cluster version than this one.
    pub fn fit_to(&mut self, cluster_version: u32) {
        if cluster_version >= cluster_version::FENCING {
            return;
        }
        match self {
            Self::Heartbeat(entries) => entries.iter_mut().for_each(|entry| entry.fencing_token = None),
            Self::Complete(entries) => entries.iter_mut().for_each(|entry| entry.fencing_token = None),
            Self::Fail(fail) => fail.fencing_token = None,
            Self::Release(release) => release.fencing_token = None,
            Self::UpdateQueue(update) => update.patch.fencing = None,
            Self::Enqueue(_)
            | Self::Claim(_)
            | Self::ReleaseUndelivered(_)
            | Self::Cancel(_)
            | Self::Retry(_)
            | Self::InitCluster(_)
            | Self::RegisterReplica(_)
            | Self::AllocateReplica
            | Self::ForgetReplica(_)
            | Self::SetClusterVersion(_)
            | Self::HoldClusterVersion(_) => {}
        }
    }
}

/// See [`Operation::Enqueue`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enqueue {
    /// 1 to [`crate::limits::BATCH_ENTRIES_MAX`].
    pub jobs: Vec<NewJob>,
    /// To repeat the call safely.
    pub request_id: Option<RequestId>,
}

/// A job to be enqueued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// Its queue.
    pub queue: QueueName,
    /// Opaque.
    pub payload: Vec<u8>,
    /// Higher is claimed first.
    pub priority: i32,
    /// When it may first be claimed.
    pub start: Start,
    /// The retry budget; `None`: the queue's.
    pub max_attempts: Option<u32>,
    /// The lease of claims that name none, in milliseconds; `None`: the queue's.
    pub lease_ms: Option<u32>,
    /// The business's own key.
    pub dedupe_key: Option<DedupeKey>,
    /// The producer's labels.
    pub labels: BTreeMap<String, String>,
}

/// When a job may first be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At once.
    Now,
    /// This many milliseconds after it was enqueued.
    After(u64),
    /// At this time.
    At(WallTime),
}

/// See [`Operation::Claim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimJobs {
    /// 1 to [`crate::limits::CLAIM_QUEUES_MAX`], taken together.
    pub queues: Vec<QueueName>,
    /// The worker's label.
    pub worker: WorkerLabel,
    /// In milliseconds; `None`: the job's, else the queue's.
    pub lease_ms: Option<u32>,
    /// 1 to [`crate::limits::BATCH_ENTRIES_MAX`].
    pub jobs_max: u32,
    /// To repeat the call safely.
    pub request_id: Option<RequestId>,
}

/// One entry of [`Operation::Heartbeat`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// `None`: the caller named an id that no job can have.
    pub job_id: Option<JobId>,
    /// The worker's label.
    pub worker: WorkerLabel,
    /// The number of the claim, as the caller gives it; `None`: not given.
    pub fencing_token: Option<u32>,
    /// In milliseconds; `None`: as the claim began.
    pub lease_ms: Option<u32>,
    /// Empty: the stored progress stays.
    pub progress: Vec<u8>,
}

/// One entry of [`Operation::Complete`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complete {
    /// `None`: the caller named an id that no job can have.
    pub job_id: Option<JobId>,
    /// The worker's label.
    pub worker: WorkerLabel,
    /// The number of the claim, as the caller gives it; `None`: not given.
    pub fencing_token: Option<u32>,
    /// Opaque.
    pub result: Vec<u8>,
    /// Evidence, stored by its digest.
    pub attestation: Option<NewAttestation>,
    /// To repeat the call safely.
    pub request_id: Option<RequestId>,
}

/// An attestation to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAttestation {
    /// Its media type.
    pub attestation_type: AttestationType,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// See [`Operation::Fail`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fail {
    /// `None`: the caller named an id that no job can have.
    pub job_id: Option<JobId>,
    /// The worker's label.
    pub worker: WorkerLabel,
    /// The number of the claim, as the caller gives it; `None`: not given.
    pub fencing_token: Option<u32>,
    /// Why.
    pub reason: String,
    /// Milliseconds until the next try; `None`: at once.
    pub retry_after_ms: Option<u64>,
    /// Do not try again.
    pub permanent: bool,
}

/// See [`Operation::Release`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// `None`: the caller named an id that no job can have.
    pub job_id: Option<JobId>,
    /// The worker's label.
    pub worker: WorkerLabel,
    /// The number of the claim, as the caller gives it; `None`: not given.
    pub fencing_token: Option<u32>,
}

/// One claim of [`Operation::ReleaseUndelivered`], named by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undelivered {
    /// The job.
    pub job_id: JobId,
    /// The claim's number. If the job has been claimed again since, nothing happens.
    pub attempts: u32,
}

/// See [`Operation::UpdateQueue`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateQueue {
    /// The queue; made if it does not exist.
    pub queue: QueueName,
    /// What changes.
    pub patch: QueuePolicyPatch,
}

/// See [`Operation::InitCluster`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitCluster {
    /// Random.
    pub cluster_id: ClusterId,
    /// The first replicas.
    pub members: Vec<Member>,
}

/// What a replica says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub replica_id: ReplicaId,
    /// Where clients reach it.
    pub addr: Addr,
    /// Where its peers reach it.
    pub peer_addr: Addr,
    /// Its release, such as `0.1.0`.
    pub release: String,
    /// The lowest cluster version that it supports.
    pub min_version: u32,
    /// The highest cluster version that it supports.
    pub max_version: u32,
}
