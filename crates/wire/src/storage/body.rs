//! Bodies of commands.

use ag_core::command::{
    ClaimJobs, Complete, Enqueue, Fail, Heartbeat, InitCluster, Member, NewAttestation, NewJob, Operation, Release,
    Start, Undelivered, UpdateQueue,
};
use ag_core::name::{
    Addr, AttestationType, ClusterId, DedupeKey, FieldError, JobId, QueueName, ReplicaId, RequestId, WorkerLabel,
};
use ag_core::queue::{Fencing, QueuePolicyPatch};
use ag_core::time::WallTime;
use ag_proto::storage_v1 as pb;
use bytes::Bytes;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use super::DecodeError;
use super::entry::delimited_len;
use super::kind::CommandKind;

const WHAT: &str = "command";
/// The field of the entries of a batch, in every body that is one.
const BATCH: u32 = 1;
/// `NewJob.payload`, `Heartbeat.progress` and `Complete.result`.
const BULK: u32 = 15;
/// `Complete.attestation`.
const ATTESTATION: u32 = 14;

/// A body on its way into bytes.
pub(super) trait Body {
    /// How many bytes it takes.
    fn bytes(&self) -> usize;
    /// Appends it.
    fn put(&self, out: &mut Vec<u8>);
}

/// A body without bulk bytes.
struct Plain<M>(M);

impl<M: Message> Body for Plain<M> {
    fn bytes(&self) -> usize {
        self.0.encoded_len()
    }

    fn put(&self, out: &mut Vec<u8>) {
        self.0.encode_raw(out);
    }
}

/// A body that is a batch of messages, each with bulk bytes behind its other fields.
struct Batch<'a, M, R> {
    items: Vec<Item<'a, M>>,
    /// The body's other fields, which stand behind the batch.
    rest: R,
}

struct Item<'a, M> {
    message: M,
    /// Field numbers, rising, and their bytes.
    bulk: [(u32, &'a [u8]); 2],
}

impl<M: Message> Item<'_, M> {
    fn bytes(&self) -> usize {
        let bulk = self.bulk.iter().filter(|(_, bytes)| !bytes.is_empty());
        self.message.encoded_len() + bulk.map(|(tag, bytes)| delimited_len(*tag, bytes.len())).sum::<usize>()
    }
}

impl<M: Message, R: Message> Body for Batch<'_, M, R> {
    fn bytes(&self) -> usize {
        self.items.iter().map(|item| delimited_len(BATCH, item.bytes())).sum::<usize>() + self.rest.encoded_len()
    }

    fn put(&self, out: &mut Vec<u8>) {
        for item in &self.items {
            encode_key(BATCH, WireType::LengthDelimited, out);
            encode_varint(item.bytes() as u64, out);
            item.message.encode_raw(out);
            for (tag, bytes) in item.bulk.iter().filter(|(_, bytes)| !bytes.is_empty()) {
                encode_key(*tag, WireType::LengthDelimited, out);
                encode_varint(bytes.len() as u64, out);
                out.extend_from_slice(bytes);
            }
        }
        self.rest.encode_raw(out);
    }
}

