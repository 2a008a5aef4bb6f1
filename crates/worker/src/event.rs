//! What happens to the claims of a worker.

/// Which claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRef {
    /// The job.
    pub job_id: String,
    /// Its queue.
    pub queue: String,
    /// The claim's number, which is the job's `attempts` at the claim.
    pub claim_number: u32,
}

/// What happened to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It began.
    Claimed(ClaimRef),
    /// Its command runs, as the leader of this process group.
    Started {
        /// Which claim.
        claim: ClaimRef,
        /// The process group, which is also the process id of the shell.
        process_group: i32,
    },
    /// The job is completed by it.
    Completed(ClaimRef),
    /// It was reported as failed.
    Failed {
        /// Which claim.
        claim: ClaimRef,
        /// Why.
        reason: String,
    },
    /// It was given back.
    Released {
        /// Which claim.
        claim: ClaimRef,
        /// Why.
        reason: String,
    },
    /// It is no longer this worker's, or may not be: its command was killed, and nothing was reported to the cluster.
    Lost {
        /// Which claim.
        claim: ClaimRef,
        /// How.
        reason: String,
    },
    /// Whether a report about it has been taken is not known. The lease runs out, or the report is there.
    Unknown {
        /// Which claim.
        claim: ClaimRef,
        /// Why.
        reason: String,
    },
}

impl Event {
    /// Which claim.
    pub fn claim(&self) -> &ClaimRef {
        match self {
            Self::Claimed(claim) | Self::Completed(claim) => claim,
            Self::Started { claim, .. }
            | Self::Failed { claim, .. }
            | Self::Released { claim, .. }
            | Self::Lost { claim, .. }
            | Self::Unknown { claim, .. } => claim,
        }
    }

    /// Its name, such as `completed`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Claimed(_) => "claimed",
            Self::Started { .. } => "started",
            Self::Completed(_) => "completed",
            Self::Failed { .. } => "failed",
            Self::Released { .. } => "released",
            Self::Lost { .. } => "lost",
            Self::Unknown { .. } => "unknown",
        }
    }

    /// Why; empty where there is nothing to say.
    pub fn reason(&self) -> &str {
        match self {
            Self::Claimed(_) | Self::Started { .. } | Self::Completed(_) => "",
            Self::Failed { reason, .. }
            | Self::Released { reason, .. }
            | Self::Lost { reason, .. }
            | Self::Unknown { reason, .. } => reason,
        }
    }

    pub(crate) fn log(&self) {
        let (claim, event, reason) = (self.claim(), self.name(), self.reason());
        let (job_id, claim_number) = (claim.job_id.as_str(), claim.claim_number);
        match self {
            Self::Lost { .. } | Self::Unknown { .. } => tracing::warn!(job_id, claim_number, reason, "claim {event}"),
            Self::Failed { .. } | Self::Released { .. } => {
                tracing::info!(job_id, claim_number, reason, "claim {event}")
            }
            Self::Claimed(_) | Self::Started { .. } | Self::Completed(_) => {
                tracing::info!(job_id, claim_number, "claim {event}");
            }
        }
    }
}

/// How many claims ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerReport {
    /// All claims.
    pub claimed: u64,
    /// Completed.
    pub completed: u64,
    /// Reported as failed.
    pub failed: u64,
    /// Given back.
    pub released: u64,
    /// Lost.
    pub lost: u64,
    /// Unknown.
    pub unknown: u64,
}

impl WorkerReport {
    pub(crate) fn count(&mut self, event: &Event) {
        match event {
            Event::Claimed(_) => self.claimed += 1,
            Event::Started { .. } => {}
            Event::Completed(_) => self.completed += 1,
            Event::Failed { .. } => self.failed += 1,
            Event::Released { .. } => self.released += 1,
            Event::Lost { .. } => self.lost += 1,
            Event::Unknown { .. } => self.unknown += 1,
        }
    }
}
