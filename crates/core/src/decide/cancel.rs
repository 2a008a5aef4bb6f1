//! Cancelling jobs.

use super::{Decision, Verdict, about, finish, job_becomes, unchanged};
use crate::audit::AuditEvent;
use crate::command::Actor;
use crate::job::JobState;
use crate::name::JobId;
use crate::rejection::Rejection;
use crate::state::State;

/// Cancels a job that nobody holds at once, a lapsed claim included; asks the holder of any other to stop.
pub(crate) fn cancel(state: &State, actor: &Actor, job_id: JobId) -> Verdict {
    let Some(job) = state.job(job_id) else { return Decision::nothing(Err(Rejection::JobNotFound)) };
    let mut job = job.clone();
    let event = about(AuditEvent::new(actor, "cancel", "done"), &job);
    match job.state {
        JobState::Completed => return Decision::nothing(Err(Rejection::AlreadyCompleted { by_caller: false })),
        JobState::Dead | JobState::Cancelled => return Decision::nothing(Ok(unchanged(job))),
        JobState::Claimed if !job.is_lapsed() => {
            if job.cancel_requested() {
                return Decision::nothing(Ok(unchanged(job)));
            }
            job.notes_mut().cancel_requested_at = Some(state.meta().wall_now);
            return job_becomes(job, false, event.detail("requested", true));
        }
        JobState::Scheduled | JobState::Ready | JobState::Claimed => {}
    }
    finish(state, &mut job, JobState::Cancelled);
    job_becomes(job, false, event)
}
