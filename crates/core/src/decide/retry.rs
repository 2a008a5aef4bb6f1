//! Giving finished jobs another chance.

use super::{Decision, Verdict, about, job_becomes};
use crate::audit::AuditEvent;
use crate::command::Actor;
use crate::job::{Job, JobState};
use crate::name::JobId;
use crate::rejection::Rejection;
use crate::state::State;

/// Makes a dead or cancelled job ready, with a fresh retry budget. Its number goes on from where it stood.
pub(crate) fn retry(state: &State, actor: &Actor, job_id: JobId) -> Verdict {
    let Some(job) = state.job(job_id) else { return Decision::nothing(Err(Rejection::JobNotFound)) };
    match job.state {
        JobState::Dead | JobState::Cancelled => {}
        JobState::Completed => return Decision::nothing(Err(Rejection::AlreadyCompleted { by_caller: false })),
        JobState::Scheduled | JobState::Ready | JobState::Claimed => {
            return Decision::nothing(Err(Rejection::JobNotRetryable));
        }
    }
    if dedupe_key_taken(state, job) {
        return Decision::nothing(Err(Rejection::DedupeKeyTaken));
    }
    let mut job = job.clone();
    job.state = JobState::Ready;
    job.run_at = state.meta().wall_now;
    job.max_attempts = job.charged_attempts().saturating_add(job.retry_budget);
    job.claim = None;
    let notes = job.notes_mut();
    notes.finished_at = None;
    notes.cancel_requested_at = None;
    let event = about(AuditEvent::new(actor, "retry", "done"), &job).detail("max_attempts", job.max_attempts);
    job_becomes(job, false, event)
}

fn dedupe_key_taken(state: &State, job: &Job) -> bool {
    let dedupe_key = job.notes().dedupe_key.clone();
    dedupe_key.is_some_and(|dedupe_key| state.dedupe.contains_key(&(job.queue.clone(), dedupe_key)))
}
