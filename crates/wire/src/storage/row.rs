//! Rows of the replicated state.

use ag_core::Meta;
use ag_core::audit::{AuditHead, AuditRecord};
use ag_core::change::{Answer, Reply, ReplyKey};
use ag_core::command::Member;
use ag_core::digest::Digest;
use ag_core::hash::RowSum;
use ag_core::job::{Claim, Job, JobNotes, JobState};
use ag_core::name::{
    Addr, AttestationType, ClaimedBy, ClusterId, DedupeKey, FieldError, JobId, LogPosition, QueueName, ReplicaId,
};
use ag_core::outcome::Enqueued;
use ag_core::queue::{Fencing, QueuePolicy};
use ag_core::time::{LeaseTime, WallTime};
use ag_proto::storage_v1 as pb;
use bytes::Bytes;
use prost::encoding::{WireType, encode_key, encode_varint};

use super::{DecodeError, FORMAT, put, take, unframe};

/// Appends a job.
pub fn encode_job(job: &Job, out: &mut Vec<u8>) {
    put(out, &job_message(job));
}

/// The job in these bytes.
pub fn decode_job(bytes: &[u8]) -> Result<Job, DecodeError> {
    let what = "job";
    job_of(take(what, bytes)?).map_err(DecodeError::of(what))
}

/// Appends a queue.
pub fn encode_queue(queue: &QueueName, policy: &QueuePolicy, out: &mut Vec<u8>) {
    let message = pb::Queue {
        queue: queue.to_string(),
        paused: policy.paused,
        default_lease_ms: policy.default_lease_ms,
        max_attempts: policy.max_attempts,
        retention_ms: policy.retention_ms,
        concurrency_limit: policy.concurrency_limit,
        fencing_required: policy.fencing == Fencing::Required,
    };
    put(out, &message);
}

/// The queue in these bytes.
pub fn decode_queue(bytes: &[u8]) -> Result<(QueueName, QueuePolicy), DecodeError> {
    let what = "queue";
    let queue: pb::Queue = take(what, bytes)?;
    let policy = QueuePolicy {
        paused: queue.paused,
        default_lease_ms: queue.default_lease_ms,
        max_attempts: queue.max_attempts,
        retention_ms: queue.retention_ms,
        concurrency_limit: queue.concurrency_limit,
        fencing: if queue.fencing_required { Fencing::Required } else { Fencing::Optional },
    };
    Ok((QueueName::parse("queue", &queue.queue).map_err(DecodeError::of(what))?, policy))
}

/// Appends a reply.
pub fn encode_reply(reply: &Reply, out: &mut Vec<u8>) {
    let message = pb::Reply {
        reply_key: Bytes::copy_from_slice(&reply.reply_key.0),
        content: Bytes::copy_from_slice(&reply.content),
        term: reply.applied_at.term,
        log_index: reply.applied_at.log_index,
        answered_at_ms: reply.answered_at.0,
        reply_number: reply.reply_number,
    };
    put(out, &message);
}

/// The reply in these bytes.
pub fn decode_reply(bytes: &[u8]) -> Result<Reply, DecodeError> {
    let what = "reply";
    let reply: pb::Reply = take(what, bytes)?;
    Ok(Reply {
        reply_key: ReplyKey(array("reply_key", &reply.reply_key).map_err(DecodeError::of(what))?),
        content: array("content", &reply.content).map_err(DecodeError::of(what))?,
        applied_at: LogPosition { term: reply.term, log_index: reply.log_index },
        answered_at: LeaseTime(reply.answered_at_ms),
        reply_number: reply.reply_number,
    })
}

