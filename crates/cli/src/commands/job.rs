//! `ag job`: the verbs of jobs.

use std::path::PathBuf;
use std::time::Duration;

use ag_client::v1;
use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};

use crate::connect::{Connect, duration, proto};
use crate::exit::{Exit, NOT_FOUND};
use crate::output::{self, Payload};

/// The verbs of jobs. What they answer is printed as JSON.
#[derive(Subcommand, Clone, Debug)]
pub enum Job {
    /// Put a job into a queue.
    Enqueue(Enqueue),
    /// Claim the next job. Exit code 3 when there is none.
    Claim(Claim),
    /// Extend a claim.
    Heartbeat(Heartbeat),
    /// Complete a claimed job.
    Complete(Complete),
    /// Report that a claim failed.
    Fail(Fail),
    /// Give a claim back unused.
    Release(OnClaim),
    /// Cancel a job.
    Cancel(OnJob),
    /// Give a dead or cancelled job a fresh retry budget.
    Retry(OnJob),
    /// Show a job.
    Get(Get),
    /// List jobs.
    List(List),
}

/// See [`Job::Enqueue`].
#[derive(Args, Clone, Debug)]
pub struct Enqueue {
    /// The queue.
    #[arg(long)]
    queue: String,
    #[command(flatten)]
    payload: Payload,
    /// Higher is claimed first.
    #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
    priority: i32,
    /// Not to be claimed before this time has passed.
    #[arg(long, value_parser = duration)]
    delay: Option<Duration>,
    /// The retry budget.
    #[arg(long)]
    max_attempts: Option<u32>,
    /// The lease of claims that name none.
    #[arg(long, value_parser = duration)]
    lease: Option<Duration>,
    /// While an unfinished job of the queue has this key, it is answered instead.
    #[arg(long, default_value = "")]
    dedupe_key: String,
    /// A label; may be given several times.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// To repeat the call safely.
    #[arg(long, default_value = "")]
    request_id: String,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE")?;
    Ok((key.into(), value.into()))
}

/// See [`Job::Claim`].
#[derive(Args, Clone, Debug)]
pub struct Claim {
    /// The queue; may be given several times.
    #[arg(long = "queue", required = true)]
    queues: Vec<String>,
    /// The worker's label.
    #[arg(long)]
    worker: String,
    /// The lease.
    #[arg(long, value_parser = duration)]
    lease: Option<Duration>,
    /// How long to wait for a job.
    #[arg(long, value_parser = duration)]
    wait: Option<Duration>,
    /// To repeat the call safely.
    #[arg(long, default_value = "")]
    request_id: String,
}

/// A claim.
#[derive(Args, Clone, Debug)]
pub struct OnClaim {
    /// The job's id.
    job_id: String,
    /// The worker's label.
    #[arg(long)]
    worker: String,
    /// The claim's number, `attempts` of the claimed job: a call of an older claim is refused. 0: not given, the holder
    /// is known by its name alone.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    fencing_token: u64,
}

/// A job.
#[derive(Args, Clone, Debug)]
pub struct OnJob {
    /// The job's id.
    job_id: String,
}

/// See [`Job::Heartbeat`].
#[derive(Args, Clone, Debug)]
pub struct Heartbeat {
    #[command(flatten)]
    claim: OnClaim,
    /// The lease, from now.
    #[arg(long, value_parser = duration)]
    lease: Option<Duration>,
    /// Progress to be stored, as text.
    #[arg(long, default_value = "")]
    progress: String,
}

/// See [`Job::Complete`].
#[derive(Args, Clone, Debug)]
pub struct Complete {
    #[command(flatten)]
    claim: OnClaim,
    /// The result, as text.
    #[arg(long, conflicts_with = "result_file")]
    result: Option<String>,
    /// A file with the result; `-`: standard input.
    #[arg(long, value_name = "FILE")]
    result_file: Option<PathBuf>,
    /// A file with an attestation.
    #[arg(long, value_name = "FILE", requires = "attestation_type")]
    attestation_file: Option<PathBuf>,
    /// Its media type.
    #[arg(long, default_value = "")]
    attestation_type: String,
    /// To repeat the call safely.
    #[arg(long, default_value = "")]
    request_id: String,
}

/// See [`Job::Fail`].
#[derive(Args, Clone, Debug)]
pub struct Fail {
    #[command(flatten)]
    claim: OnClaim,
    /// Why.
    #[arg(long, default_value = "")]
    reason: String,
    /// How long until the next try.
    #[arg(long, value_parser = duration)]
    retry_after: Option<Duration>,
    /// Do not try again.
    #[arg(long)]
    permanent: bool,
}

/// See [`Job::Get`].
#[derive(Args, Clone, Debug)]
pub struct Get {
    #[command(flatten)]
    job: OnJob,
    /// Print only the result's bytes.
    #[arg(long)]
    result: bool,
    /// Take what the replica has at hand, which may lag behind.
    #[arg(long)]
    stale: bool,
}

/// The states by which a listing can be narrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum State {
    /// Its time has not come.
    Scheduled,
    /// May be claimed.
    Ready,
    /// Claimed.
    Claimed,
    /// Done.
    Completed,
    /// Given up.
    Dead,
    /// Cancelled.
    Cancelled,
}

impl State {
    fn proto(self) -> v1::JobState {
        match self {
            Self::Scheduled => v1::JobState::Scheduled,
            Self::Ready => v1::JobState::Ready,
            Self::Claimed => v1::JobState::Claimed,
            Self::Completed => v1::JobState::Completed,
            Self::Dead => v1::JobState::Dead,
            Self::Cancelled => v1::JobState::Cancelled,
        }
    }
}

