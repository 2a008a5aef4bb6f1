//! What the state machine knows → what clients see.

use ag_core::audit::{AuditHead, AuditRecord};
use ag_core::command::Actor;
use ag_core::job::{Job, JobState};
use ag_core::limits;
use ag_core::outcome::Extended;
use ag_core::queue::{Fencing, QueueCounts, QueuePolicy};
use ag_core::time::WallTime;
use ag_proto::v1;

/// The bytes of a job that the state machine does not keep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blobs {
    /// What the producer gave.
    pub payload: Vec<u8>,
    /// What the last heartbeat with progress gave.
    pub progress: Vec<u8>,
    /// What the completion gave.
    pub result: Vec<u8>,
}

/// A job, with these bytes. `queue_lease_ms` is what its queue gives to jobs that name no lease.
pub fn job(job: &Job, blobs: Blobs, queue_lease_ms: u32) -> v1::Job {
    let notes = job.notes();
    let claim = job.claim.as_deref();
    v1::Job {
        job_id: job.job_id.to_string(),
        queue: job.queue.as_str().into(),
        payload: blobs.payload,
        state: job_state(job.state).into(),
        priority: job.priority,
        attempts: job.attempts,
        max_attempts: job.max_attempts,
        claimed_by: claim.map_or("", |claim| claim.claimed_by.as_str()).into(),
        lease_expires_at: claim
            .filter(|_| job.state == JobState::Claimed)
            .map(|claim| timestamp(claim.lease_ends_wall)),
        run_at: Some(timestamp(job.run_at)),
        created_at: Some(timestamp(job.created_at)),
        finished_at: notes.finished_at.map(timestamp),
        progress: blobs.progress,
        result: blobs.result,
        attestation_digest: notes.attestation.map_or_else(String::new, |digest| digest.to_string()),
        reason: notes.reason.clone(),
        dedupe_key: notes.dedupe_key.as_ref().map_or("", |key| key.as_str()).into(),
        labels: notes.labels.clone(),
        cancel_requested: job.cancel_requested(),
        releases: job.releases,
        lease: Some(duration(u64::from(lease_ms(job, queue_lease_ms)))),
        lapsed: job.is_lapsed(),
        deduplicated: false,
        cancel_requested_at: notes.cancel_requested_at.map(timestamp),
        fenced: false,
    }
}

/// The lease of a claimed job is its claim's; of any other, what its next claim gets.
fn lease_ms(job: &Job, queue_lease_ms: u32) -> u32 {
    match job.claim.as_deref().filter(|_| job.state == JobState::Claimed) {
        Some(claim) => claim.lease_ms,
        None => job.lease_ms.unwrap_or(queue_lease_ms),
    }
}

/// The state's name on the wire.
pub fn job_state(state: JobState) -> v1::JobState {
    match state {
        JobState::Scheduled => v1::JobState::Scheduled,
        JobState::Ready => v1::JobState::Ready,
        JobState::Claimed => v1::JobState::Claimed,
        JobState::Completed => v1::JobState::Completed,
        JobState::Dead => v1::JobState::Dead,
        JobState::Cancelled => v1::JobState::Cancelled,
    }
}

/// The state of this name; `None` for unspecified.
pub fn state_filter(state: v1::JobState) -> Option<JobState> {
    match state {
        v1::JobState::Unspecified => None,
        v1::JobState::Scheduled => Some(JobState::Scheduled),
        v1::JobState::Ready => Some(JobState::Ready),
        v1::JobState::Claimed => Some(JobState::Claimed),
        v1::JobState::Completed => Some(JobState::Completed),
        v1::JobState::Dead => Some(JobState::Dead),
        v1::JobState::Cancelled => Some(JobState::Cancelled),
    }
}

/// An extended claim.
pub fn heartbeat(extended: &Extended) -> v1::HeartbeatJobResponse {
    v1::HeartbeatJobResponse {
        lease_expires_at: Some(timestamp(extended.lease_ends_wall)),
        cancel_requested: extended.cancel_requested,
        fenced: extended.fenced,
        lease: Some(duration(extended.lease_ms)),
    }
}

/// A queue.
pub fn queue(
    name: &str,
    policy: &QueuePolicy,
    counts: QueueCounts,
    oldest_ready: Option<WallTime>,
    wall_now: WallTime,
) -> v1::Queue {
    v1::Queue {
        queue: name.into(),
        policy: Some(v1::QueuePolicy {
            paused: policy.paused,
            default_lease: Some(duration(policy.default_lease_ms.into())),
            max_attempts: policy.max_attempts,
            retention: Some(duration(policy.retention_ms)),
            concurrency_limit: policy.concurrency_limit.unwrap_or(0),
            fencing: match policy.fencing {
                Fencing::Optional => v1::Fencing::Optional,
                Fencing::Required => v1::Fencing::Required,
            }
            .into(),
        }),
        counts: Some(v1::QueueCounts {
            scheduled: counts.scheduled,
            ready: counts.ready,
            claimed: counts.claimed,
            lapsed: counts.lapsed,
            completed: counts.completed,
            dead: counts.dead,
            cancelled: counts.cancelled,
        }),
        oldest_ready_age: oldest_ready.map(|at| duration(wall_now.0.saturating_sub(at.0))),
    }
}

/// An audit record.
pub fn audit_record(record: &AuditRecord) -> v1::AuditRecord {
    let event = &record.event;
    v1::AuditRecord {
        sequence: record.sequence,
        hash: record.hash.to_string(),
        previous_hash: record.previous_hash.to_string(),
        canonical: record.canonical(),
        term: record.applied_at.term,
        log_index: record.applied_at.log_index,
        at: Some(timestamp(record.wall_now)),
        actor: match &event.actor {
            Actor::System => "system".into(),
            Actor::Principal(principal) => principal.as_str().into(),
        },
        verb: event.verb.clone(),
        outcome: event.outcome.clone(),
        job_id: event.job_id.map_or_else(String::new, |job_id| job_id.to_string()),
        queue: event.queue.clone(),
        attempts: event.attempts,
        worker: event.worker.clone(),
        request_id: event.request_id.clone(),
        details: event.details.clone(),
    }
}

/// The head of the audit log.
pub fn audit_head(head: AuditHead) -> v1::AuditHead {
    v1::AuditHead { sequence: head.sequence, hash: head.hash.to_string() }
}

/// A wall time, at most the last that the wire can say.
pub fn timestamp(at: WallTime) -> prost_types::Timestamp {
    let at = at.0.min(limits::WALL_MS_MAX);
    prost_types::Timestamp { seconds: (at / 1_000) as i64, nanos: (at % 1_000 * 1_000_000) as i32 }
}

/// A duration of milliseconds.
pub fn duration(ms: u64) -> prost_types::Duration {
    prost_types::Duration { seconds: (ms / 1_000) as i64, nanos: (ms % 1_000 * 1_000_000) as i32 }
}
