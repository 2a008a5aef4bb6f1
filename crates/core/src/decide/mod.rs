//! Decisions: what a command would change. Every function reads `&State` and changes nothing.

pub(crate) mod cancel;
pub(crate) mod claim;
pub(crate) mod cluster;
pub(crate) mod complete;
pub(crate) mod enqueue;
pub(crate) mod fail;
pub(crate) mod heartbeat;
pub(crate) mod holder;
pub(crate) mod queue;
pub(crate) mod release;
pub(crate) mod reply;
pub(crate) mod retry;
pub(crate) mod time;

use crate::audit::AuditEvent;
use crate::change::Change;
use crate::job::{Job, JobState};
use crate::outcome::Changed;
use crate::rejection::Rejection;
use crate::state::State;

/// What is to be changed and recorded, and what it comes to.
pub(crate) struct Decision<T> {
    /// What it comes to.
    pub value: T,
    /// Carried out in this order.
    pub changes: Vec<Change>,
    /// Recorded after the changes.
    pub event: Option<AuditEvent>,
}

/// The outcome of a verb that changes one job.
pub(crate) type Verdict = Decision<Result<Changed, Rejection>>;

impl<T> Decision<T> {
    /// Changes nothing, and is not recorded.
    pub fn nothing(value: T) -> Self {
        Self { value, changes: Vec::new(), event: None }
    }
}

/// The job is now this.
fn job_becomes(mut job: Job, fenced: bool, event: AuditEvent) -> Verdict {
    job.normalize();
    let job = Box::new(job);
    let changed = Changed { job: job.clone(), fenced };
    Decision { value: Ok(changed), changes: vec![Change::PutJob(job)], event: Some(event) }
}

/// The job as it was, to a verb that had nothing to do.
fn unchanged(job: Job) -> Changed {
    Changed { job: Box::new(job), fenced: false }
}

/// The job is finished now, in this state.
fn finish(state: &State, job: &mut Job, as_state: JobState) {
    job.state = as_state;
    job.notes_mut().finished_at = Some(state.meta().wall_now);
    if let Some(claim) = job.claim.as_deref_mut() {
        claim.lapsed = false;
    }
}

/// What an event about a job says of it.
fn about(event: AuditEvent, job: &Job) -> AuditEvent {
    AuditEvent { job_id: Some(job.job_id), queue: job.queue.as_str().into(), attempts: job.attempts, ..event }
}
