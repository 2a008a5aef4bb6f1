//! Changes: what `decide` asks for and `evolve` and the store carry out.

use crate::audit::AuditRecord;
use crate::command::Member;
use crate::digest::Digest;
use crate::job::Job;
use crate::name::{AttestationType, ClusterId, JobId, LogPosition, QueueName, ReplicaId};
use crate::outcome::Enqueued;
use crate::queue::QueuePolicy;
use crate::time::{LeaseTime, WallTime};

/// One change of the replicated state. Rows are whole: a job that changes is put again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Time has passed.
    Clocks {
        /// Never falls.
        lease_now: LeaseTime,
        /// May fall.
        wall_now: WallTime,
    },
    /// A job is new, or is now this. A new one takes the next number of the sequence.
    PutJob(Box<Job>),
    /// A finished job's retention is over; its blobs go with it.
    DropJob(JobId),
    /// A queue is new, or its policy is now this.
    PutQueue {
        /// The queue.
        queue: QueueName,
        /// Its policy.
        policy: QueuePolicy,
    },
    /// Bytes of a job; replaces what was there. The state machine never reads them.
    PutBlob {
        /// The job.
        job_id: JobId,
        /// Which of its blobs.
        kind: BlobKind,
        /// Never empty.
        bytes: Vec<u8>,
    },
    /// An attestation, under the digest of its bytes. Kept for ever.
    PutAttestation {
        /// SHA-256 of `bytes`.
        digest: Digest,
        /// Its media type.
        attestation_type: AttestationType,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// A call with a request id was answered.
    PutReply {
        /// What is kept in memory.
        reply: Reply,
        /// The answer, kept on disk.
        answer: Answer,
    },
    /// The oldest reply is dropped.
    DropReply(ReplyKey),
    /// One more record of the audit log.
    Audit(Box<AuditRecord>),
    /// A replica is a member, and supports these versions.
    PutMember(Member),
    /// A replica is no longer a member.
    DropMember(ReplicaId),
    /// A replica id was taken; this is the next.
    NextReplicaId(ReplicaId),
    /// The cluster has been made.
    ClusterId(ClusterId),
    /// The cluster version is now this.
    ClusterVersion(u32),
    /// The cluster version is held, or no longer.
    VersionHeld(bool),
}

/// Which blob of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlobKind {
    /// What the producer gave.
    Payload,
    /// What the last heartbeat with progress gave.
    Progress,
    /// What the completion gave.
    Result,
}

/// The first 16 bytes of SHA-256 over principal and request id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplyKey(pub [u8; 16]);

/// That a call with a request id was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Principal and request id.
    pub reply_key: ReplyKey,
    /// The first 16 bytes of the digest of what was asked.
    pub content: [u8; 16],
    /// Where it was applied.
    pub applied_at: LogPosition,
    /// When, on the lease clock.
    pub answered_at: LeaseTime,
    /// Rises by one a reply, from 1; the order in which replies are dropped.
    pub reply_number: u64,
}

/// A kept answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Of an enqueue.
    Enqueued(Vec<Enqueued>),
    /// Of a claim.
    Claimed(Vec<Job>),
    /// Of one completion.
    Completed(Box<Job>),
}
