//! Refusals: numbered, replicated, and the same on every replica.

use crate::cluster_version;

/// Why a command was refused. A refused command changes nothing but the audit log.
///
/// Where several apply, the one that stands first here is given. The numbers are those under which they are known, and
/// fixed for ever.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// 1. The request id was used for a call with other content.
    #[error("request_id: already used for a call with other content")]
    RequestIdReused,
    /// 2. Too many replies are kept to remember one more.
    #[error("too many calls with a request_id in the last 10 minutes (at most {max})")]
    TooManyReplies {
        /// [`crate::limits::REPLIES_MAX`].
        max: u64,
    },
    /// 3. There is no such job.
    #[error("there is no such job")]
    JobNotFound,
    /// 14. The queue requires a fencing token, and the call has none.
    #[error("fencing_token: the queue requires the claim's number")]
    FencingTokenRequired,
    /// 13. The call is one of an older claim than the job's newest, which has the same holder's name.
    #[error("fencing_token: it is not the number of the job's newest claim")]
    StaleFencingToken,
    /// 4. The job was completed before.
    #[error("the job is already completed{}", if *.by_caller { ", by a claim of this caller" } else { "" })]
    AlreadyCompleted {
        /// It was this caller's claim that completed it.
        by_caller: bool,
    },
    /// 5. The caller does not hold the job's claim.
    #[error("the caller does not hold a claim on this job")]
    ClaimLost,
    /// 6. A retry of a job that is not dead or cancelled.
    #[error("only a dead or cancelled job can be retried")]
    JobNotRetryable,
    /// 7. A retry of a job whose dedupe key another job has taken.
    #[error("dedupe_key: another unfinished job of the queue has taken it")]
    DedupeKeyTaken,
    /// 8. Too many queues.
    #[error("too many queues (at most {max})")]
    TooManyQueues {
        /// [`crate::limits::QUEUES_MAX`].
        max: u64,
    },
    /// 9. The cluster has been made before.
    #[error("the cluster has already been made")]
    ClusterExists,
    /// 10. The cluster version cannot be set to this.
    #[error("the cluster version cannot be set to {wanted}: {why}")]
    ClusterVersion {
        /// What was asked for.
        wanted: u32,
        /// Why not.
        why: String,
    },
    /// 15. The cluster version is too low for a queue to require fencing tokens.
    #[error(
        "fencing: REQUIRED needs cluster version {}, the cluster is at {cluster_version}",
        cluster_version::FENCING
    )]
    FencingNotSupported {
        /// What it is.
        cluster_version: u32,
    },
    /// 11. Too many replicas.
    #[error("too many replicas (at most {max})")]
    TooManyReplicas {
        /// [`crate::limits::REPLICAS_MAX`].
        max: u64,
    },
    /// 12. There is no such replica.
    #[error("there is no such replica")]
    ReplicaNotFound,
}

impl Rejection {
    /// Its number, as stored.
    pub fn number(&self) -> u32 {
        match self {
            Self::RequestIdReused => 1,
            Self::TooManyReplies { .. } => 2,
            Self::JobNotFound => 3,
            Self::AlreadyCompleted { .. } => 4,
            Self::ClaimLost => 5,
            Self::JobNotRetryable => 6,
            Self::DedupeKeyTaken => 7,
            Self::TooManyQueues { .. } => 8,
            Self::ClusterExists => 9,
            Self::ClusterVersion { .. } => 10,
            Self::TooManyReplicas { .. } => 11,
            Self::ReplicaNotFound => 12,
            Self::StaleFencingToken => 13,
            Self::FencingTokenRequired => 14,
            Self::FencingNotSupported { .. } => 15,
        }
    }

    /// The reason for programs, as in the audit log and in `google.rpc.ErrorInfo`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::RequestIdReused => "INVALID_FIELD",
            Self::TooManyReplies { .. } => "TOO_MANY_REQUEST_IDS",
            Self::JobNotFound => "JOB_NOT_FOUND",
            Self::AlreadyCompleted { .. } => "ALREADY_COMPLETED",
            Self::ClaimLost => "CLAIM_LOST",
            Self::JobNotRetryable => "JOB_NOT_RETRYABLE",
            Self::DedupeKeyTaken => "DEDUPE_KEY_TAKEN",
            Self::TooManyQueues { .. } => "TOO_MANY_QUEUES",
            Self::ClusterExists => "CLUSTER_EXISTS",
            Self::ClusterVersion { .. } => "CLUSTER_VERSION",
            Self::TooManyReplicas { .. } => "TOO_MANY_REPLICAS",
            Self::ReplicaNotFound => "REPLICA_NOT_FOUND",
            Self::StaleFencingToken => "STALE_FENCING_TOKEN",
            Self::FencingTokenRequired => "FENCING_TOKEN_REQUIRED",
            Self::FencingNotSupported { .. } => "CLUSTER_VERSION",
        }
    }

    /// Whether the same command may be accepted later, with nothing done about it.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::TooManyReplies { .. } | Self::TooManyQueues { .. } => true,
            Self::JobNotFound
            | Self::RequestIdReused
            | Self::AlreadyCompleted { .. }
            | Self::ClaimLost
            | Self::JobNotRetryable
            | Self::DedupeKeyTaken
            | Self::ClusterExists
            | Self::ClusterVersion { .. }
            | Self::TooManyReplicas { .. }
            | Self::ReplicaNotFound
            | Self::StaleFencingToken
            | Self::FencingTokenRequired
            | Self::FencingNotSupported { .. } => false,
        }
    }
}