/// Appends an answer.
pub fn encode_answer(answer: &Answer, out: &mut Vec<u8>) {
    use pb::answer::Answer as Message;
    let enqueued = |enqueued: &Enqueued| pb::EnqueuedJob {
        job: Some(job_message(&enqueued.job)),
        deduplicated: enqueued.deduplicated,
    };
    let message = match answer {
        Answer::Enqueued(jobs) => Message::Enqueued(pb::EnqueuedAnswer { jobs: jobs.iter().map(enqueued).collect() }),
        Answer::Claimed(jobs) => Message::Claimed(pb::ClaimedAnswer { jobs: jobs.iter().map(job_message).collect() }),
        Answer::Completed(job) => Message::Completed(job_message(job)),
    };
    put(out, &pb::Answer { answer: Some(message) });
}

/// The answer in these bytes.
pub fn decode_answer(bytes: &[u8]) -> Result<Answer, DecodeError> {
    use pb::answer::Answer as Message;
    let what = "answer";
    let answer: pb::Answer = take(what, bytes)?;
    let absent = |field| move || FieldError::new(field, "must be present");
    let enqueued = |enqueued: pb::EnqueuedJob| {
        let job = enqueued.job.ok_or_else(absent("job")).and_then(job_of)?;
        Ok(Enqueued { job, deduplicated: enqueued.deduplicated })
    };
    let decoded = match answer.answer {
        None => Err(absent("answer")()),
        Some(Message::Enqueued(answer)) => {
            answer.jobs.into_iter().map(enqueued).collect::<Result<_, _>>().map(Answer::Enqueued)
        }
        Some(Message::Claimed(answer)) => {
            answer.jobs.into_iter().map(job_of).collect::<Result<_, _>>().map(Answer::Claimed)
        }
        Some(Message::Completed(job)) => job_of(job).map(|job| Answer::Completed(Box::new(job))),
    };
    decoded.map_err(DecodeError::of(what))
}

/// Appends a member.
pub fn encode_member(member: &Member, out: &mut Vec<u8>) {
    let message = pb::Member {
        replica_id: member.replica_id.0,
        addr: member.addr.to_string(),
        peer_addr: member.peer_addr.to_string(),
        release: member.release.clone(),
        min_version: member.min_version,
        max_version: member.max_version,
    };
    put(out, &message);
}

/// The member in these bytes.
pub fn decode_member(bytes: &[u8]) -> Result<Member, DecodeError> {
    let what = "member";
    let member: pb::Member = take(what, bytes)?;
    Ok(Member {
        replica_id: ReplicaId(member.replica_id),
        addr: Addr::parse("addr", &member.addr).map_err(DecodeError::of(what))?,
        peer_addr: Addr::parse("peer_addr", &member.peer_addr).map_err(DecodeError::of(what))?,
        release: member.release,
        min_version: member.min_version,
        max_version: member.max_version,
    })
}

/// Appends the single values of a state.
pub fn encode_meta(meta: &Meta, out: &mut Vec<u8>) {
    let cluster_id = if meta.cluster_id.is_set() { Bytes::copy_from_slice(&meta.cluster_id.0) } else { Bytes::new() };
    let message = pb::Meta {
        cluster_id,
        cluster_version: meta.cluster_version,
        version_held: meta.version_held,
        lease_now_ms: meta.lease_now.0,
        wall_now_ms: meta.wall_now.0,
        next_job_id: meta.next_job_id.0,
        next_replica_id: meta.next_replica_id.0,
        reply_number: meta.reply_number,
        audit_sequence: meta.audit_head.sequence,
        audit_hash: Bytes::copy_from_slice(&meta.audit_head.hash.0),
        row_sum: Bytes::copy_from_slice(&meta.rows.to_bytes()),
        content_head: Bytes::copy_from_slice(&meta.content_head.0),
    };
    put(out, &message);
}

/// The single values in these bytes.
pub fn decode_meta(bytes: &[u8]) -> Result<Meta, DecodeError> {
    let what = "state's meta row";
    meta_of(take(what, bytes)?).map_err(DecodeError::of(what))
}

