//! The claim loop.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use ag_client::{Answer, Claim, ClientError, Code, v1};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::beat;
use crate::claim::{self, EXIT_RELEASE, Shared};
use crate::config::{SettingError, WorkerConfig};
use crate::convert;
use crate::event::{Event, WorkerReport};
use crate::keeper::Keeper;
use crate::lease::{Grant, LeaseTable};
use crate::os;
use crate::progress::ProgressDir;

/// First and longest pause after a claim call that failed, or a command that asked for one.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How long it may take, when the worker stops, to learn whether its last claim call got jobs.
const LAST_CLAIM_MAX: Duration = Duration::from_secs(2);

/// Why a worker does not work.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// A setting does not keep its bound.
    #[error("a setting of the worker is not good")]
    Setting(#[source] SettingError),
    /// A thread, a helper process or a directory could not be made.
    #[error("cannot set up the worker")]
    SetUp(#[source] std::io::Error),
    /// The service refuses to hand out jobs to this worker at all.
    #[error("the service refuses this worker's claims")]
    Claim(#[source] ClientError),
}

/// Works until `shutdown` resolves, then takes no more jobs, lets running commands end within the drain grace, and
/// gives the rest back. Gives how many claims ended how.
pub async fn run(config: WorkerConfig, shutdown: impl Future<Output = ()>) -> Result<WorkerReport, WorkerError> {
    config.check().map_err(WorkerError::Setting)?;
    let table = LeaseTable::start().map_err(WorkerError::SetUp)?;
    let progress = ProgressDir::make().map_err(WorkerError::SetUp)?;
    let keeper = Arc::new(Keeper::start(progress.path()).map_err(WorkerError::SetUp)?);
    let (tell_stop, stop) = watch::channel(false);
    let mut beats = JoinSet::new();
    beats.spawn(beat::beat(config.client.clone(), config.lease, Arc::clone(&table)));
    let shared = Arc::new(Shared { config, table, keeper, progress, stop });
    let mut worker =
        Worker { shared, jobs: JoinSet::new(), report: WorkerReport::default(), pauses: 0, pause_until: None };
    let result = worker.claim_until(shutdown).await;
    worker.drain(&tell_stop).await;
    result.map(|()| worker.report)
}

struct Worker {
    shared: Arc<Shared>,
    jobs: JoinSet<Event>,
    report: WorkerReport,
    /// How many pauses there have been in a row.
    pauses: u32,
    pause_until: Option<Instant>,
}

impl Worker {
    async fn claim_until(&mut self, shutdown: impl Future<Output = ()>) -> Result<(), WorkerError> {
        let mut shutdown = std::pin::pin!(shutdown);
        let mut idle_since = Instant::now();
        loop {
            let free = self.shared.config.concurrency - self.jobs.len();
            let pause = self.pause_until.filter(|until| *until > Instant::now());
            if !self.jobs.is_empty() {
                idle_since = Instant::now();
            }
            if self.shared.config.exit_when_idle.is_some_and(|most| idle_since.elapsed() >= most) {
                return Ok(());
            }
            if free == 0 || pause.is_some() {
                let wake = async {
                    match pause {
                        Some(until) => tokio::time::sleep_until(until).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = &mut shutdown => return Ok(()),
                    Some(ended) = self.jobs.join_next() => self.ended(ended),
                    () = wake => {}
                }
                continue;
            }
            let request = self.claim_request(free);
            let client = self.shared.config.client.clone();
            let sent_at = os::boottime();
            let mut call = tokio::spawn({
                let request = request.clone();
                async move { client.claim_jobs(request).await }
            });
            let answer = loop {
                tokio::select! {
                    answer = &mut call => break answer,
                    () = &mut shutdown => {
                        call.abort();
                        self.give_back_last_claim(request).await;
                        return Ok(());
                    }
                    Some(ended) = self.jobs.join_next() => self.ended(ended),
                }
            };
            match answer {
                Ok(answer) => self.claimed(answer, sent_at).await?,
                Err(error) => {
                    tracing::error!(%error, "the task of a claim call is gone");
                    self.pause();
                }
            }
        }
    }

    fn claim_request(&self, free: usize) -> v1::ClaimJobsRequest {
        let config = &self.shared.config;
        let wait = config.exit_when_idle.map_or(config.wait, |most| config.wait.min(most));
        v1::ClaimJobsRequest {
            queues: config.queues.clone(),
            worker: config.label.clone(),
            lease: convert::duration(config.lease),
            wait: convert::duration(wait),
            request_id: ag_client::new_request_id(),
            max_jobs: free as u32,
        }
    }

    async fn claimed(
        &mut self,
        answer: Result<Answer<v1::ClaimJobsResponse>, ClientError>,
        sent_at: Duration,
    ) -> Result<(), WorkerError> {
        let jobs = match answer {
            Ok(answer) => answer.into_value().jobs,
            Err(error) => match error.code() {
                Code::InvalidArgument | Code::Unauthenticated | Code::PermissionDenied | Code::Unimplemented => {
                    return Err(WorkerError::Claim(error));
                }
                _ => {
                    tracing::warn!(%error, "cannot claim jobs; trying again");
                    self.pause();
                    return Ok(());
                }
            },
        };
        if jobs.is_empty() {
            return Ok(());
        }
        for job in &jobs {
            self.tell(Event::Claimed(claim::reference(job)));
        }
        let lease = self.shared.config.lease;
        let grant = Grant { sent_at, lease };
        // The call may have waited long before it was applied. The count from before it would leave too little of the
        // lease, so a heartbeat starts a new one, before anything runs.
        if os::boottime().saturating_sub(sent_at) > lease / 4 {
            for (job, grant) in self.confirm(jobs).await {
                self.jobs.spawn(claim::work(Arc::clone(&self.shared), job, grant));
            }
        } else {
            for job in jobs {
                self.jobs.spawn(claim::work(Arc::clone(&self.shared), job, grant));
            }
        }
        Ok(())
    }

    /// Extends claims that have not begun to run. Those that are not extended are told of as lost.
    async fn confirm(&mut self, jobs: Vec<v1::Job>) -> Vec<(v1::Job, Grant)> {
        // A claim without a number would be told as lost by its task.
        let (jobs, unnumbered): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| job.attempts > 0);
        for job in unnumbered {
            let reason = "the service gave the claim no number".to_owned();
            self.tell(Event::Lost { claim: claim::reference(&job), reason });
        }
        let config = &self.shared.config;
        let heartbeats: Vec<_> = jobs
            .iter()
            .filter_map(|job| Claim::of(job, &config.label))
            .map(|claim| {
                let lease = convert::duration(config.lease);
                (claim, v1::HeartbeatJobRequest { lease, ..Default::default() })
            })
            .collect();
        let client = config.client.with_deadline(config.lease).with_try_timeout(config.lease / 6);
        let sent_at = os::boottime();
        let grant = Grant { sent_at, lease: config.lease };
        let (results, problem) = match client.heartbeat_jobs(heartbeats).await {
            Ok(answer) => (answer.into_value().results, "its first heartbeat got no answer".to_owned()),
            Err(error) => (Vec::new(), format!("its first heartbeat got no answer: {error}")),
        };
        let mut confirmed = Vec::with_capacity(jobs.len());
        let mut results = results.into_iter();
        for job in jobs {
            let status = results.next().map(|result| result.status.unwrap_or_default());
            let reason = match status {
                Some(status) if status.code == Code::Ok as i32 => {
                    confirmed.push((job, grant));
                    continue;
                }
                Some(status) => format!("its first heartbeat was refused: {}", status.reason),
                None => problem.clone(),
            };
            self.tell(Event::Lost { claim: claim::reference(&job), reason });
        }
        confirmed
    }

    /// The last call was given up in the middle, and may have got jobs. The same call again, without a wait, gets the
    /// same answer; what it gets is given back.
    async fn give_back_last_claim(&mut self, mut request: v1::ClaimJobsRequest) {
        request.wait = None;
        let label = self.shared.config.label.clone();
        let client = self.shared.config.client.with_deadline(LAST_CLAIM_MAX);
        let jobs = match client.claim_jobs(request).await {
            Ok(answer) => answer.into_value().jobs,
            Err(error) => return tracing::warn!(%error, "cannot tell whether the last call claimed jobs"),
        };
        for job in jobs {
            let claim = claim::reference(&job);
            self.tell(Event::Claimed(claim.clone()));
            let Some(held) = Claim::of(&job, &label) else { continue };
            match client.release_job(&held).await {
                Ok(_) => self.tell(Event::Released { claim, reason: "the worker stops".into() }),
                Err(error) => self.tell(Event::Unknown { claim, reason: error.to_string() }),
            }
        }
    }

    async fn drain(&mut self, tell_stop: &watch::Sender<bool>) {
        let give_up = Instant::now() + self.shared.config.drain_grace;
        while !self.jobs.is_empty() {
            tokio::select! {
                Some(ended) = self.jobs.join_next() => self.ended(ended),
                () = tokio::time::sleep_until(give_up), if !*tell_stop.borrow() => {
                    tell_stop.send_replace(true);
                }
            }
        }
    }

    fn ended(&mut self, ended: Result<Event, tokio::task::JoinError>) {
        match ended {
            Ok(event) => {
                let asked = format!("the command exited with {EXIT_RELEASE}");
                match &event {
                    Event::Released { reason, .. } if *reason == asked => self.pause(),
                    Event::Completed(_) | Event::Failed { .. } => self.pauses = 0,
                    Event::Claimed(_)
                    | Event::Started { .. }
                    | Event::Released { .. }
                    | Event::Lost { .. }
                    | Event::Unknown { .. } => {}
                }
                self.tell(event);
            }
            // Its slot is dropped with it, which kills its command.
            Err(error) => tracing::error!(%error, "the task of a claim is gone"),
        }
    }

    fn pause(&mut self) {
        let pause = PAUSE_FIRST.saturating_mul(1 << self.pauses.min(10)).min(PAUSE_MAX);
        self.pauses += 1;
        self.pause_until = Some(Instant::now() + pause.mul_f64(0.5 + 0.5 * rand::random::<f64>()));
    }

    fn tell(&mut self, event: Event) {
        self.report.count(&event);
        self.shared.config.tell(&event);
    }
}
