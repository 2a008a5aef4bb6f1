//! Requests of clients → parsed commands. Every bound of the contract is checked here, once; an error names the field
//! and the bound.

use std::collections::BTreeMap;

use ag_core::command::{
    ClaimJobs, Complete, Enqueue, Fail, Heartbeat, NewAttestation, NewJob, Release, Start, UpdateQueue,
};
use ag_core::digest::Digest;
use ag_core::limits;
use ag_core::name::{AttestationType, DedupeKey, FieldError, JobId, QueueName, RequestId, WorkerLabel};
use ag_core::queue::{Fencing, QueuePolicyPatch};
use ag_core::time::WallTime;
use ag_proto::v1;

type Parsed<T> = Result<T, FieldError>;

/// How a batch's field is named: `jobs[3].queue`; a single call's: `queue`.
#[derive(Clone, Debug, Default)]
pub struct Path(String);

impl Path {
    fn entry(list: &str, position: usize) -> Self {
        Self(format!("{list}[{position}]."))
    }

    fn field(&self, name: &str) -> String {
        format!("{}{name}", self.0)
    }
}

/// One job to enqueue.
pub fn enqueue_job(request: v1::EnqueueJobRequest, wall_now: WallTime) -> Parsed<Enqueue> {
    let request_id = optional("request_id", &request.request_id, RequestId::parse)?;
    Ok(Enqueue { jobs: vec![new_job(&Path::default(), request, wall_now)?], request_id })
}

/// Many jobs to enqueue.
pub fn enqueue_jobs(request: v1::EnqueueJobsRequest, wall_now: WallTime) -> Parsed<Enqueue> {
    let request_id = optional("request_id", &request.request_id, RequestId::parse)?;
    check_batch("jobs", request.jobs.len())?;
    let parse = |(position, job): (usize, v1::EnqueueJobRequest)| {
        let path = Path::entry("jobs", position);
        if !job.request_id.is_empty() {
            return Err(FieldError::new(path.field("request_id"), "must be empty: set the batch's own request_id"));
        }
        new_job(&path, job, wall_now)
    };
    let jobs = request.jobs.into_iter().enumerate().map(parse).collect::<Parsed<_>>()?;
    Ok(Enqueue { jobs, request_id })
}

fn new_job(path: &Path, request: v1::EnqueueJobRequest, wall_now: WallTime) -> Parsed<NewJob> {
    let queue = QueueName::parse(&path.field("queue"), &request.queue)?;
    check_bytes(&path.field("payload"), request.payload.len(), limits::PAYLOAD_BYTES_MAX)?;
    Ok(NewJob {
        queue,
        priority: request.priority,
        start: start(path, request.run_at.as_ref(), request.delay.as_ref(), wall_now)?,
        max_attempts: max_attempts(&path.field("max_attempts"), request.max_attempts)?,
        lease_ms: lease(&path.field("lease"), request.lease.as_ref())?,
        dedupe_key: optional(&path.field("dedupe_key"), &request.dedupe_key, DedupeKey::parse)?,
        labels: labels(&path.field("labels"), request.labels)?,
        payload: request.payload,
    })
}

fn start(
    path: &Path,
    run_at: Option<&prost_types::Timestamp>,
    delay: Option<&prost_types::Duration>,
    wall_now: WallTime,
) -> Parsed<Start> {
    match (run_at, delay) {
        (Some(_), Some(_)) => Err(FieldError::new(path.field("delay"), "must be absent when run_at is given")),
        (None, None) => Ok(Start::Now),
        (None, Some(delay)) => {
            let delay_ms = millis(&path.field("delay"), delay, 0, limits::DELAY_MS_MAX, "0–10 years")?;
            Ok(if delay_ms == 0 { Start::Now } else { Start::After(delay_ms) })
        }
        (Some(run_at), None) => {
            let field = path.field("run_at");
            let bound = "must be a time from 1970 on, at most 10 years ahead";
            let nanos = u64::try_from(run_at.nanos).ok().filter(|nanos| *nanos < 1_000_000_000);
            let seconds = u64::try_from(run_at.seconds).ok().and_then(|seconds| seconds.checked_mul(1_000));
            let millis = seconds.zip(nanos).and_then(|(ms, nanos)| ms.checked_add(nanos.div_ceil(1_000_000)));
            let latest = wall_now.plus_ms(limits::DELAY_MS_MAX);
            match millis {
                Some(millis) if millis <= latest.0 => Ok(Start::At(WallTime(millis))),
                _ => Err(FieldError::new(field, bound)),
            }
        }
    }
}

