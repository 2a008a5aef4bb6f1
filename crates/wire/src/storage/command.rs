//! Commands, by their kind.

use ag_core::command::{
    ClaimJobs, Complete, Enqueue, Fail, Heartbeat, InitCluster, NewAttestation, NewJob, Operation, Release, Start,
    Undelivered, UpdateQueue,
};
use ag_core::name::WorkerLabel;
use ag_core::name::{AttestationType, ClusterId, DedupeKey, FieldError, JobId, QueueName, ReplicaId, RequestId};
use ag_core::queue::QueuePolicyPatch;
use ag_core::time::WallTime;
use ag_proto::storage_v1::{self as stored, CommandKind};
use prost::Message;

use super::{DecodeError, array, row};

/// The kind and the body of a command.
pub(super) fn encode(operation: &Operation) -> (CommandKind, Vec<u8>) {
    match operation {
        Operation::Enqueue(enqueue) => (CommandKind::Enqueue, from_enqueue(enqueue).encode_to_vec()),
        Operation::Claim(claim) => (CommandKind::Claim, from_claim(claim).encode_to_vec()),
        Operation::Heartbeat(entries) => {
            let entries = entries.iter().map(from_heartbeat).collect();
            (CommandKind::Heartbeat, stored::Heartbeats { entries }.encode_to_vec())
        }
        Operation::Complete(entries) => {
            let entries = entries.iter().map(from_complete).collect();
            (CommandKind::Complete, stored::Completions { entries }.encode_to_vec())
        }
        Operation::Fail(fail) => (CommandKind::Fail, from_fail(fail).encode_to_vec()),
        Operation::Release(release) => {
            let body = stored::Release { job_number: number(release.job_id), worker: release.worker.as_str().into() };
            (CommandKind::Release, body.encode_to_vec())
        }
        Operation::ReleaseUndelivered(claims) => {
            let reference =
                |claim: &Undelivered| stored::ClaimReference { job_number: claim.job_id.0, attempts: claim.attempts };
            let body = stored::Undelivered { claims: claims.iter().map(reference).collect() };
            (CommandKind::ReleaseUndelivered, body.encode_to_vec())
        }
        Operation::Cancel(job_id) => (CommandKind::Cancel, job_reference(*job_id)),
        Operation::Retry(job_id) => (CommandKind::Retry, job_reference(*job_id)),
        Operation::UpdateQueue(update) => (CommandKind::UpdateQueue, from_update(update).encode_to_vec()),
        Operation::InitCluster(init) => {
            let members = init.members.iter().map(row::from_member).collect();
            let body = stored::InitCluster { cluster_id: init.cluster_id.0.to_vec().into(), members };
            (CommandKind::InitCluster, body.encode_to_vec())
        }
        Operation::RegisterReplica(member) => (CommandKind::RegisterReplica, row::from_member(member).encode_to_vec()),
        Operation::AllocateReplica => (CommandKind::AllocateReplica, Vec::new()),
        Operation::ForgetReplica(replica_id) => {
            (CommandKind::ForgetReplica, stored::ReplicaReference { replica_id: replica_id.0 }.encode_to_vec())
        }
        Operation::SetClusterVersion(cluster_version) => {
            let body = stored::ClusterVersion { cluster_version: *cluster_version };
            (CommandKind::SetClusterVersion, body.encode_to_vec())
        }
        Operation::HoldClusterVersion(held) => {
            (CommandKind::HoldClusterVersion, stored::HoldVersion { held: *held }.encode_to_vec())
        }
    }
}

