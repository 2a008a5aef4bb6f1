//! Claims that are given back unused.

use super::heartbeat::not_a_completion;
use super::holder::ClaimCall;
use super::{Decision, Verdict, about, finish, job_becomes};
use crate::audit::AuditEvent;
use crate::command::{Actor, Release, Undelivered};
use crate::job::{Job, JobState};
use crate::state::State;

/// Gives a claim back. The number stays used; the retry budget is not charged.
pub(crate) fn release(state: &State, actor: &Actor, release: &Release) -> Verdict {
    let call = ClaimCall { verb: "release", actor, worker: &release.worker, job_id: release.job_id };
    match call.held_job(state) {
        Ok(job) => give_back(state, job, call.event("done")),
        Err(rejection) => call.refuse(state, not_a_completion(rejection)),
    }
}

/// Gives a claim back whose answer nobody received, unless the job has moved on since.
pub(crate) fn undelivered(state: &State, claim: Undelivered) -> Decision<()> {
    let job = state.job(claim.job_id).filter(|job| job.state == JobState::Claimed && job.attempts == claim.attempts);
    let Some(job) = job else { return Decision::nothing(()) };
    let event = AuditEvent::new(&Actor::System, "release", "done").detail("undelivered", true);
    let decision = give_back(state, job, event);
    Decision { value: (), changes: decision.changes, event: decision.event }
}

fn give_back(state: &State, job: &Job, event: AuditEvent) -> Verdict {
    let mut job = job.clone();
    job.releases += 1;
    if job.cancel_requested() {
        finish(state, &mut job, JobState::Cancelled);
    } else {
        job.state = JobState::Ready;
        job.claim = None;
    }
    let event = about(event, &job);
    job_becomes(job, event)
}