fn labels(field: &str, labels: BTreeMap<String, String>) -> Parsed<BTreeMap<String, String>> {
    if labels.len() > limits::LABELS_MAX {
        return Err(FieldError::new(field, format!("at most {} pairs", limits::LABELS_MAX)));
    }
    for (key, value) in &labels {
        let (key_max, value_max) = (limits::LABEL_KEY_BYTES_MAX, limits::LABEL_VALUE_BYTES_MAX);
        if key.is_empty() || key.len() > key_max || key.chars().any(char::is_control) || key.contains('=') {
            let bound = format!("a key must be 1–{key_max} bytes of UTF-8 without control characters and `=`");
            return Err(FieldError::new(field, bound));
        }
        if value.len() > value_max || value.contains('\0') {
            let bound = format!("a value must be at most {value_max} bytes of UTF-8 without NUL");
            return Err(FieldError::new(format!("{field}[{key}]"), bound));
        }
    }
    Ok(labels)
}

/// A claim of one job, and how long to wait for it, in milliseconds.
pub fn claim_job(request: &v1::ClaimJobRequest) -> Parsed<(ClaimJobs, u64)> {
    let claim = ClaimJobs {
        queues: queues(&request.queues)?,
        worker: WorkerLabel::parse("worker", &request.worker)?,
        lease_ms: lease("lease", request.lease.as_ref())?,
        jobs_max: 1,
        request_id: optional("request_id", &request.request_id, RequestId::parse)?,
    };
    Ok((claim, wait(request.wait.as_ref())?))
}

/// A claim of many jobs, and how long to wait for the first, in milliseconds.
pub fn claim_jobs(request: &v1::ClaimJobsRequest) -> Parsed<(ClaimJobs, u64)> {
    let max = limits::BATCH_ENTRIES_MAX as u32;
    if !(1..=max).contains(&request.max_jobs) {
        return Err(FieldError::new("max_jobs", format!("must be 1–{max}")));
    }
    let claim = ClaimJobs {
        queues: queues(&request.queues)?,
        worker: WorkerLabel::parse("worker", &request.worker)?,
        lease_ms: lease("lease", request.lease.as_ref())?,
        jobs_max: request.max_jobs,
        request_id: optional("request_id", &request.request_id, RequestId::parse)?,
    };
    Ok((claim, wait(request.wait.as_ref())?))
}

fn queues(names: &[String]) -> Parsed<Vec<QueueName>> {
    if names.is_empty() || names.len() > limits::CLAIM_QUEUES_MAX {
        return Err(FieldError::new("queues", format!("must name 1–{} queues", limits::CLAIM_QUEUES_MAX)));
    }
    names.iter().enumerate().map(|(position, name)| QueueName::parse(&format!("queues[{position}]"), name)).collect()
}

fn wait(wait: Option<&prost_types::Duration>) -> Parsed<u64> {
    wait.map_or(Ok(0), |wait| millis("wait", wait, 0, limits::WAIT_MS_MAX, "0–60 s"))
}

/// One heartbeat.
pub fn heartbeat(request: v1::HeartbeatJobRequest) -> Parsed<Heartbeat> {
    heartbeat_at(&Path::default(), request)
}

/// Many heartbeats, each on its own: an entry out of its bounds refuses no other.
pub fn heartbeats(request: v1::HeartbeatJobsRequest) -> Parsed<Vec<Parsed<Heartbeat>>> {
    check_batch("heartbeats", request.heartbeats.len())?;
    let entries = request.heartbeats.into_iter().enumerate();
    Ok(entries.map(|(position, entry)| heartbeat_at(&Path::entry("heartbeats", position), entry)).collect())
}

fn heartbeat_at(path: &Path, request: v1::HeartbeatJobRequest) -> Parsed<Heartbeat> {
    check_bytes(&path.field("progress"), request.progress.len(), limits::PROGRESS_BYTES_MAX)?;
    Ok(Heartbeat {
        job_id: job_id(&path.field("job_id"), &request.job_id)?,
        worker: WorkerLabel::parse(&path.field("worker"), &request.worker)?,
        fencing_token: fencing_token(&path.field("fencing_token"), request.fencing_token)?,
        lease_ms: lease(&path.field("lease"), request.lease.as_ref())?,
        progress: request.progress,
    })
}