/// The command of this kind and body; `None` for the kind that is none.
pub(super) fn decode(kind: CommandKind, body: &[u8]) -> Result<Option<Operation>, DecodeError> {
    Ok(Some(match kind {
        CommandKind::Unspecified => return Ok(None),
        CommandKind::Enqueue => Operation::Enqueue(to_enqueue(message(body)?)?),
        CommandKind::Claim => Operation::Claim(to_claim(message(body)?)?),
        CommandKind::Heartbeat => {
            let body: stored::Heartbeats = message(body)?;
            Operation::Heartbeat(body.entries.into_iter().map(to_heartbeat).collect::<Result<_, _>>()?)
        }
        CommandKind::Complete => {
            let body: stored::Completions = message(body)?;
            Operation::Complete(body.entries.into_iter().map(to_complete).collect::<Result<_, _>>()?)
        }
        CommandKind::Fail => Operation::Fail(to_fail(message(body)?)?),
        CommandKind::Release => {
            let body: stored::Release = message(body)?;
            Operation::Release(Release { job_id: job_id(body.job_number), worker: worker(&body.worker)? })
        }
        CommandKind::ReleaseUndelivered => {
            let body: stored::Undelivered = message(body)?;
            let claim = |claim: stored::ClaimReference| Undelivered {
                job_id: JobId(claim.job_number),
                attempts: claim.attempts,
            };
            Operation::ReleaseUndelivered(body.claims.into_iter().map(claim).collect())
        }
        CommandKind::Cancel => Operation::Cancel(JobId(message::<stored::JobReference>(body)?.job_number)),
        CommandKind::Retry => Operation::Retry(JobId(message::<stored::JobReference>(body)?.job_number)),
        CommandKind::UpdateQueue => Operation::UpdateQueue(to_update(message(body)?)?),
        CommandKind::InitCluster => {
            let body: stored::InitCluster = message(body)?;
            let cluster_id = ClusterId(array(&body.cluster_id, "cluster_id has not 16 bytes")?);
            let members = body.members.into_iter().map(row::to_member).collect::<Result<_, _>>()?;
            Operation::InitCluster(InitCluster { cluster_id, members })
        }
        CommandKind::RegisterReplica => Operation::RegisterReplica(row::to_member(message(body)?)?),
        CommandKind::AllocateReplica => Operation::AllocateReplica,
        CommandKind::ForgetReplica => {
            Operation::ForgetReplica(ReplicaId(message::<stored::ReplicaReference>(body)?.replica_id))
        }
        CommandKind::SetClusterVersion => {
            Operation::SetClusterVersion(message::<stored::ClusterVersion>(body)?.cluster_version)
        }
        CommandKind::HoldClusterVersion => Operation::HoldClusterVersion(message::<stored::HoldVersion>(body)?.held),
    }))
}

fn message<M: Message + Default>(body: &[u8]) -> Result<M, DecodeError> {
    M::decode(body).map_err(DecodeError::Message)
}

fn number(job_id: Option<JobId>) -> u64 {
    job_id.map_or(0, |job_id| job_id.0)
}

fn job_id(number: u64) -> Option<JobId> {
    Some(JobId(number)).filter(|job_id| job_id.0 != 0)
}

fn job_reference(job_id: JobId) -> Vec<u8> {
    stored::JobReference { job_number: job_id.0 }.encode_to_vec()
}

fn worker(label: &str) -> Result<WorkerLabel, DecodeError> {
    WorkerLabel::parse("worker", label).map_err(DecodeError::Field)
}

fn queue(name: &str) -> Result<QueueName, DecodeError> {
    QueueName::parse("queue", name).map_err(DecodeError::Field)
}

/// Empty text stands for nothing.
fn optional<T>(
    field: &str,
    text: &str,
    parse: impl FnOnce(&str, &str) -> Result<T, FieldError>,
) -> Result<Option<T>, DecodeError> {
    if text.is_empty() { Ok(None) } else { parse(field, text).map(Some).map_err(DecodeError::Field) }
}

fn request_id(text: &str) -> Result<Option<RequestId>, DecodeError> {
    optional("request_id", text, RequestId::parse)
}

fn text_of(request_id: &Option<RequestId>) -> String {
    request_id.as_ref().map_or("", |request_id| request_id.as_str()).to_owned()
}

fn from_enqueue(enqueue: &Enqueue) -> stored::Enqueue {
    let job = |job: &NewJob| stored::NewJob {
        queue: job.queue.as_str().into(),
        payload: job.payload.clone().into(),
        priority: job.priority,
        delay_ms: match job.start {
            Start::After(delay_ms) => Some(delay_ms),
            Start::Now | Start::At(_) => None,
        },
        run_at_ms: match job.start {
            Start::At(run_at) => Some(run_at.0),
            Start::Now | Start::After(_) => None,
        },
        max_attempts: job.max_attempts,
        lease_ms: job.lease_ms,
        dedupe_key: job.dedupe_key.as_ref().map_or("", |key| key.as_str()).into(),
        labels: job.labels.clone(),
    };
    stored::Enqueue { jobs: enqueue.jobs.iter().map(job).collect(), request_id: text_of(&enqueue.request_id) }
}