/// The body of an operation.
pub(super) fn of(operation: &Operation) -> Box<dyn Body + '_> {
    match operation {
        Operation::Enqueue(enqueue) => Box::new(Batch {
            items: enqueue.jobs.iter().map(new_job).collect(),
            rest: pb::EnqueueBody { jobs: Vec::new(), request_id: text(enqueue.request_id.as_ref()) },
        }),
        Operation::Claim(claim) => Box::new(Plain(pb::ClaimBody {
            queues: claim.queues.iter().map(ToString::to_string).collect(),
            worker: claim.worker.to_string(),
            lease_ms: claim.lease_ms,
            jobs_max: claim.jobs_max,
            request_id: text(claim.request_id.as_ref()),
        })),
        Operation::Heartbeat(heartbeats) => {
            Box::new(Batch { items: heartbeats.iter().map(heartbeat).collect(), rest: pb::HeartbeatBody::default() })
        }
        Operation::Complete(completions) => {
            Box::new(Batch { items: completions.iter().map(complete).collect(), rest: pb::CompleteBody::default() })
        }
        Operation::Fail(fail) => Box::new(Plain(pb::FailBody {
            job_id: fail.job_id.map(|job_id| job_id.0),
            worker: fail.worker.to_string(),
            reason: fail.reason.clone(),
            retry_after_ms: fail.retry_after_ms,
            permanent: fail.permanent,
            fencing_token: fail.fencing_token,
        })),
        Operation::Release(release) => Box::new(Plain(pb::ReleaseBody {
            job_id: release.job_id.map(|job_id| job_id.0),
            worker: release.worker.to_string(),
            fencing_token: release.fencing_token,
        })),
        Operation::ReleaseUndelivered(claims) => {
            let claim = |claim: &Undelivered| pb::Undelivered { job_id: claim.job_id.0, attempts: claim.attempts };
            Box::new(Plain(pb::ReleaseUndeliveredBody { claims: claims.iter().map(claim).collect() }))
        }
        Operation::Cancel(job_id) => Box::new(Plain(pb::CancelBody { job_id: job_id.0 })),
        Operation::Retry(job_id) => Box::new(Plain(pb::RetryBody { job_id: job_id.0 })),
        Operation::UpdateQueue(update) => Box::new(Plain(pb::UpdateQueueBody {
            queue: update.queue.to_string(),
            paused: update.patch.paused,
            default_lease_ms: update.patch.default_lease_ms,
            max_attempts: update.patch.max_attempts,
            retention_ms: update.patch.retention_ms,
            concurrency_limit: update.patch.concurrency_limit,
            fencing_required: update.patch.fencing.map(|fencing| fencing == Fencing::Required),
        })),
        Operation::InitCluster(init) => Box::new(Plain(pb::InitClusterBody {
            cluster_id: Bytes::copy_from_slice(&init.cluster_id.0),
            members: init.members.iter().map(member).collect(),
        })),
        Operation::RegisterReplica(register) => {
            Box::new(Plain(pb::RegisterReplicaBody { member: Some(member(register)) }))
        }
        Operation::AllocateReplica => Box::new(Plain(pb::AllocateReplicaBody {})),
        Operation::ForgetReplica(replica_id) => Box::new(Plain(pb::ForgetReplicaBody { replica_id: replica_id.0 })),
        Operation::SetClusterVersion(wanted) => Box::new(Plain(pb::SetClusterVersionBody { cluster_version: *wanted })),
        Operation::HoldClusterVersion(held) => Box::new(Plain(pb::HoldClusterVersionBody { held: *held })),
    }
}

fn new_job(job: &NewJob) -> Item<'_, pb::NewJob> {
    let message = pb::NewJob {
        queue: job.queue.to_string(),
        priority: job.priority,
        start: match job.start {
            Start::Now => None,
            Start::After(ms) => Some(pb::new_job::Start::AfterMs(ms)),
            Start::At(at) => Some(pb::new_job::Start::AtMs(at.0)),
        },
        max_attempts: job.max_attempts,
        lease_ms: job.lease_ms,
        dedupe_key: text(job.dedupe_key.as_ref()),
        labels: job.labels.clone(),
        payload: Bytes::new(),
    };
    Item { message, bulk: [(BULK, &job.payload), (BULK, &[])] }
}

fn heartbeat(heartbeat: &Heartbeat) -> Item<'_, pb::Heartbeat> {
    let message = pb::Heartbeat {
        job_id: heartbeat.job_id.map(|job_id| job_id.0),
        worker: heartbeat.worker.to_string(),
        lease_ms: heartbeat.lease_ms,
        fencing_token: heartbeat.fencing_token,
        progress: Bytes::new(),
    };
    Item { message, bulk: [(BULK, &heartbeat.progress), (BULK, &[])] }
}

fn complete(complete: &Complete) -> Item<'_, pb::Complete> {
    let attestation = complete.attestation.as_ref();
    let message = pb::Complete {
        job_id: complete.job_id.map(|job_id| job_id.0),
        worker: complete.worker.to_string(),
        request_id: text(complete.request_id.as_ref()),
        attestation_type: text(attestation.map(|attestation| &attestation.attestation_type)),
        fencing_token: complete.fencing_token,
        attestation: Bytes::new(),
        result: Bytes::new(),
    };
    let attestation = attestation.map_or(&[][..], |attestation| &attestation.bytes);
    Item { message, bulk: [(ATTESTATION, attestation), (BULK, &complete.result)] }
}