/// One completion.
pub fn complete(request: v1::CompleteJobRequest) -> Parsed<Complete> {
    complete_at(&Path::default(), request)
}

/// Many completions, each on its own: an entry out of its bounds refuses no other. Those without a request id of their
/// own get one from the batch's.
pub fn completions(request: v1::CompleteJobsRequest) -> Parsed<Vec<Parsed<Complete>>> {
    check_batch("completions", request.completions.len())?;
    let batch = optional("request_id", &request.request_id, RequestId::parse)?;
    let parse = |(position, entry): (usize, v1::CompleteJobRequest)| {
        let mut complete = complete_at(&Path::entry("completions", position), entry)?;
        if let (None, Some(batch)) = (&complete.request_id, &batch) {
            complete.request_id = Some(derived_request_id(batch, position)?);
        }
        Ok(complete)
    };
    Ok(request.completions.into_iter().enumerate().map(parse).collect())
}

/// `<request id>#<position>`; where that is too long, its SHA-256 in hex: every length that a batch's id may have will
/// do, and a repeated batch derives the same ids again.
fn derived_request_id(batch: &RequestId, position: usize) -> Parsed<RequestId> {
    let derived = format!("{batch}#{position}");
    if derived.len() <= limits::REQUEST_ID_BYTES_MAX {
        return RequestId::parse("request_id", &derived);
    }
    RequestId::parse("request_id", &Digest::of(derived.as_bytes()).to_string())
}

fn complete_at(path: &Path, request: v1::CompleteJobRequest) -> Parsed<Complete> {
    check_bytes(&path.field("result"), request.result.len(), limits::RESULT_BYTES_MAX)?;
    check_bytes(&path.field("attestation"), request.attestation.len(), limits::ATTESTATION_BYTES_MAX)?;
    let type_field = path.field("attestation_type");
    let attestation = match (request.attestation.is_empty(), request.attestation_type.is_empty()) {
        (true, true) => None,
        (true, false) => return Err(FieldError::new(type_field, "must be empty without an attestation")),
        (false, _) => Some(NewAttestation {
            attestation_type: AttestationType::parse(&type_field, &request.attestation_type)?,
            bytes: request.attestation,
        }),
    };
    Ok(Complete {
        job_id: job_id(&path.field("job_id"), &request.job_id)?,
        worker: WorkerLabel::parse(&path.field("worker"), &request.worker)?,
        fencing_token: fencing_token(&path.field("fencing_token"), request.fencing_token)?,
        result: request.result,
        attestation,
        request_id: optional(&path.field("request_id"), &request.request_id, RequestId::parse)?,
    })
}

/// A failed claim.
pub fn fail(request: v1::FailJobRequest) -> Parsed<Fail> {
    let job_id = job_id("job_id", &request.job_id)?;
    let worker = WorkerLabel::parse("worker", &request.worker)?;
    check_bytes("reason", request.reason.len(), limits::REASON_BYTES_MAX)?;
    if request.reason.contains('\0') {
        return Err(FieldError::new("reason", "must not contain NUL"));
    }
    let retry_after = request.retry_after.as_ref();
    let retry_after_ms =
        retry_after.map(|after| millis("retry_after", after, 0, limits::DELAY_MS_MAX, "0–10 years")).transpose()?;
    let fencing_token = fencing_token("fencing_token", request.fencing_token)?;
    Ok(Fail { job_id, worker, fencing_token, reason: request.reason, retry_after_ms, permanent: request.permanent })
}

/// A claim that is given back.
pub fn release(request: &v1::ReleaseJobRequest) -> Parsed<Release> {
    Ok(Release {
        job_id: job_id("job_id", &request.job_id)?,
        worker: WorkerLabel::parse("worker", &request.worker)?,
        fencing_token: fencing_token("fencing_token", request.fencing_token)?,
    })
}

/// The number of a claim; `None` for 0, which stands for no number. Never cut to 32 bits.
fn fencing_token(field: &str, value: u64) -> Parsed<Option<u32>> {
    match u32::try_from(value) {
        Ok(0) => Ok(None),
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(FieldError::new(field, format!("must be at most {} (0: not given)", u32::MAX))),
    }
}