fn to_enqueue(enqueue: stored::Enqueue) -> Result<Enqueue, DecodeError> {
    let job = |job: stored::NewJob| -> Result<NewJob, DecodeError> {
        Ok(NewJob {
            queue: queue(&job.queue)?,
            payload: job.payload.into(),
            priority: job.priority,
            start: match (job.delay_ms, job.run_at_ms) {
                (None, None) => Start::Now,
                (Some(delay_ms), None) => Start::After(delay_ms),
                (None, Some(run_at)) => Start::At(WallTime(run_at)),
                (Some(_), Some(_)) => return Err(DecodeError::Value("both delay_ms and run_at_ms")),
            },
            max_attempts: job.max_attempts,
            lease_ms: job.lease_ms,
            dedupe_key: optional("dedupe_key", &job.dedupe_key, DedupeKey::parse)?,
            labels: job.labels,
        })
    };
    let jobs = enqueue.jobs.into_iter().map(job).collect::<Result<_, _>>()?;
    Ok(Enqueue { jobs, request_id: request_id(&enqueue.request_id)? })
}

fn from_claim(claim: &ClaimJobs) -> stored::Claim {
    stored::Claim {
        queues: claim.queues.iter().map(|queue| queue.as_str().into()).collect(),
        worker: claim.worker.as_str().into(),
        lease_ms: claim.lease_ms,
        jobs_max: claim.jobs_max,
        request_id: text_of(&claim.request_id),
    }
}

fn to_claim(claim: stored::Claim) -> Result<ClaimJobs, DecodeError> {
    Ok(ClaimJobs {
        queues: claim.queues.iter().map(|name| queue(name)).collect::<Result<_, _>>()?,
        worker: worker(&claim.worker)?,
        lease_ms: claim.lease_ms,
        jobs_max: claim.jobs_max,
        request_id: request_id(&claim.request_id)?,
    })
}

fn from_heartbeat(heartbeat: &Heartbeat) -> stored::Heartbeat {
    stored::Heartbeat {
        job_number: number(heartbeat.job_id),
        worker: heartbeat.worker.as_str().into(),
        lease_ms: heartbeat.lease_ms,
        progress: heartbeat.progress.clone().into(),
    }
}

fn to_heartbeat(heartbeat: stored::Heartbeat) -> Result<Heartbeat, DecodeError> {
    Ok(Heartbeat {
        job_id: job_id(heartbeat.job_number),
        worker: worker(&heartbeat.worker)?,
        lease_ms: heartbeat.lease_ms,
        progress: heartbeat.progress.into(),
    })
}

fn from_complete(complete: &Complete) -> stored::Completion {
    let attestation = complete.attestation.as_ref();
    stored::Completion {
        job_number: number(complete.job_id),
        worker: complete.worker.as_str().into(),
        result: complete.result.clone().into(),
        attestation: attestation.map(|attestation| attestation.bytes.clone().into()),
        attestation_type: attestation.map_or("", |attestation| attestation.attestation_type.as_str()).into(),
        request_id: text_of(&complete.request_id),
    }
}

fn to_complete(complete: stored::Completion) -> Result<Complete, DecodeError> {
    let attestation = match complete.attestation {
        None => None,
        Some(bytes) => Some(NewAttestation {
            attestation_type: AttestationType::parse("attestation_type", &complete.attestation_type)
                .map_err(DecodeError::Field)?,
            bytes: bytes.into(),
        }),
    };
    Ok(Complete {
        job_id: job_id(complete.job_number),
        worker: worker(&complete.worker)?,
        result: complete.result.into(),
        attestation,
        request_id: request_id(&complete.request_id)?,
    })
}

fn from_fail(fail: &Fail) -> stored::Fail {
    stored::Fail {
        job_number: number(fail.job_id),
        worker: fail.worker.as_str().into(),
        reason: fail.reason.clone(),
        retry_after_ms: fail.retry_after_ms,
        permanent: fail.permanent,
    }
}

fn to_fail(fail: stored::Fail) -> Result<Fail, DecodeError> {
    Ok(Fail {
        job_id: job_id(fail.job_number),
        worker: worker(&fail.worker)?,
        reason: fail.reason,
        retry_after_ms: fail.retry_after_ms,
        permanent: fail.permanent,
    })
}

fn from_update(update: &UpdateQueue) -> stored::UpdateQueue {
    let patch = &update.patch;
    stored::UpdateQueue {
        queue: update.queue.as_str().into(),
        paused: patch.paused,
        default_lease_ms: patch.default_lease_ms,
        max_attempts: patch.max_attempts,
        retention_ms: patch.retention_ms,
        concurrency_limit: patch.concurrency_limit,
    }
}

fn to_update(update: stored::UpdateQueue) -> Result<UpdateQueue, DecodeError> {
    let patch = QueuePolicyPatch {
        paused: update.paused,
        default_lease_ms: update.default_lease_ms,
        max_attempts: update.max_attempts,
        retention_ms: update.retention_ms,
        concurrency_limit: update.concurrency_limit,
    };
    Ok(UpdateQueue { queue: queue(&update.queue)?, patch })
}
