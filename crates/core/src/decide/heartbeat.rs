//! Extending claims.

use super::Decision;
use super::holder::ClaimCall;
use crate::change::{BlobKind, Change};
use crate::command::{Actor, Heartbeat};
use crate::outcome::Extended;
use crate::rejection::Rejection;
use crate::state::State;

/// Extends one claim; never shortens its lease. A lapsed claim that nobody took over is held again.
pub(crate) fn heartbeat(state: &State, actor: &Actor, heartbeat: Heartbeat) -> Decision<Result<Extended, Rejection>> {
    let Heartbeat { job_id, fencing_token, .. } = heartbeat;
    let call = ClaimCall { verb: "heartbeat", actor, worker: &heartbeat.worker, job_id, fencing_token };
    let (mut job, fenced) = match call.held(state) {
        Ok(held) => (held.job.clone(), held.fenced),
        Err(rejection) => return call.refuse(state, not_a_completion(rejection)),
    };
    let (lease_now, wall_now) = (state.meta().lease_now, state.meta().wall_now);
    let cancel_requested = job.cancel_requested();
    let mut extended = Extended { lease_ends_wall: wall_now, lease_ms: 0, cancel_requested, fenced };
    if let Some(claim) = job.claim.as_deref_mut() {
        let wanted = lease_now.plus_ms(heartbeat.lease_ms.unwrap_or(claim.lease_ms).into());
        if wanted > claim.lease_ends_at {
            claim.lease_ends_at = wanted;
            claim.lease_ends_wall = wall_now.plus_ms(wanted.0 - lease_now.0);
        }
        claim.lapsed = false;
        extended.lease_ends_wall = claim.lease_ends_wall;
        extended.lease_ms = claim.lease_ends_at.0 - lease_now.0;
    }
    let mut changes = Vec::with_capacity(2);
    if !heartbeat.progress.is_empty() {
        job.notes_mut().progress_bytes = heartbeat.progress.len() as u32;
        let bytes = heartbeat.progress;
        changes.push(Change::PutBlob { job_id: job.job_id, kind: BlobKind::Progress, bytes });
    }
    changes.push(Change::PutJob(Box::new(job)));
    Decision { value: Ok(extended), changes, event: None }
}

/// To all verbs but a completion, a completed job is one whose claim is over.
pub(crate) fn not_a_completion(rejection: Rejection) -> Rejection {
    match rejection {
        Rejection::AlreadyCompleted { .. } => Rejection::ClaimLost,
        other => other,
    }
}
