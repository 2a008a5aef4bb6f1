//! The canonical bytes of rows and requests: what hashes go over. Only ever written, never read back.
//!
//! A value is a sequence of fields, each a tag byte, and numbers of 8 bytes big-endian, or a length of 8 bytes and
//! bytes. A field that has its default is left out, so a field that a later release adds changes nothing for values
//! that do not use it. Layouts are fixed for ever, as hashes over them are stored and compared between releases.

use crate::change::{Answer, BlobKind, Reply};
use crate::command::{ClaimJobs, Complete, Enqueue, Member, NewJob, Start};
use crate::digest::Digest;
use crate::job::{Claim, Job, JobState};
use crate::name::{AttestationType, JobId, QueueName};
use crate::queue::{Fencing, QueuePolicy};

/// Writes fields.
#[derive(Default)]
pub(crate) struct Writer {
    /// What was written.
    pub bytes: Vec<u8>,
}

impl Writer {
    /// A row or request of this kind.
    pub fn of(kind: &str) -> Self {
        let mut writer = Self { bytes: Vec::with_capacity(192) };
        writer.bytes(0, kind.as_bytes());
        writer
    }

    /// A number, left out when 0.
    pub fn number(&mut self, tag: u8, value: u64) {
        if value != 0 {
            self.bytes.push(tag);
            self.bytes.extend_from_slice(&value.to_be_bytes());
        }
    }

    /// A number that may be absent; 0 is not the same as absent.
    pub fn maybe(&mut self, tag: u8, value: Option<u64>) {
        if let Some(value) = value {
            self.bytes.push(tag);
            self.bytes.extend_from_slice(&value.to_be_bytes());
        }
    }

    /// Bytes, left out when empty.
    pub fn bytes(&mut self, tag: u8, value: &[u8]) {
        if !value.is_empty() {
            self.always(tag, value);
        }
    }

    /// Bytes, written even when empty.
    pub fn always(&mut self, tag: u8, value: &[u8]) {
        self.bytes.push(tag);
        self.bytes.extend_from_slice(&(value.len() as u64).to_be_bytes());
        self.bytes.extend_from_slice(value);
    }
}

fn signed(value: i32) -> u64 {
    u64::from(value.cast_unsigned())
}

fn state_number(state: JobState) -> u64 {
    match state {
        JobState::Scheduled => 1,
        JobState::Ready => 2,
        JobState::Claimed => 3,
        JobState::Completed => 4,
        JobState::Dead => 5,
        JobState::Cancelled => 6,
    }
}

/// The row of a job.
pub(crate) fn job(job: &Job) -> Vec<u8> {
    let mut w = Writer::of("job");
    w.number(1, job.job_id.0);
    w.bytes(2, job.queue.as_str().as_bytes());
    w.number(3, state_number(job.state));
    w.number(4, signed(job.priority));
    w.number(5, job.attempts.into());
    w.number(6, job.releases.into());
    w.number(7, job.max_attempts.into());
    w.number(8, job.retry_budget.into());
    w.maybe(9, job.lease_ms.map(u64::from));
    w.number(10, job.run_at.0);
    w.number(11, job.created_at.0);
    w.number(12, job.payload_bytes.into());
    if let Some(claim) = &job.claim {
        write_claim(&mut w, claim);
    }
    if let Some(notes) = &job.notes {
        w.bytes(20, notes.dedupe_key.as_ref().map_or("", |key| key.as_str()).as_bytes());
        for (key, value) in &notes.labels {
            w.always(21, key.as_bytes());
            w.always(22, value.as_bytes());
        }
        w.bytes(23, notes.reason.as_bytes());
        w.number(24, notes.progress_bytes.into());
        w.number(25, notes.result_bytes.into());
        w.bytes(26, notes.attestation.as_ref().map_or(&[], |digest| &digest.0[..]));
        w.maybe(27, notes.finished_at.map(|at| at.0));
        w.maybe(28, notes.cancel_requested_at.map(|at| at.0));
    }
    w.bytes
}

fn write_claim(w: &mut Writer, claim: &Claim) {
    w.always(13, claim.claimed_by.as_str().as_bytes());
    w.number(14, claim.lease_ms.into());
    w.number(15, claim.lease_ends_at.0);
    w.number(16, claim.lease_ends_wall.0);
    w.number(17, claim.lapsed.into());
}

/// The row of a queue.
pub(crate) fn queue(name: &QueueName, policy: &QueuePolicy) -> Vec<u8> {
    let mut w = Writer::of("queue");
    w.bytes(1, name.as_str().as_bytes());
    w.number(2, policy.paused.into());
    w.number(3, policy.default_lease_ms.into());
    w.number(4, policy.max_attempts.into());
    w.number(5, policy.retention_ms);
    w.maybe(6, policy.concurrency_limit.map(u64::from));
    w.number(7, (policy.fencing == Fencing::Required).into());
    w.bytes
}