fn member(member: &Member) -> pb::NewMember {
    pb::NewMember {
        replica_id: member.replica_id.0,
        addr: member.addr.to_string(),
        peer_addr: member.peer_addr.to_string(),
        release: member.release.clone(),
        min_version: member.min_version,
        max_version: member.max_version,
    }
}

fn text(name: Option<&impl ToString>) -> String {
    name.map(ToString::to_string).unwrap_or_default()
}

/// The operation of this kind whose body this is.
pub(super) fn decode(kind: CommandKind, body: Bytes) -> Result<Operation, DecodeError> {
    let operation = match kind {
        CommandKind::Enqueue => enqueue_of(message(body)?).map(Operation::Enqueue),
        CommandKind::Claim => claim_of(message(body)?).map(Operation::Claim),
        CommandKind::Heartbeat => {
            let body: pb::HeartbeatBody = message(body)?;
            body.heartbeats.into_iter().map(heartbeat_of).collect::<Result<_, _>>().map(Operation::Heartbeat)
        }
        CommandKind::Complete => {
            let body: pb::CompleteBody = message(body)?;
            body.completions.into_iter().map(complete_of).collect::<Result<_, _>>().map(Operation::Complete)
        }
        CommandKind::Fail => fail_of(message(body)?).map(Operation::Fail),
        CommandKind::Release => release_of(message(body)?).map(Operation::Release),
        CommandKind::ReleaseUndelivered => {
            let body: pb::ReleaseUndeliveredBody = message(body)?;
            let claim = |claim: pb::Undelivered| Undelivered { job_id: JobId(claim.job_id), attempts: claim.attempts };
            Ok(Operation::ReleaseUndelivered(body.claims.into_iter().map(claim).collect()))
        }
        CommandKind::Cancel => Ok(Operation::Cancel(JobId(message::<pb::CancelBody>(body)?.job_id))),
        CommandKind::Retry => Ok(Operation::Retry(JobId(message::<pb::RetryBody>(body)?.job_id))),
        CommandKind::UpdateQueue => update_of(message(body)?).map(Operation::UpdateQueue),
        CommandKind::InitCluster => init_of(message(body)?).map(Operation::InitCluster),
        CommandKind::RegisterReplica => {
            let body: pb::RegisterReplicaBody = message(body)?;
            let absent = || FieldError::new("member", "must be present");
            body.member.ok_or_else(absent).and_then(member_of).map(Operation::RegisterReplica)
        }
        CommandKind::AllocateReplica => {
            message::<pb::AllocateReplicaBody>(body).map(|_| Ok(Operation::AllocateReplica))?
        }
        CommandKind::ForgetReplica => {
            Ok(Operation::ForgetReplica(ReplicaId(message::<pb::ForgetReplicaBody>(body)?.replica_id)))
        }
        CommandKind::SetClusterVersion => {
            Ok(Operation::SetClusterVersion(message::<pb::SetClusterVersionBody>(body)?.cluster_version))
        }
        CommandKind::HoldClusterVersion => {
            Ok(Operation::HoldClusterVersion(message::<pb::HoldClusterVersionBody>(body)?.held))
        }
    };
    operation.map_err(DecodeError::of(WHAT))
}

fn message<M: Message + Default>(body: Bytes) -> Result<M, DecodeError> {
    M::decode(body).map_err(|source| DecodeError::Malformed { what: WHAT, source })
}

/// `None` if `text` is empty, else what `parse` makes of it.
fn optional<T>(
    field: &str,
    text: &str,
    parse: fn(&str, &str) -> Result<T, FieldError>,
) -> Result<Option<T>, FieldError> {
    if text.is_empty() { Ok(None) } else { parse(field, text).map(Some) }
}

fn enqueue_of(body: pb::EnqueueBody) -> Result<Enqueue, FieldError> {
    Ok(Enqueue {
        jobs: body.jobs.into_iter().map(new_job_of).collect::<Result<_, _>>()?,
        request_id: optional("request_id", &body.request_id, RequestId::parse)?,
    })
}

