//! Jobs and claims.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ag_core::change::BlobKind;
use ag_core::command::{Actor, ClaimJobs, Enqueue, Operation};
use ag_core::job::{Job, JobState};
use ag_core::limits;
use ag_core::name::{JobId, LogPosition, QueueName};
use ag_core::outcome::{Changed, Completion, Enqueued, Outcome};
use ag_core::rejection::Rejection;
use ag_core::time::WallTime;
use ag_proto::v1;
use ag_wire::answer::{self, Blobs};
use ag_wire::request;
use prost::Message as _;
use tonic::Code;

use super::batch::Batch;
use super::fence;
use super::page::{self, Filter};
use super::{accept, barrier, propose, unexpected, unreadable};
use crate::failure::{Failure, Verb};
use crate::limits::{PAGE_BYTES_MAX, SCAN_JOBS_MAX};
use crate::service::{Call, NotRun, Reply, Service, reply};

/// Which bytes of a job an answer carries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum View {
    /// All.
    Whole,
    /// None.
    Bare,
}

/// What is left for the jobs of a batch that was carried out. It must be answered: a job that finds no room is shown
/// without what makes jobs large.
struct Room(usize);

impl Default for Room {
    fn default() -> Self {
        Self(PAGE_BYTES_MAX as usize)
    }
}

impl Room {
    fn fit(&mut self, mut job: v1::Job) -> v1::Job {
        if job.encoded_len() > self.0 {
            job.labels.clear();
            job.reason.clear();
        }
        self.0 = self.0.saturating_sub(job.encoded_len());
        job
    }
}

