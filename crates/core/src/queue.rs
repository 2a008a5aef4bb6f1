//! The policy of a queue.

use crate::limits;

/// The rules of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePolicy {
    /// Hands out nothing; everything else goes on.
    pub paused: bool,
    /// The lease of claims and jobs that name none, in milliseconds.
    pub default_lease_ms: u32,
    /// The retry budget of jobs that name none.
    pub max_attempts: u32,
    /// How long finished jobs are kept, in milliseconds.
    pub retention_ms: u64,
    /// How many jobs may be claimed at once; `None`: no limit.
    pub concurrency_limit: Option<u32>,
    /// Whether calls on claims must carry the claim's number.
    pub fencing: Fencing,
}

/// Whether calls on claims must carry the claim's number, the fencing token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fencing {
    /// A call without one is accepted from whom the claim names.
    #[default]
    Optional,
    /// A call without one is refused.
    Required,
}

impl Fencing {
    /// Its name, as the audit log has it. Fixed for ever.
    pub fn name(self) -> &'static str {
        match self {
            Self::Optional => "OPTIONAL",
            Self::Required => "REQUIRED",
        }
    }
}

impl Default for QueuePolicy {
    fn default() -> Self {
        Self {
            paused: false,
            default_lease_ms: limits::LEASE_MS_DEFAULT as u32,
            max_attempts: limits::MAX_ATTEMPTS_DEFAULT,
            retention_ms: limits::RETENTION_MS_DEFAULT,
            concurrency_limit: None,
            fencing: Fencing::Optional,
        }
    }
}

/// A change of a policy: what is `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueuePolicyPatch {
    /// See [`QueuePolicy::paused`].
    pub paused: Option<bool>,
    /// See [`QueuePolicy::default_lease_ms`].
    pub default_lease_ms: Option<u32>,
    /// See [`QueuePolicy::max_attempts`].
    pub max_attempts: Option<u32>,
    /// See [`QueuePolicy::retention_ms`].
    pub retention_ms: Option<u64>,
    /// See [`QueuePolicy::concurrency_limit`]; 0 takes the limit away.
    pub concurrency_limit: Option<u32>,
    /// See [`QueuePolicy::fencing`].
    pub fencing: Option<Fencing>,
}

/// Jobs of a queue by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Their time has not come.
    pub scheduled: u64,
    /// May be claimed.
    pub ready: u64,
    /// Claimed, lapsed ones included.
    pub claimed: u64,
    /// Claimed and lapsed.
    pub lapsed: u64,
    /// Done.
    pub completed: u64,
    /// Given up.
    pub dead: u64,
    /// Cancelled.
    pub cancelled: u64,
}