fn fencing(value: i32) -> Parsed<Option<Fencing>> {
    match v1::Fencing::try_from(value) {
        Ok(v1::Fencing::Unspecified) => Ok(None),
        Ok(v1::Fencing::Optional) => Ok(Some(Fencing::Optional)),
        Ok(v1::Fencing::Required) => Ok(Some(Fencing::Required)),
        Err(_) => Err(FieldError::new("fencing", "must be OPTIONAL or REQUIRED")),
    }
}

/// A change of a queue's policy.
pub fn update_queue(request: &v1::UpdateQueueRequest) -> Parsed<UpdateQueue> {
    let retention = request.retention.as_ref();
    let patch = QueuePolicyPatch {
        paused: request.paused,
        default_lease_ms: lease("default_lease", request.default_lease.as_ref())?,
        max_attempts: max_attempts("max_attempts", request.max_attempts)?,
        retention_ms: retention
            .map(|retention| millis("retention", retention, 0, limits::DELAY_MS_MAX, "0–10 years"))
            .transpose()?,
        concurrency_limit: request.concurrency_limit,
        fencing: fencing(request.fencing)?,
    };
    Ok(UpdateQueue { queue: QueueName::parse("queue", &request.queue)?, patch })
}

/// A job id. `None`: it has not the form of one, so no job has it. Empty is an error.
pub fn job_id(field: &str, text: &str) -> Parsed<Option<JobId>> {
    if text.is_empty() || text.len() > limits::NAME_BYTES_MAX {
        return Err(FieldError::new(field, format!("must be 1–{} bytes", limits::NAME_BYTES_MAX)));
    }
    Ok(JobId::parse(text))
}

/// How many a page may hold.
pub fn page_size(page_size: Option<i32>) -> Parsed<usize> {
    match page_size {
        None => Ok(limits::PAGE_SIZE_DEFAULT as usize),
        Some(size) => match u32::try_from(size) {
            Ok(size) if (1..=limits::PAGE_SIZE_MAX).contains(&size) => Ok(size as usize),
            _ => Err(FieldError::new("page_size", format!("must be 1–{}", limits::PAGE_SIZE_MAX))),
        },
    }
}

fn max_attempts(field: &str, value: Option<u32>) -> Parsed<Option<u32>> {
    match value {
        Some(value) if !(1..=limits::MAX_ATTEMPTS_MAX).contains(&value) => {
            Err(FieldError::new(field, format!("must be 1–{}", limits::MAX_ATTEMPTS_MAX)))
        }
        other => Ok(other),
    }
}

fn lease(field: &str, lease: Option<&prost_types::Duration>) -> Parsed<Option<u32>> {
    let Some(lease) = lease else { return Ok(None) };
    let lease_ms = millis(field, lease, limits::LEASE_MS_MIN, limits::LEASE_MS_MAX, "100 ms–24 h")?;
    Ok(Some(u32::try_from(lease_ms).expect("24 h in milliseconds fit into 32 bits")))
}

/// A duration in whole milliseconds, rounded up, within `min` and `max`.
fn millis(field: &str, duration: &prost_types::Duration, min: u64, max: u64, bound: &str) -> Parsed<u64> {
    let nanos = u64::try_from(duration.nanos).ok().filter(|nanos| *nanos < 1_000_000_000);
    let seconds = u64::try_from(duration.seconds).ok().and_then(|seconds| seconds.checked_mul(1_000));
    let total = seconds.zip(nanos).and_then(|(ms, nanos)| ms.checked_add(nanos.div_ceil(1_000_000)));
    total.filter(|ms| (min..=max).contains(ms)).ok_or_else(|| FieldError::new(field, format!("must be {bound}")))
}

fn check_bytes(field: &str, length: usize, max: usize) -> Parsed<()> {
    if length <= max {
        Ok(())
    } else {
        Err(FieldError::new(field, format!("must be at most {max} bytes, has {length}")))
    }
}

fn check_batch(field: &str, entries: usize) -> Parsed<()> {
    let max = limits::BATCH_ENTRIES_MAX;
    if (1..=max).contains(&entries) {
        Ok(())
    } else {
        Err(FieldError::new(field, format!("must have 1–{max} entries")))
    }
}

/// Empty text stands for an absent value.
fn optional<T>(field: &str, text: &str, parse: impl FnOnce(&str, &str) -> Parsed<T>) -> Parsed<Option<T>> {
    if text.is_empty() { Ok(None) } else { parse(field, text).map(Some) }
}