/// The row of a reply.
pub(crate) fn reply(reply: &Reply) -> Vec<u8> {
    let mut w = Writer::of("reply");
    w.bytes(1, &reply.reply_key.0);
    w.bytes(2, &reply.content);
    w.number(3, reply.applied_at.term);
    w.number(4, reply.applied_at.log_index);
    w.number(5, reply.answered_at.0);
    w.number(6, reply.reply_number);
    w.bytes
}

/// The row of a member.
pub(crate) fn member(member: &Member) -> Vec<u8> {
    let mut w = Writer::of("member");
    w.number(1, member.replica_id.0);
    w.bytes(2, member.addr.as_str().as_bytes());
    w.bytes(3, member.peer_addr.as_str().as_bytes());
    w.bytes(4, member.release.as_bytes());
    w.number(5, member.min_version.into());
    w.number(6, member.max_version.into());
    w.bytes
}

/// The bytes of a job, by their digest.
pub(crate) fn blob(job_id: JobId, kind: BlobKind, bytes: &[u8]) -> Vec<u8> {
    let kind = match kind {
        BlobKind::Payload => 1,
        BlobKind::Progress => 2,
        BlobKind::Result => 3,
    };
    let mut w = Writer::of("blob");
    w.number(1, job_id.0);
    w.number(2, kind);
    w.bytes(3, &Digest::of(bytes).0);
    w.bytes
}

/// An attestation, by its digest.
pub(crate) fn attestation(digest: Digest, attestation_type: &AttestationType) -> Vec<u8> {
    let mut w = Writer::of("attestation");
    w.bytes(1, &digest.0);
    w.bytes(2, attestation_type.as_str().as_bytes());
    w.bytes
}

/// A kept answer.
pub(crate) fn answer(answer: &Answer) -> Vec<u8> {
    let mut w = Writer::of("answer");
    match answer {
        Answer::Enqueued(enqueued) => {
            for one in enqueued {
                w.always(1, &job(&one.job));
                w.number(2, one.deduplicated.into());
            }
        }
        Answer::Claimed(jobs) => jobs.iter().for_each(|claimed| w.always(3, &job(claimed))),
        Answer::Completed(completed) => w.always(4, &job(completed)),
    }
    w.bytes
}

/// What an enqueue asks for, without its request id.
pub(crate) fn enqueue(enqueue: &Enqueue) -> Vec<u8> {
    let mut w = Writer::of("enqueue");
    for job in &enqueue.jobs {
        w.always(1, &new_job(job));
    }
    w.bytes
}

fn new_job(job: &NewJob) -> Vec<u8> {
    let mut w = Writer::default();
    w.bytes(1, job.queue.as_str().as_bytes());
    w.bytes(2, &job.payload);
    w.number(3, signed(job.priority));
    match job.start {
        Start::Now => {}
        Start::After(delay_ms) => w.maybe(4, Some(delay_ms)),
        Start::At(run_at) => w.maybe(5, Some(run_at.0)),
    }
    w.maybe(6, job.max_attempts.map(u64::from));
    w.maybe(7, job.lease_ms.map(u64::from));
    w.bytes(8, job.dedupe_key.as_ref().map_or("", |key| key.as_str()).as_bytes());
    for (key, value) in &job.labels {
        w.always(9, key.as_bytes());
        w.always(10, value.as_bytes());
    }
    w.bytes
}

/// What a claim asks for, without its request id.
pub(crate) fn claim(claim: &ClaimJobs) -> Vec<u8> {
    let mut w = Writer::of("claim");
    for queue in &claim.queues {
        w.always(1, queue.as_str().as_bytes());
    }
    w.bytes(2, claim.worker.as_str().as_bytes());
    w.maybe(3, claim.lease_ms.map(u64::from));
    w.number(4, claim.jobs_max.into());
    w.bytes
}

/// What a completion asks for, without its request id.
pub(crate) fn complete(complete: &Complete) -> Vec<u8> {
    let mut w = Writer::of("complete");
    w.maybe(1, complete.job_id.map(|job_id| job_id.0));
    w.bytes(2, complete.worker.as_str().as_bytes());
    w.bytes(3, &complete.result);
    if let Some(attestation) = &complete.attestation {
        w.always(4, attestation.attestation_type.as_str().as_bytes());
        w.always(5, &attestation.bytes);
    }
    w.maybe(6, complete.fencing_token.map(u64::from));
    w.bytes
}
