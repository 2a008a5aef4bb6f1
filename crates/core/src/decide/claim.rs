//! Handing jobs out.

use super::{Decision, about, finish};
use crate::audit::AuditEvent;
use crate::change::Change;
use crate::command::{Actor, ClaimJobs};
use crate::job::{Claim, Job, JobState};
use crate::limits;
use crate::name::ClaimedBy;
use crate::state::State;

/// Hands out the next job, if it takes up at most `room_bytes` of the answer. `None`: there is none. `Some` of no job:
/// one was buried, because its number is used up; the next may do.
pub(crate) fn claim_next(
    state: &State,
    actor: &Actor,
    claim: &ClaimJobs,
    room_bytes: u64,
) -> Option<Decision<Option<Job>>> {
    let Actor::Principal(principal) = actor else { return None };
    let job = state.job(state.next_candidate(&claim.queues)?)?;
    let Some(attempts) = job.attempts.checked_add(1) else { return Some(bury(state, job)) };
    if job.answer_bytes() > room_bytes {
        return None;
    }
    let mut event = AuditEvent::new(actor, "claim", "done");
    event.worker = claim.worker.as_str().into();
    event.request_id = claim.request_id.as_ref().map_or("", |request_id| request_id.as_str()).into();
    if let Some(lapsed) = &job.claim {
        event = event.detail("taken_over_from", lapsed.claimed_by.as_str());
    }
    let lease_ms = claim.lease_ms.or(job.lease_ms).unwrap_or_else(|| default_lease_ms(state, job));
    let mut job = job.clone();
    job.state = JobState::Claimed;
    job.attempts = attempts;
    job.claim = Some(Box::new(Claim {
        claimed_by: ClaimedBy::new(principal, &claim.worker),
        lease_ms,
        lease_ends_at: state.meta().lease_now.plus_ms(lease_ms.into()),
        lease_ends_wall: state.meta().wall_now.plus_ms(lease_ms.into()),
        lapsed: false,
    }));
    let event = about(event, &job).detail("lease_ms", lease_ms);
    let changes = vec![Change::PutJob(Box::new(job.clone()))];
    Some(Decision { value: Some(job), changes, event: Some(event) })
}

fn default_lease_ms(state: &State, job: &Job) -> u32 {
    state.queue(&job.queue).map_or(limits::LEASE_MS_DEFAULT as u32, |(policy, _)| policy.default_lease_ms)
}

/// The claim number never wraps: a job that has used the last one is dead.
fn bury(state: &State, job: &Job) -> Decision<Option<Job>> {
    let mut job = job.clone();
    finish(state, &mut job, JobState::Dead);
    job.notes_mut().reason = format!("the claim number has reached its last value, {}", u32::MAX);
    let event = about(AuditEvent::new(&Actor::System, "exhaust", "done"), &job);
    Decision { value: None, changes: vec![Change::PutJob(Box::new(job))], event: Some(event) }
}