/// Appends an attestation. Its bytes are copied once.
pub fn encode_attestation(attestation_type: &AttestationType, bytes: &[u8], out: &mut Vec<u8>) {
    const ATTESTATION: u32 = 2;
    let attestation_type = attestation_type.to_string();
    put(out, &pb::Attestation { attestation_type, attestation: Bytes::new() });
    if !bytes.is_empty() {
        encode_key(ATTESTATION, WireType::LengthDelimited, out);
        encode_varint(bytes.len() as u64, out);
        out.extend_from_slice(bytes);
    }
}

/// The attestation in these bytes.
pub fn decode_attestation(bytes: &[u8]) -> Result<(AttestationType, Vec<u8>), DecodeError> {
    let what = "attestation";
    let message: pb::Attestation = take(what, bytes)?;
    let attestation_type = AttestationType::parse("attestation_type", &message.attestation_type);
    Ok((attestation_type.map_err(DecodeError::of(what))?, message.attestation.into()))
}

/// Appends a blob: the format, then its bytes as they are.
pub fn encode_blob(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(1 + bytes.len());
    out.push(FORMAT);
    out.extend_from_slice(bytes);
}

/// The blob in these bytes.
pub fn decode_blob(bytes: &[u8]) -> Result<&[u8], DecodeError> {
    unframe("blob", bytes)
}

/// Appends a record of the audit log: the format, the 32 bytes of the hash before, then its canonical bytes.
pub fn encode_audit(record: &AuditRecord, out: &mut Vec<u8>) {
    out.push(FORMAT);
    out.extend_from_slice(&record.previous_hash.0);
    out.extend_from_slice(&record.canonical());
}

/// The record in these bytes. Its hash is computed, not read.
pub fn decode_audit(bytes: &[u8]) -> Result<AuditRecord, DecodeError> {
    let what = "record of the audit log";
    let rest = unframe(what, bytes)?;
    let short = || DecodeError::field(what, "previous_hash", "must be 32 bytes");
    let (previous_hash, canonical) = rest.split_first_chunk::<32>().ok_or_else(short)?;
    AuditRecord::from_canonical(Digest(*previous_hash), canonical).map_err(DecodeError::Audit)
}

fn job_message(job: &Job) -> pb::Job {
    let notes = job.notes();
    pb::Job {
        job_id: job.job_id.0,
        queue: job.queue.to_string(),
        state: state_message(job.state).into(),
        priority: job.priority,
        attempts: job.attempts,
        releases: job.releases,
        max_attempts: job.max_attempts,
        retry_budget: job.retry_budget,
        lease_ms: job.lease_ms,
        run_at_ms: job.run_at.0,
        created_at_ms: job.created_at.0,
        payload_bytes: job.payload_bytes,
        claim: job.claim.as_deref().map(claim_message),
        dedupe_key: notes.dedupe_key.as_ref().map(ToString::to_string).unwrap_or_default(),
        labels: notes.labels.clone(),
        reason: notes.reason.clone(),
        progress_bytes: notes.progress_bytes,
        result_bytes: notes.result_bytes,
        attestation: notes.attestation.map(|digest| Bytes::copy_from_slice(&digest.0)).unwrap_or_default(),
        finished_at_ms: notes.finished_at.map(|at| at.0),
        cancel_requested_at_ms: notes.cancel_requested_at.map(|at| at.0),
    }
}