/// See [`Job::List`].
#[derive(Args, Clone, Debug)]
pub struct List {
    /// Only this queue.
    #[arg(long, default_value = "")]
    queue: String,
    /// Only this state.
    #[arg(long, value_enum)]
    state: Option<State>,
    /// Only jobs with this label, KEY=VALUE or KEY; may be given several times.
    #[arg(long = "label")]
    labels: Vec<String>,
    /// At most this many.
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// As JSON, one message with all of them.
    #[arg(long)]
    json: bool,
}

impl Job {
    /// Runs the verb.
    pub async fn run(self, connect: &Connect) -> Result<()> {
        let client = connect.client()?;
        match self {
            Self::Enqueue(args) => {
                let request = v1::EnqueueJobRequest {
                    queue: args.queue,
                    payload: args.payload.read()?,
                    priority: args.priority,
                    run_at: None,
                    delay: args.delay.map(proto),
                    max_attempts: args.max_attempts,
                    lease: args.lease.map(proto),
                    dedupe_key: args.dedupe_key,
                    labels: args.labels.into_iter().collect(),
                    request_id: args.request_id,
                };
                show(&client.enqueue_job(request).await?.value)
            }
            Self::Claim(args) => {
                let request = v1::ClaimJobRequest {
                    queues: args.queues,
                    worker: args.worker,
                    lease: args.lease.map(proto),
                    wait: args.wait.map(proto),
                    request_id: args.request_id,
                };
                match client.claim_job(request).await?.value.job {
                    Some(job) => show(&job),
                    None => Err(Exit { code: NOT_FOUND, message: "there is no job to be claimed".into() }.into()),
                }
            }
            Self::Heartbeat(args) => {
                let request = v1::HeartbeatJobRequest {
                    job_id: args.claim.job_id,
                    worker: args.claim.worker,
                    lease: args.lease.map(proto),
                    progress: args.progress.into_bytes(),
                    fencing_token: args.claim.fencing_token,
                };
                output::json("agwp.v1.HeartbeatJobResponse", &client.raw().heartbeat_job(request).await?.value)
            }
            Self::Complete(args) => show(&client.raw().complete_job(args.request()?).await?.value),
            Self::Fail(args) => {
                let request = v1::FailJobRequest {
                    job_id: args.claim.job_id,
                    worker: args.claim.worker,
                    reason: args.reason,
                    retry_after: args.retry_after.map(proto),
                    permanent: args.permanent,
                    fencing_token: args.claim.fencing_token,
                };
                show(&client.raw().fail_job(request).await?.value)
            }
            Self::Release(args) => {
                let request = v1::ReleaseJobRequest {
                    job_id: args.job_id,
                    worker: args.worker,
                    fencing_token: args.fencing_token,
                };
                show(&client.raw().release_job(request).await?.value)
            }
            Self::Cancel(args) => show(&client.cancel_job(v1::CancelJobRequest { job_id: args.job_id }).await?.value),
            Self::Retry(args) => show(&client.retry_job(v1::RetryJobRequest { job_id: args.job_id }).await?.value),
            Self::Get(args) => {
                let request = v1::GetJobRequest { job_id: args.job.job_id, stale: args.stale };
                let job = client.get_job(request).await?.value;
                if !args.result {
                    return show(&job);
                }
                use std::io::Write as _;
                Ok(std::io::stdout().lock().write_all(&job.result)?)
            }
            Self::List(args) => args.run(&client).await,
        }
    }
}

fn show(job: &v1::Job) -> Result<()> {
    output::json("agwp.v1.Job", job)
}

impl Complete {
    fn request(self) -> Result<v1::CompleteJobRequest> {
        let result = match (self.result, self.result_file) {
            (Some(text), _) => text.into_bytes(),
            (None, Some(path)) => output::read_file(&path)?,
            (None, None) => Vec::new(),
        };
        let attestation = self.attestation_file.map(|path| output::read_file(&path)).transpose()?;
        Ok(v1::CompleteJobRequest {
            job_id: self.claim.job_id,
            worker: self.claim.worker,
            result,
            attestation: attestation.unwrap_or_default(),
            attestation_type: self.attestation_type,
            request_id: self.request_id,
            fencing_token: self.claim.fencing_token,
        })
    }
}

impl List {
    async fn run(self, client: &ag_client::Client) -> Result<()> {
        let mut jobs = Vec::new();
        let mut page_token = String::new();
        while jobs.len() < self.limit {
            let request = v1::ListJobsRequest {
                queue: self.queue.clone(),
                state: self.state.map_or(v1::JobState::Unspecified, State::proto).into(),
                label: self.labels.clone(),
                page_size: Some(i32::try_from((self.limit - jobs.len()).min(1_000)).unwrap_or(1_000)),
                page_token: page_token.clone(),
                stale: false,
            };
            let page = client.list_jobs(request).await?.value;
            jobs.extend(page.jobs);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        if self.json {
            return output::json(
                "agwp.v1.ListJobsResponse",
                &v1::ListJobsResponse { jobs, next_page_token: page_token },
            );
        }
        let row = |job: &v1::Job| {
            let state = if job.lapsed { "LAPSED" } else { job.state().as_str_name() };
            let attempts = format!("{}/{}", job.attempts - job.releases.min(job.attempts), job.max_attempts);
            vec![
                job.job_id.clone(),
                job.queue.clone(),
                state.into(),
                job.priority.to_string(),
                attempts,
                job.claimed_by.clone(),
            ]
        };
        let rows: Vec<_> = jobs.iter().map(row).collect();
        output::table(&["JOB", "QUEUE", "STATE", "PRIORITY", "ATTEMPTS", "CLAIMED BY"], &rows)
    }
}
