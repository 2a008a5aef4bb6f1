//! What the passing of time does. Each function gives the next thing that is due, or `None`.

use super::{Decision, about, finish};
use crate::audit::AuditEvent;
use crate::change::Change;
use crate::command::{Actor, Entry};
use crate::job::JobState;
use crate::limits;
use crate::state::State;

/// The clocks after this entry. Lease time never falls, whatever a leader stamped.
pub(crate) fn clocks(state: &State, entry: &Entry) -> Decision<()> {
    let lease_now = entry.lease_now.max(state.meta().lease_now);
    let changes = vec![Change::Clocks { lease_now, wall_now: entry.wall_now }];
    Decision { value: (), changes, event: None }
}

/// A scheduled job whose time has come is ready.
pub(crate) fn promote(state: &State) -> Option<Decision<()>> {
    let (run_at, job_id) = *state.scheduled.first()?;
    if run_at > state.meta().wall_now {
        return None;
    }
    let mut job = state.job(job_id)?.clone();
    job.state = JobState::Ready;
    Some(Decision { value: (), changes: vec![Change::PutJob(Box::new(job))], event: None })
}

/// A claim whose lease has run out is lapsed; or the job is over, if its cancellation was asked for or its retry budget
/// is used up.
pub(crate) fn lapse(state: &State) -> Option<Decision<()>> {
    let (lease_ends_at, job_id) = *state.deadlines.first()?;
    if lease_ends_at > state.meta().lease_now {
        return None;
    }
    let mut job = state.job(job_id)?.clone();
    let mut event = None;
    if job.cancel_requested() || job.budget_used_up() {
        let cancelled = job.cancel_requested();
        finish(state, &mut job, if cancelled { JobState::Cancelled } else { JobState::Dead });
        let (attempts, releases, max_attempts) = (job.attempts, job.releases, job.max_attempts);
        job.notes_mut().reason = match cancelled {
            true => format!("cancelled: the lease of claim {attempts} ran out"),
            false => format!(
                "the lease of claim {attempts} ran out, and the retry budget is used up: {attempts} claims − \
                 {releases} releases against max_attempts {max_attempts}"
            ),
        };
        let expired = AuditEvent::new(&Actor::System, "expire", "done");
        event = Some(about(expired, &job).detail("state", job.state.name()));
    } else if let Some(claim) = job.claim.as_deref_mut() {
        claim.lapsed = true;
    }
    Some(Decision { value: (), changes: vec![Change::PutJob(Box::new(job))], event })
}

/// A finished job whose retention is over is dropped.
pub(crate) fn drop_finished(state: &State) -> Option<Decision<()>> {
    let (drop_at, queue) = state.drops.first()?;
    if *drop_at > state.meta().wall_now {
        return None;
    }
    let (_, job_id) = *state.queues.get(queue)?.finished.first()?;
    let event = about(AuditEvent::new(&Actor::System, "drop", "done"), state.job(job_id)?);
    Some(Decision { value: (), changes: vec![Change::DropJob(job_id)], event: Some(event) })
}

/// The oldest reply is dropped once it is neither young nor among the newest.
pub(crate) fn drop_reply(state: &State) -> Option<Decision<()>> {
    if state.replies.len() <= limits::REPLIES_KEPT_MIN {
        return None;
    }
    let (_, reply_key) = state.reply_order.first_key_value()?;
    let reply = state.replies.get(reply_key)?;
    if reply.answered_at.plus_ms(limits::REPLY_KEPT_MS_MIN) > state.meta().lease_now {
        return None;
    }
    Some(Decision { value: (), changes: vec![Change::DropReply(*reply_key)], event: None })
}