fn job_of(message: pb::Job) -> Result<Job, FieldError> {
    let text = message.dedupe_key;
    let notes = JobNotes {
        dedupe_key: if text.is_empty() { None } else { Some(DedupeKey::parse("dedupe_key", &text)?) },
        labels: message.labels,
        reason: message.reason,
        progress_bytes: message.progress_bytes,
        result_bytes: message.result_bytes,
        attestation: match message.attestation.is_empty() {
            true => None,
            false => Some(Digest(array("attestation", &message.attestation)?)),
        },
        finished_at: message.finished_at_ms.map(WallTime),
        cancel_requested_at: message.cancel_requested_at_ms.map(WallTime),
    };
    let mut job = Job {
        job_id: JobId(message.job_id),
        queue: QueueName::parse("queue", &message.queue)?,
        state: state_of(message.state)?,
        priority: message.priority,
        attempts: message.attempts,
        releases: message.releases,
        max_attempts: message.max_attempts,
        retry_budget: message.retry_budget,
        lease_ms: message.lease_ms,
        run_at: WallTime(message.run_at_ms),
        created_at: WallTime(message.created_at_ms),
        payload_bytes: message.payload_bytes,
        claim: message.claim.map(claim_of).transpose()?.map(Box::new),
        notes: Some(Box::new(notes)),
    };
    job.normalize();
    Ok(job)
}

fn state_message(state: JobState) -> pb::JobState {
    match state {
        JobState::Scheduled => pb::JobState::Scheduled,
        JobState::Ready => pb::JobState::Ready,
        JobState::Claimed => pb::JobState::Claimed,
        JobState::Completed => pb::JobState::Completed,
        JobState::Dead => pb::JobState::Dead,
        JobState::Cancelled => pb::JobState::Cancelled,
    }
}

fn state_of(number: i32) -> Result<JobState, FieldError> {
    match pb::JobState::try_from(number) {
        Ok(pb::JobState::Scheduled) => Ok(JobState::Scheduled),
        Ok(pb::JobState::Ready) => Ok(JobState::Ready),
        Ok(pb::JobState::Claimed) => Ok(JobState::Claimed),
        Ok(pb::JobState::Completed) => Ok(JobState::Completed),
        Ok(pb::JobState::Dead) => Ok(JobState::Dead),
        Ok(pb::JobState::Cancelled) => Ok(JobState::Cancelled),
        Ok(pb::JobState::Unspecified) | Err(_) => {
            Err(FieldError::new("state", format!("must be a known state, not {number}")))
        }
    }
}

fn claim_message(claim: &Claim) -> pb::Claim {
    pb::Claim {
        claimed_by: claim.claimed_by.as_str().to_owned(),
        lease_ms: claim.lease_ms,
        lease_ends_at_ms: claim.lease_ends_at.0,
        lease_ends_wall_ms: claim.lease_ends_wall.0,
        lapsed: claim.lapsed,
    }
}

fn claim_of(message: pb::Claim) -> Result<Claim, FieldError> {
    Ok(Claim {
        claimed_by: ClaimedBy::from_stored(&message.claimed_by)?,
        lease_ms: message.lease_ms,
        lease_ends_at: LeaseTime(message.lease_ends_at_ms),
        lease_ends_wall: WallTime(message.lease_ends_wall_ms),
        lapsed: message.lapsed,
    })
}

fn meta_of(message: pb::Meta) -> Result<Meta, FieldError> {
    Ok(Meta {
        cluster_id: match message.cluster_id.is_empty() {
            true => ClusterId::default(),
            false => ClusterId(array("cluster_id", &message.cluster_id)?),
        },
        cluster_version: message.cluster_version,
        version_held: message.version_held,
        lease_now: LeaseTime(message.lease_now_ms),
        wall_now: WallTime(message.wall_now_ms),
        next_job_id: JobId(message.next_job_id),
        next_replica_id: ReplicaId(message.next_replica_id),
        reply_number: message.reply_number,
        audit_head: AuditHead {
            sequence: message.audit_sequence,
            hash: Digest(array("audit_hash", &message.audit_hash)?),
        },
        rows: RowSum::from_bytes(array("row_sum", &message.row_sum)?),
        content_head: Digest(array("content_head", &message.content_head)?),
    })
}

fn array<const N: usize>(field: &str, bytes: &[u8]) -> Result<[u8; N], FieldError> {
    bytes.try_into().map_err(|_| FieldError::new(field, format!("must be {N} bytes")))
}
