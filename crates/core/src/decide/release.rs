//! Claims that are given back unused.

use super::heartbeat::not_a_completion;
use super::holder::{ClaimCall, Held, is_newest_claim};
use super::{Decision, Verdict, about, finish, job_becomes};
use crate::audit::AuditEvent;
use crate::command::{Actor, Release, Undelivered};
use crate::job::JobState;
use crate::state::State;

/// Gives a claim back. The number stays used; the retry budget is not charged.
pub(crate) fn release(state: &State, actor: &Actor, release: &Release) -> Verdict {
    let Release { job_id, fencing_token, .. } = *release;
    let call = ClaimCall { verb: "release", actor, worker: &release.worker, job_id, fencing_token };
    match call.held(state) {
        Ok(held) => give_back(state, &held, call.event("done")),
        Err(rejection) => call.refuse(state, not_a_completion(rejection)),
    }
}

/// Gives a claim back whose answer nobody received, unless the job has moved on since.
pub(crate) fn undelivered(state: &State, claim: Undelivered) -> Decision<()> {
    let job = state.job(claim.job_id).filter(|job| job.state == JobState::Claimed);
    let Some(job) = job.filter(|job| is_newest_claim(job, claim.attempts)) else { return Decision::nothing(()) };
    let event = AuditEvent::new(&Actor::System, "release", "done").detail("undelivered", true);
    let decision = give_back(state, &Held { job, fenced: true }, event);
    Decision { value: (), changes: decision.changes, event: decision.event }
}

fn give_back(state: &State, held: &Held<'_>, event: AuditEvent) -> Verdict {
    let mut job = held.job.clone();
    job.releases += 1;
    if job.cancel_requested() {
        finish(state, &mut job, JobState::Cancelled);
    } else {
        job.state = JobState::Ready;
        job.claim = None;
    }
    let event = about(event, &job);
    job_becomes(job, held.fenced, event)
}
