//! Who holds a claim: the one check that every verb of a claim goes through.

use super::Decision;
use crate::audit::AuditEvent;
use crate::command::Actor;
use crate::job::{Job, JobState};
use crate::name::{ClaimedBy, JobId, WorkerLabel};
use crate::rejection::Rejection;
use crate::state::State;

/// A verb on a claim, as the caller named it.
pub(crate) struct ClaimCall<'a> {
    /// For the audit log.
    pub verb: &'static str,
    /// Who calls.
    pub actor: &'a Actor,
    /// The label that it gives.
    pub worker: &'a WorkerLabel,
    /// The job that it names; `None` for an id that no job can have.
    pub job_id: Option<JobId>,
}

impl ClaimCall<'_> {
    /// Whether this is the holder that stands on a claim.
    fn is_by(&self, claimed_by: &ClaimedBy) -> bool {
        match self.actor {
            Actor::Principal(principal) => ClaimedBy::new(principal, self.worker) == *claimed_by,
            Actor::System => false,
        }
    }

    /// The job, if the caller holds its claim, lapsed or not.
    pub fn held_job<'s>(&self, state: &'s State) -> Result<&'s Job, Rejection> {
        let job = self.job_id.and_then(|job_id| state.job(job_id)).ok_or(Rejection::JobNotFound)?;
        let by_caller = job.claim.as_ref().is_some_and(|claim| self.is_by(&claim.claimed_by));
        match job.state {
            JobState::Claimed if by_caller => Ok(job),
            JobState::Completed => Err(Rejection::AlreadyCompleted { by_caller }),
            JobState::Scheduled | JobState::Ready | JobState::Claimed | JobState::Dead | JobState::Cancelled => {
                Err(Rejection::ClaimLost)
            }
        }
    }

    /// An accepted or refused call, for the audit log.
    pub fn event(&self, outcome: &str) -> AuditEvent {
        let mut event = AuditEvent::new(self.actor, self.verb, outcome);
        event.worker = self.worker.as_str().into();
        event
    }

    /// A refusal. It is recorded without the claim's number, so that the log tells a stale worker nothing.
    pub fn refuse<T>(&self, state: &State, rejection: Rejection) -> Decision<Result<T, Rejection>> {
        let mut event = self.event(rejection.reason());
        event.job_id = self.job_id;
        if let Some(job) = self.job_id.and_then(|job_id| state.job(job_id)) {
            event.queue = job.queue.as_str().into();
        }
        Decision { value: Err(rejection), changes: Vec::new(), event: Some(event) }
    }
}