fn new_job_of(job: pb::NewJob) -> Result<NewJob, FieldError> {
    Ok(NewJob {
        queue: QueueName::parse("queue", &job.queue)?,
        payload: job.payload.into(),
        priority: job.priority,
        start: match job.start {
            None => Start::Now,
            Some(pb::new_job::Start::AfterMs(ms)) => Start::After(ms),
            Some(pb::new_job::Start::AtMs(ms)) => Start::At(WallTime(ms)),
        },
        max_attempts: job.max_attempts,
        lease_ms: job.lease_ms,
        dedupe_key: optional("dedupe_key", &job.dedupe_key, DedupeKey::parse)?,
        labels: job.labels,
    })
}

fn claim_of(body: pb::ClaimBody) -> Result<ClaimJobs, FieldError> {
    Ok(ClaimJobs {
        queues: body.queues.iter().map(|queue| QueueName::parse("queues", queue)).collect::<Result<_, _>>()?,
        worker: WorkerLabel::parse("worker", &body.worker)?,
        lease_ms: body.lease_ms,
        jobs_max: body.jobs_max,
        request_id: optional("request_id", &body.request_id, RequestId::parse)?,
    })
}

fn heartbeat_of(heartbeat: pb::Heartbeat) -> Result<Heartbeat, FieldError> {
    Ok(Heartbeat {
        job_id: heartbeat.job_id.map(JobId),
        worker: WorkerLabel::parse("worker", &heartbeat.worker)?,
        fencing_token: heartbeat.fencing_token,
        lease_ms: heartbeat.lease_ms,
        progress: heartbeat.progress.into(),
    })
}

fn complete_of(complete: pb::Complete) -> Result<Complete, FieldError> {
    let attestation_type = optional("attestation_type", &complete.attestation_type, AttestationType::parse)?;
    let bytes = complete.attestation;
    Ok(Complete {
        job_id: complete.job_id.map(JobId),
        worker: WorkerLabel::parse("worker", &complete.worker)?,
        fencing_token: complete.fencing_token,
        result: complete.result.into(),
        attestation: attestation_type.map(|attestation_type| NewAttestation { attestation_type, bytes: bytes.into() }),
        request_id: optional("request_id", &complete.request_id, RequestId::parse)?,
    })
}

fn fail_of(body: pb::FailBody) -> Result<Fail, FieldError> {
    Ok(Fail {
        job_id: body.job_id.map(JobId),
        worker: WorkerLabel::parse("worker", &body.worker)?,
        fencing_token: body.fencing_token,
        reason: body.reason,
        retry_after_ms: body.retry_after_ms,
        permanent: body.permanent,
    })
}

fn release_of(body: pb::ReleaseBody) -> Result<Release, FieldError> {
    Ok(Release {
        job_id: body.job_id.map(JobId),
        worker: WorkerLabel::parse("worker", &body.worker)?,
        fencing_token: body.fencing_token,
    })
}

fn update_of(body: pb::UpdateQueueBody) -> Result<UpdateQueue, FieldError> {
    Ok(UpdateQueue {
        queue: QueueName::parse("queue", &body.queue)?,
        patch: QueuePolicyPatch {
            paused: body.paused,
            default_lease_ms: body.default_lease_ms,
            max_attempts: body.max_attempts,
            retention_ms: body.retention_ms,
            concurrency_limit: body.concurrency_limit,
            fencing: body.fencing_required.map(|required| if required { Fencing::Required } else { Fencing::Optional }),
        },
    })
}

fn init_of(body: pb::InitClusterBody) -> Result<InitCluster, FieldError> {
    let cluster_id = body.cluster_id.as_ref().try_into();
    Ok(InitCluster {
        cluster_id: ClusterId(cluster_id.map_err(|_| FieldError::new("cluster_id", "must be 16 bytes"))?),
        members: body.members.into_iter().map(member_of).collect::<Result<_, _>>()?,
    })
}

fn member_of(member: pb::NewMember) -> Result<Member, FieldError> {
    Ok(Member {
        replica_id: ReplicaId(member.replica_id),
        addr: Addr::parse("addr", &member.addr)?,
        peer_addr: Addr::parse("peer_addr", &member.peer_addr)?,
        release: member.release,
        min_version: member.min_version,
        max_version: member.max_version,
    })
}