fn wall_now() -> WallTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WallTime(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

fn show(service: &Service, job: &Job, view: View) -> Result<v1::Job, Failure> {
    let notes = job.notes();
    let blob = |kind: BlobKind, length: u32| -> Result<Vec<u8>, Failure> {
        if length == 0 || view == View::Bare {
            return Ok(Vec::new());
        }
        let Some(table) = service.replica.table() else { return Ok(Vec::new()) };
        let found = table.blob(job.job_id, kind).map_err(|error| unreadable(&error))?;
        // Progress may have been replaced since; a payload or a result never is. Only a job that was dropped since may
        // have lost them.
        let is_whole = found.as_ref().is_some_and(|bytes| bytes.len() == length as usize);
        let is_kept = || service.replica.read(|state| state.job(job.job_id).is_some());
        if !is_whole && kind != BlobKind::Progress && is_kept() {
            tracing::error!(job_id = %job.job_id, ?kind, "a stored value is missing or has another length");
            return Err(Failure::new(Code::DataLoss, "STORAGE", "a stored value is missing; see the replica's log"));
        }
        Ok(found.unwrap_or_default())
    };
    let blobs = Blobs {
        payload: blob(BlobKind::Payload, job.payload_bytes)?,
        progress: blob(BlobKind::Progress, notes.progress_bytes)?,
        result: blob(BlobKind::Result, notes.result_bytes)?,
    };
    let queue_lease_ms =
        service.replica.read(|state| state.queue(&job.queue).map(|(policy, _)| policy.default_lease_ms));
    Ok(answer::job(job, blobs, queue_lease_ms.unwrap_or(limits::LEASE_MS_DEFAULT as u32)))
}

fn show_changed(service: &Service, changed: &Changed, view: View) -> Result<v1::Job, Failure> {
    Ok(v1::Job { fenced: changed.fenced, ..show(service, &changed.job, view)? })
}

fn show_enqueued(service: &Service, enqueued: &Enqueued, view: View) -> Result<v1::Job, Failure> {
    Ok(v1::Job { deduplicated: enqueued.deduplicated, ..show(service, &enqueued.job, view)? })
}

pub(super) async fn enqueue_job(
    service: &Service,
    call: &Call,
    request: v1::EnqueueJobRequest,
) -> Result<Reply, NotRun> {
    let (enqueued, at) = enqueue(service, call, request::enqueue_job(request, wall_now())?).await?;
    let Some(first) = enqueued.first() else { return Err(unexpected(&Outcome::Enqueued(enqueued)).into()) };
    Ok(reply(&show_enqueued(service, first, View::Whole)?, Some(at)))
}

pub(super) async fn enqueue_jobs(
    service: &Service,
    call: &Call,
    request: v1::EnqueueJobsRequest,
) -> Result<Reply, NotRun> {
    let (enqueued, at) = enqueue(service, call, request::enqueue_jobs(request, wall_now())?).await?;
    let mut room = Room::default();
    let show = |job| show_enqueued(service, job, View::Bare).map(|job| room.fit(job));
    let jobs = enqueued.iter().map(show).collect::<Result<_, _>>()?;
    Ok(reply(&v1::EnqueueJobsResponse { jobs }, Some(at)))
}

async fn enqueue(service: &Service, call: &Call, enqueue: Enqueue) -> Result<(Vec<Enqueued>, LogPosition), NotRun> {
    match propose(service, call, Operation::Enqueue(enqueue), Verb::Enqueue).await? {
        (Outcome::Enqueued(enqueued), at) => Ok((enqueued, at)),
        (other, _) => Err(unexpected(&other).into()),
    }
}

pub(super) async fn claim_job(service: &Service, call: &Call, request: &v1::ClaimJobRequest) -> Result<Reply, NotRun> {
    let (claim, wait_ms) = request::claim_job(request)?;
    let (jobs, at) = claim_some(service, call, claim, wait_ms).await?;
    let job = jobs.first().map(|job| show(service, job, View::Whole)).transpose()?;
    Ok(reply(&v1::ClaimJobResponse { job }, Some(at)))
}

pub(super) async fn claim_jobs(
    service: &Service,
    call: &Call,
    request: &v1::ClaimJobsRequest,
) -> Result<Reply, NotRun> {
    let (claim, wait_ms) = request::claim_jobs(request)?;
    let (jobs, at) = claim_some(service, call, claim, wait_ms).await?;
    let jobs = jobs.iter().map(|job| show(service, job, View::Whole)).collect::<Result<_, _>>()?;
    Ok(reply(&v1::ClaimJobsResponse { jobs }, Some(at)))
}

async fn claim_some(
    service: &Service,
    call: &Call,
    claim: ClaimJobs,
    wait_ms: u64,
) -> Result<(Vec<Job>, LogPosition), NotRun> {
    let actor = Actor::Principal(call.caller.principal.clone());
    let answered = service.replica.claim(actor, claim, Duration::from_millis(wait_ms), call.deadline).await?;
    match accept(service, answered.outcome, answered.applied_at, Verb::Claim)? {
        (Outcome::Claimed(jobs), at) => Ok((jobs, at)),
        (other, _) => Err(unexpected(&other).into()),
    }
}

pub(super) async fn heartbeat_job(
    service: &Service,
    call: &Call,
    request: v1::HeartbeatJobRequest,
) -> Result<Reply, NotRun> {
    let operation = Operation::Heartbeat(vec![request::heartbeat(request)?]);
    fence::one(service, call, &operation, Verb::Heartbeat)?;
    match propose(service, call, operation, Verb::Heartbeat).await? {
        (Outcome::Heartbeats(results), at) => match results.first() {
            Some(Ok(extended)) => Ok(reply(&answer::heartbeat(extended), Some(at))),
            Some(Err(rejection)) => Err(refuse(service, rejection, Verb::Heartbeat, at)),
            None => Err(unexpected(&Outcome::Heartbeats(results)).into()),
        },
        (other, _) => Err(unexpected(&other).into()),
    }
}

pub(super) async fn heartbeat_jobs(
    service: &Service,
    call: &Call,
    request: v1::HeartbeatJobsRequest,
) -> Result<Reply, NotRun> {
    let mut batch = Batch::of(request::heartbeats(request)?);
    let mut operation = Operation::Heartbeat(batch.take());
    batch.drop_stale(service, call, &mut operation, Verb::Heartbeat);
    let (outcomes, at) = match batch.is_all_refused() {
        true => (Vec::new(), None),
        false => match propose(service, call, operation, Verb::Heartbeat).await? {
            (Outcome::Heartbeats(outcomes), at) => (outcomes, Some(at)),
            (other, _) => return Err(unexpected(&other).into()),
        },
    };
    let refused = |status| v1::HeartbeatJobResult { status: Some(status), heartbeat: None };
    let results = batch.results(outcomes, refused, |outcome| {
        Ok(match outcome {
            Ok(extended) => v1::HeartbeatJobResult {
                status: Some(v1::EntryStatus::default()),
                heartbeat: Some(answer::heartbeat(&extended)),
            },
            Err(rejection) => refused(entry_status(service, &rejection, Verb::Heartbeat)),
        })
    })?;
    Ok(reply(&v1::HeartbeatJobsResponse { results }, at))
}

fn refuse(service: &Service, rejection: &Rejection, verb: Verb, at: LogPosition) -> NotRun {
    service.metrics.refused(verb, rejection);
    Failure::rejection(rejection, verb, Some(at)).into()
}

fn entry_status(service: &Service, rejection: &Rejection, verb: Verb) -> v1::EntryStatus {
    service.metrics.refused(verb, rejection);
    Failure::rejection(rejection, verb, None).entry_status()
}

pub(super) async fn complete_job(
    service: &Service,
    call: &Call,
    request: v1::CompleteJobRequest,
) -> Result<Reply, NotRun> {
    let operation = Operation::Complete(vec![request::complete(request)?]);
    fence::one(service, call, &operation, Verb::Complete)?;
    match propose(service, call, operation, Verb::Complete).await? {
        (Outcome::Completed(results), at) => match results.first() {
            Some(Ok(Completion::Now(done))) => Ok(reply(&show_changed(service, done, View::Whole)?, Some(at))),
            Some(Err(rejection)) => Err(refuse(service, rejection, Verb::Complete, at)),
            Some(Ok(Completion::Replayed(_))) | None => Err(unexpected(&Outcome::Completed(results)).into()),
        },
        (other, _) => Err(unexpected(&other).into()),
    }
}

pub(super) async fn complete_jobs(
    service: &Service,
    call: &Call,
    request: v1::CompleteJobsRequest,
) -> Result<Reply, NotRun> {
    let mut batch = Batch::of(request::completions(request)?);
    let mut operation = Operation::Complete(batch.take());
    batch.drop_stale(service, call, &mut operation, Verb::Complete);
    let (outcomes, at) = match batch.is_all_refused() {
        true => (Vec::new(), None),
        false => match propose(service, call, operation, Verb::Complete).await? {
            (Outcome::Completed(outcomes), at) => (outcomes, Some(at)),
            (other, _) => return Err(unexpected(&other).into()),
        },
    };
    let mut room = Room::default();
    let refused = |status| v1::CompleteJobResult { status: Some(status), job: None };
    let results = batch.results(outcomes, refused, |outcome| {
        Ok(match outcome {
            Ok(Completion::Now(done)) => v1::CompleteJobResult {
                status: Some(v1::EntryStatus::default()),
                job: Some(room.fit(show_changed(service, &done, View::Bare)?)),
            },
            Ok(Completion::Replayed(_)) => return Err(unexpected(&Outcome::Done)),
            Err(rejection) => refused(entry_status(service, &rejection, Verb::Complete)),
        })
    })?;
    Ok(reply(&v1::CompleteJobsResponse { results }, at))
}

pub(super) async fn fail_job(service: &Service, call: &Call, request: v1::FailJobRequest) -> Result<Reply, NotRun> {
    change_claim(service, call, Operation::Fail(request::fail(request)?), Verb::Fail).await
}

pub(super) async fn release_job(
    service: &Service,
    call: &Call,
    request: &v1::ReleaseJobRequest,
) -> Result<Reply, NotRun> {
    change_claim(service, call, Operation::Release(request::release(request)?), Verb::Release).await
}

async fn change_claim(service: &Service, call: &Call, operation: Operation, verb: Verb) -> Result<Reply, NotRun> {
    fence::one(service, call, &operation, verb)?;
    change_job(service, call, operation, verb).await
}

pub(super) async fn cancel_job(
    service: &Service,
    call: &Call,
    request: &v1::CancelJobRequest,
) -> Result<Reply, NotRun> {
    let job_id = request::job_id("job_id", &request.job_id)?.unwrap_or(NO_JOB);
    change_job(service, call, Operation::Cancel(job_id), Verb::Cancel).await
}

pub(super) async fn retry_job(service: &Service, call: &Call, request: &v1::RetryJobRequest) -> Result<Reply, NotRun> {
    let job_id = request::job_id("job_id", &request.job_id)?.unwrap_or(NO_JOB);
    change_job(service, call, Operation::Retry(job_id), Verb::Retry).await
}

/// The number that no job has.
const NO_JOB: JobId = JobId(0);

async fn change_job(service: &Service, call: &Call, operation: Operation, verb: Verb) -> Result<Reply, NotRun> {
    match propose(service, call, operation, verb).await? {
        (Outcome::Job(changed), at) => Ok(reply(&show_changed(service, &changed, View::Whole)?, Some(at))),
        (other, _) => Err(unexpected(&other).into()),
    }
}

pub(super) async fn get_job(service: &Service, call: &Call, request: &v1::GetJobRequest) -> Result<Reply, Failure> {
    let job_id = request::job_id("job_id", &request.job_id)?;
    let at = barrier(service, call, request.stale).await?;
    let job = job_id.and_then(|job_id| service.replica.read(|state| state.job(job_id).cloned()));
    let job = job.ok_or_else(|| Failure::rejection(&Rejection::JobNotFound, Verb::Get, at))?;
    Ok(reply(&show(service, &job, View::Whole)?, at))
}

pub(super) async fn list_jobs(service: &Service, call: &Call, request: &v1::ListJobsRequest) -> Result<Reply, Failure> {
    let filter = Filter::parse(request)?;
    let page_size = request::page_size(request.page_size)?;
    let after = page::open(&request.page_token, &filter.digest())?;
    let after = match after.as_deref() {
        None => JobId(0),
        Some(text) => JobId::parse(text).ok_or_else(page::made_up)?,
    };
    let at = barrier(service, call, request.stale).await?;
    let (jobs, last) = service.replica.read(|state| {
        let (mut found, mut bytes, mut last) = (Vec::new(), 0, None);
        for (scanned, job) in state.jobs_after(after).enumerate() {
            if found.len() >= page_size || bytes >= PAGE_BYTES_MAX || scanned >= SCAN_JOBS_MAX {
                return (found, last);
            }
            last = Some(job.job_id);
            if filter.matches(job) {
                bytes += job.answer_bytes() - u64::from(job.payload_bytes);
                found.push(job.clone());
            }
        }
        (found, None)
    });
    let jobs = jobs.iter().map(|job| show(service, job, View::Bare)).collect::<Result<_, _>>()?;
    let next_page_token = last.map_or_else(String::new, |last| page::seal(&last.to_string(), &filter.digest()));
    Ok(reply(&v1::ListJobsResponse { jobs, next_page_token }, at))
}

impl Filter {
    fn parse(request: &v1::ListJobsRequest) -> Result<Self, Failure> {
        let queue = match request.queue.as_str() {
            "" => None,
            name => Some(QueueName::parse("queue", name)?),
        };
        let state = v1::JobState::try_from(request.state)
            .map_err(|_| ag_core::name::FieldError::new("state", "must be the name of a state"))?;
        if request.label.len() > limits::LABELS_MAX {
            let bound = format!("at most {}", limits::LABELS_MAX);
            return Err(ag_core::name::FieldError::new("label", bound).into());
        }
        let mut labels = Vec::new();
        for (position, label) in request.label.iter().enumerate() {
            let (key, value) = match label.split_once('=') {
                None => (label.as_str(), None),
                Some((key, value)) => (key, Some(value.to_owned())),
            };
            if key.is_empty() || label.len() > limits::LABEL_KEY_BYTES_MAX + limits::LABEL_VALUE_BYTES_MAX + 1 {
                let bound = "must be `key=value` or `key`, within the bounds of labels";
                return Err(ag_core::name::FieldError::new(format!("label[{position}]"), bound).into());
            }
            labels.push((key.to_owned(), value));
        }
        Ok(Self { queue, state: answer::state_filter(state), labels })
    }

    fn matches(&self, job: &Job) -> bool {
        let labels = &job.notes().labels;
        self.queue.as_ref().is_none_or(|queue| *queue == job.queue)
            && self.state.is_none_or(|state: JobState| state == job.state)
            && self.labels.iter().all(|(key, value)| match (labels.get(key), value) {
                (Some(found), Some(wanted)) => found == wanted,
                (Some(_), None) => true,
                (None, _) => false,
            })
    }
}
