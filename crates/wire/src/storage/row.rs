//! Rows of the stored state.

use ag_core::Meta;
use ag_core::audit::{AuditHead, AuditRecord};
use ag_core::change::{Answer, Reply, ReplyKey};
use ag_core::command::Member;
use ag_core::digest::Digest;
use ag_core::hash::RowSum;
use ag_core::job::{Claim, Job, JobNotes, JobState};
use ag_core::name::{Addr, AttestationType, ClaimedBy, ClusterId, DedupeKey, JobId, LogPosition, QueueName, ReplicaId};
use ag_core::outcome::Enqueued;
use ag_core::queue::QueuePolicy;
use ag_core::time::{LeaseTime, WallTime};
use ag_proto::storage_v1 as stored;

use super::{DecodeError, array, decode, encode};

/// The row of a job.
pub fn encode_job(job: &Job) -> Vec<u8> {
    encode(&from_job(job))
}

/// The job of a row.
pub fn decode_job(bytes: &[u8]) -> Result<Job, DecodeError> {
    to_job(decode(bytes)?)
}

/// The row of a queue.
pub fn encode_queue(queue: &QueueName, policy: &QueuePolicy) -> Vec<u8> {
    encode(&stored::QueueRow {
        queue: queue.as_str().into(),
        paused: policy.paused,
        default_lease_ms: policy.default_lease_ms,
        max_attempts: policy.max_attempts,
        retention_ms: policy.retention_ms,
        concurrency_limit: policy.concurrency_limit,
    })
}

/// The queue of a row.
pub fn decode_queue(bytes: &[u8]) -> Result<(QueueName, QueuePolicy), DecodeError> {
    let row: stored::QueueRow = decode(bytes)?;
    let policy = QueuePolicy {
        paused: row.paused,
        default_lease_ms: row.default_lease_ms,
        max_attempts: row.max_attempts,
        retention_ms: row.retention_ms,
        concurrency_limit: row.concurrency_limit,
    };
    Ok((queue(&row.queue)?, policy))
}

/// The row of a reply.
pub fn encode_reply(reply: &Reply) -> Vec<u8> {
    encode(&stored::ReplyRow {
        reply_key: reply.reply_key.0.to_vec().into(),
        content: reply.content.to_vec().into(),
        term: reply.applied_at.term,
        log_index: reply.applied_at.log_index,
        answered_at_ms: reply.answered_at.0,
        reply_number: reply.reply_number,
    })
}

/// The reply of a row.
pub fn decode_reply(bytes: &[u8]) -> Result<Reply, DecodeError> {
    let row: stored::ReplyRow = decode(bytes)?;
    Ok(Reply {
        reply_key: ReplyKey(array(&row.reply_key, "reply_key has not 16 bytes")?),
        content: array(&row.content, "content has not 16 bytes")?,
        applied_at: LogPosition { term: row.term, log_index: row.log_index },
        answered_at: LeaseTime(row.answered_at_ms),
        reply_number: row.reply_number,
    })
}

/// The row of a kept answer.
pub fn encode_answer(answer: &Answer) -> Vec<u8> {
    use stored::answer_row::Answer as Row;
    let row = match answer {
        Answer::Enqueued(jobs) => {
            let job = |enqueued: &Enqueued| stored::EnqueuedJob {
                job: Some(from_job(&enqueued.job)),
                deduplicated: enqueued.deduplicated,
            };
            Row::Enqueued(stored::EnqueuedAnswer { jobs: jobs.iter().map(job).collect() })
        }
        Answer::Claimed(jobs) => Row::Claimed(stored::ClaimedAnswer { jobs: jobs.iter().map(from_job).collect() }),
        Answer::Completed(job) => Row::Completed(from_job(job)),
    };
    encode(&stored::AnswerRow { answer: Some(row) })
}

/// The kept answer of a row.
pub fn decode_answer(bytes: &[u8]) -> Result<Answer, DecodeError> {
    use stored::answer_row::Answer as Row;
    let row: stored::AnswerRow = decode(bytes)?;
    match row.answer {
        None => Err(DecodeError::Value("answer is missing")),
        Some(Row::Enqueued(answer)) => {
            let enqueued = |row: stored::EnqueuedJob| -> Result<Enqueued, DecodeError> {
                let job = to_job(row.job.ok_or(DecodeError::Value("job is missing"))?)?;
                Ok(Enqueued { job, deduplicated: row.deduplicated })
            };
            answer.jobs.into_iter().map(enqueued).collect::<Result<_, _>>().map(Answer::Enqueued)
        }
        Some(Row::Claimed(answer)) => {
            answer.jobs.into_iter().map(to_job).collect::<Result<_, _>>().map(Answer::Claimed)
        }
        Some(Row::Completed(job)) => Ok(Answer::Completed(Box::new(to_job(job)?))),
    }
}

