//! Failed claims.

use super::heartbeat::not_a_completion;
use super::holder::ClaimCall;
use super::{Verdict, about, finish, job_becomes};
use crate::command::{Actor, Fail};
use crate::job::JobState;
use crate::state::State;

/// Puts a job whose claim failed back, or ends it: cancelled if that was asked for, dead if the failure is permanent or
/// the retry budget is used up.
pub(crate) fn fail(state: &State, actor: &Actor, fail: Fail) -> Verdict {
    let Fail { job_id, fencing_token, .. } = fail;
    let call = ClaimCall { verb: "fail", actor, worker: &fail.worker, job_id, fencing_token };
    let (mut job, fenced) = match call.held(state) {
        Ok(held) => (held.job.clone(), held.fenced),
        Err(rejection) => return call.refuse(state, not_a_completion(rejection)),
    };
    let mut event = call.event("done");
    if job.cancel_requested() {
        finish(state, &mut job, JobState::Cancelled);
    } else if fail.permanent || job.budget_used_up() {
        finish(state, &mut job, JobState::Dead);
    } else {
        let now = state.meta().wall_now;
        job.run_at = now.plus_ms(fail.retry_after_ms.unwrap_or(0));
        job.state = if job.run_at > now { JobState::Scheduled } else { JobState::Ready };
        job.claim = None;
    }
    event = about(event, &job).detail("state", job.state.name());
    job.notes_mut().reason = fail.reason;
    job_becomes(job, fenced, event)
}
