//! Putting jobs into queues.

use std::collections::BTreeSet;

use super::{Decision, about};
use crate::audit::AuditEvent;
use crate::change::{BlobKind, Change};
use crate::command::{Actor, Enqueue, NewJob, Start};
use crate::digest::Digest;
use crate::job::{Job, JobNotes, JobState};
use crate::limits;
use crate::name::RequestId;
use crate::outcome::Enqueued;
use crate::queue::QueuePolicy;
use crate::rejection::Rejection;
use crate::state::State;

/// What could refuse any of the jobs.
pub(crate) fn check(state: &State, enqueue: &Enqueue) -> Result<(), Rejection> {
    let new: BTreeSet<_> =
        enqueue.jobs.iter().map(|job| &job.queue).filter(|name| state.queue(name).is_none()).collect();
    if state.queues.len() + new.len() > limits::QUEUES_MAX && !new.is_empty() {
        return Err(Rejection::TooManyQueues { max: limits::QUEUES_MAX as u64 });
    }
    Ok(())
}

/// Puts one job into its queue, or finds the one that has its dedupe key.
pub(crate) fn enqueue(state: &State, actor: &Actor, new: NewJob, request_id: Option<&RequestId>) -> Decision<Enqueued> {
    let mut event = AuditEvent::new(actor, "enqueue", "done");
    event.request_id = request_id.map_or("", |request_id| request_id.as_str()).into();
    if let Some(job) = existing(state, &new) {
        let event = about(event, job).detail("deduplicated", true);
        let value = Enqueued { job: job.clone(), deduplicated: true };
        return Decision { value, changes: Vec::new(), event: Some(event) };
    }
    let mut changes = Vec::with_capacity(3);
    let default = QueuePolicy::default();
    let policy = match state.queue(&new.queue) {
        Some((policy, _)) => policy,
        None => {
            changes.push(Change::PutQueue { queue: new.queue.clone(), policy: default.clone() });
            &default
        }
    };
    let job = job(state, policy, &new);
    let event = about(event, &job).detail("payload_sha256", Digest::of(&new.payload));
    changes.push(Change::PutJob(Box::new(job.clone())));
    if !new.payload.is_empty() {
        changes.push(Change::PutBlob { job_id: job.job_id, kind: BlobKind::Payload, bytes: new.payload });
    }
    Decision { value: Enqueued { job, deduplicated: false }, changes, event: Some(event) }
}

fn existing<'s>(state: &'s State, new: &NewJob) -> Option<&'s Job> {
    let dedupe_key = new.dedupe_key.clone()?;
    let job_id = state.dedupe.get(&(new.queue.clone(), dedupe_key))?;
    state.job(*job_id)
}

fn job(state: &State, policy: &QueuePolicy, new: &NewJob) -> Job {
    let now = state.meta().wall_now;
    let run_at = match new.start {
        Start::Now => now,
        Start::After(delay_ms) => now.plus_ms(delay_ms),
        Start::At(run_at) => run_at,
    };
    let max_attempts = new.max_attempts.unwrap_or(policy.max_attempts);
    let notes = JobNotes { dedupe_key: new.dedupe_key.clone(), labels: new.labels.clone(), ..JobNotes::default() };
    let mut job = Job {
        job_id: state.meta().next_job_id,
        queue: new.queue.clone(),
        state: if run_at > now { JobState::Scheduled } else { JobState::Ready },
        priority: new.priority,
        attempts: 0,
        releases: 0,
        max_attempts,
        retry_budget: max_attempts,
        lease_ms: new.lease_ms,
        run_at,
        created_at: now,
        payload_bytes: new.payload.len() as u32,
        claim: None,
        notes: Some(Box::new(notes)),
    };
    job.normalize();
    job
}