/// The row of a member.
pub fn encode_member(member: &Member) -> Vec<u8> {
    encode(&from_member(member))
}

/// The member of a row.
pub fn decode_member(bytes: &[u8]) -> Result<Member, DecodeError> {
    to_member(decode(bytes)?)
}

/// The row of the single values.
pub fn encode_meta(meta: &Meta) -> Vec<u8> {
    encode(&stored::MetaRow {
        cluster_id: meta.cluster_id.0.to_vec().into(),
        cluster_version: meta.cluster_version,
        version_held: meta.version_held,
        lease_now_ms: meta.lease_now.0,
        wall_now_ms: meta.wall_now.0,
        next_job_number: meta.next_job_id.0,
        next_replica_id: meta.next_replica_id.0,
        reply_number: meta.reply_number,
        audit_sequence: meta.audit_head.sequence,
        audit_hash: meta.audit_head.hash.0.to_vec().into(),
        row_sum: meta.rows.to_bytes().to_vec().into(),
    })
}

/// The single values of a row.
pub fn decode_meta(bytes: &[u8]) -> Result<Meta, DecodeError> {
    let row: stored::MetaRow = decode(bytes)?;
    Ok(Meta {
        cluster_id: ClusterId(array(&row.cluster_id, "cluster_id has not 16 bytes")?),
        cluster_version: row.cluster_version,
        version_held: row.version_held,
        lease_now: LeaseTime(row.lease_now_ms),
        wall_now: WallTime(row.wall_now_ms),
        next_job_id: JobId(row.next_job_number),
        next_replica_id: ReplicaId(row.next_replica_id),
        reply_number: row.reply_number,
        audit_head: AuditHead {
            sequence: row.audit_sequence,
            hash: Digest(array(&row.audit_hash, "audit_hash has not 32 bytes")?),
        },
        rows: RowSum::from_bytes(array(&row.row_sum, "row_sum has not 32 bytes")?),
    })
}

/// The row of an attestation.
pub fn encode_attestation(attestation_type: &AttestationType, attestation: &[u8]) -> Vec<u8> {
    encode(&stored::AttestationRow {
        attestation_type: attestation_type.as_str().into(),
        attestation: attestation.to_vec().into(),
    })
}

/// Media type and bytes of an attestation's row.
pub fn decode_attestation(bytes: &[u8]) -> Result<(AttestationType, Vec<u8>), DecodeError> {
    let row: stored::AttestationRow = decode(bytes)?;
    let parsed = AttestationType::parse("attestation_type", &row.attestation_type).map_err(DecodeError::Field)?;
    Ok((parsed, row.attestation.into()))
}

/// The row of an audit record.
pub fn encode_audit(record: &AuditRecord) -> Vec<u8> {
    encode(&stored::AuditRow {
        previous_hash: record.previous_hash.0.to_vec().into(),
        canonical: record.canonical().into(),
    })
}

/// The audit record of a row; its hash is computed anew.
pub fn decode_audit(bytes: &[u8]) -> Result<AuditRecord, DecodeError> {
    let row: stored::AuditRow = decode(bytes)?;
    let previous_hash = Digest(array(&row.previous_hash, "previous_hash has not 32 bytes")?);
    AuditRecord::from_canonical(previous_hash, &row.canonical).map_err(DecodeError::Audit)
}

fn queue(name: &str) -> Result<QueueName, DecodeError> {
    QueueName::parse("queue", name).map_err(DecodeError::Field)
}

fn state_number(state: JobState) -> u32 {
    match state {
        JobState::Scheduled => 1,
        JobState::Ready => 2,
        JobState::Claimed => 3,
        JobState::Completed => 4,
        JobState::Dead => 5,
        JobState::Cancelled => 6,
    }
}

fn state_of(number: u32) -> Result<JobState, DecodeError> {
    Ok(match number {
        1 => JobState::Scheduled,
        2 => JobState::Ready,
        3 => JobState::Claimed,
        4 => JobState::Completed,
        5 => JobState::Dead,
        6 => JobState::Cancelled,
        _ => return Err(DecodeError::Value("state is none")),
    })
}

