//! What a command came to.

use crate::change::{Change, ReplyKey};
use crate::job::Job;
use crate::name::{LogPosition, ReplicaId};
use crate::queue::QueuePolicy;
use crate::rejection::Rejection;
use crate::time::WallTime;

/// What one command came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The enqueued jobs, in the order of the command.
    Enqueued(Vec<Enqueued>),
    /// The claimed jobs, maybe none.
    Claimed(Vec<Job>),
    /// One an entry.
    Heartbeats(Vec<Result<Extended, Rejection>>),
    /// One an entry.
    Completed(Vec<Result<Completion, Rejection>>),
    /// The job after a fail, release, cancel or retry.
    Job(Changed),
    /// A repeated call. The first answer is in the store, under this key.
    Replayed(Replayed),
    /// The queue's policy after an update.
    Queue(QueuePolicy),
    /// The replica id that was taken.
    ReplicaAllocated(ReplicaId),
    /// Done, nothing to say.
    Done,
    /// Refused; nothing changed but the audit log.
    Rejected(Rejection),
}

/// A job that was enqueued, or found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enqueued {
    /// The job.
    pub job: Job,
    /// It was there already, under the same dedupe key.
    pub deduplicated: bool,
}

/// An extended claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extended {
    /// When the lease ends now, for people to read.
    pub lease_ends_wall: WallTime,
    /// How long the lease is from this entry on, in milliseconds.
    pub lease_ms: u64,
    /// The worker should stop.
    pub cancel_requested: bool,
    /// The call's fencing token was compared with the claim's number.
    pub fenced: bool,
}

/// A job after a verb that changed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The job.
    pub job: Box<Job>,
    /// The call's fencing token was compared with the claim's number.
    pub fenced: bool,
}

/// One completed job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completion {
    /// Completed by this command.
    Now(Changed),
    /// A repeated call.
    Replayed(Replayed),
}

/// A repeated call's first answer: where it is stored, and where it was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// The key of the stored reply.
    pub reply_key: ReplyKey,
    /// Where the first call was applied.
    pub applied_at: LogPosition,
    /// The first call's fencing token was compared with the claim's number.
    pub fenced: bool,
}

/// What applying one entry came to.
#[derive(Debug)]
#[must_use = "the changes must be stored before the outcomes are told to anyone"]
pub struct Applied {
    /// One a command.
    pub outcomes: Vec<Outcome>,
    /// What changed, in order; to be stored in one atomic batch.
    pub changes: Vec<Change>,
}