fn from_job(job: &Job) -> stored::JobRow {
    let notes = job.notes();
    stored::JobRow {
        job_number: job.job_id.0,
        queue: job.queue.as_str().into(),
        state: state_number(job.state),
        priority: job.priority,
        attempts: job.attempts,
        releases: job.releases,
        max_attempts: job.max_attempts,
        retry_budget: job.retry_budget,
        lease_ms: job.lease_ms,
        run_at_ms: job.run_at.0,
        created_at_ms: job.created_at.0,
        payload_bytes: job.payload_bytes,
        claim: job.claim.as_deref().map(from_claim),
        dedupe_key: notes.dedupe_key.as_ref().map_or("", |key| key.as_str()).into(),
        labels: notes.labels.clone(),
        reason: notes.reason.clone(),
        progress_bytes: notes.progress_bytes,
        result_bytes: notes.result_bytes,
        attestation: notes.attestation.map_or_else(Vec::new, |digest| digest.0.to_vec()).into(),
        finished_at_ms: notes.finished_at.map(|at| at.0),
        cancel_requested_at_ms: notes.cancel_requested_at.map(|at| at.0),
    }
}

fn from_claim(claim: &Claim) -> stored::ClaimRow {
    stored::ClaimRow {
        claimed_by: claim.claimed_by.as_str().into(),
        lease_ms: claim.lease_ms,
        lease_ends_at_ms: claim.lease_ends_at.0,
        lease_ends_wall_ms: claim.lease_ends_wall.0,
        lapsed: claim.lapsed,
    }
}

fn to_job(row: stored::JobRow) -> Result<Job, DecodeError> {
    let notes = JobNotes {
        dedupe_key: match row.dedupe_key.as_str() {
            "" => None,
            key => Some(DedupeKey::parse("dedupe_key", key).map_err(DecodeError::Field)?),
        },
        labels: row.labels,
        reason: row.reason,
        progress_bytes: row.progress_bytes,
        result_bytes: row.result_bytes,
        attestation: match row.attestation.len() {
            0 => None,
            _ => Some(Digest(array(&row.attestation, "attestation has not 32 bytes")?)),
        },
        finished_at: row.finished_at_ms.map(WallTime),
        cancel_requested_at: row.cancel_requested_at_ms.map(WallTime),
    };
    let mut job = Job {
        job_id: JobId(row.job_number),
        queue: queue(&row.queue)?,
        state: state_of(row.state)?,
        priority: row.priority,
        attempts: row.attempts,
        releases: row.releases,
        max_attempts: row.max_attempts,
        retry_budget: row.retry_budget,
        lease_ms: row.lease_ms,
        run_at: WallTime(row.run_at_ms),
        created_at: WallTime(row.created_at_ms),
        payload_bytes: row.payload_bytes,
        claim: row.claim.map(to_claim).transpose()?,
        notes: Some(Box::new(notes)),
    };
    job.normalize();
    Ok(job)
}

fn to_claim(row: stored::ClaimRow) -> Result<Box<Claim>, DecodeError> {
    Ok(Box::new(Claim {
        claimed_by: ClaimedBy::from_stored(&row.claimed_by).map_err(DecodeError::Field)?,
        lease_ms: row.lease_ms,
        lease_ends_at: LeaseTime(row.lease_ends_at_ms),
        lease_ends_wall: WallTime(row.lease_ends_wall_ms),
        lapsed: row.lapsed,
    }))
}

pub(super) fn from_member(member: &Member) -> stored::MemberRow {
    stored::MemberRow {
        replica_id: member.replica_id.0,
        addr: member.addr.as_str().into(),
        peer_addr: member.peer_addr.as_str().into(),
        release: member.release.clone(),
        min_version: member.min_version,
        max_version: member.max_version,
    }
}

pub(super) fn to_member(row: stored::MemberRow) -> Result<Member, DecodeError> {
    Ok(Member {
        replica_id: ReplicaId(row.replica_id),
        addr: Addr::parse("addr", &row.addr).map_err(DecodeError::Field)?,
        peer_addr: Addr::parse("peer_addr", &row.peer_addr).map_err(DecodeError::Field)?,
        release: row.release,
        min_version: row.min_version,
        max_version: row.max_version,
    })
}
