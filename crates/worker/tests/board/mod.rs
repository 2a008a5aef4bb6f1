//! A small service with jobs and leases for a worker to talk to, that can be made to misbehave.

#![allow(dead_code, reason = "each test binary uses its own part")]

// Named here because the shared code below uses it.
use tonic_types as _;

#[path = "../../../client/tests/support/mod.rs"]
pub mod support;

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ag_client::{Client, v1};
use ag_worker::{Event, WorkerConfig, WorkerError, WorkerReport};
use support::{Fake, Script, refusal};
use tokio::sync::oneshot;
use tonic::{Code, Request, Response, Status};

type Reply<T> = Result<Response<T>, Status>;

/// What the service does with a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    #[default]
    Serve,
    /// Never answers.
    Hang,
    /// As for a claim that is gone.
    Refuse,
    /// As for an older claim under the name of the newest one's holder.
    Fence,
}

impl Mood {
    fn reason(self) -> &'static str {
        if self == Self::Fence { "STALE_FENCING_TOKEN" } else { "CLAIM_LOST" }
    }
}

/// The number of every claim that the service hands out.
pub const CLAIM_NUMBER: u32 = 7;

/// A call that has arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub verb: &'static str,
    pub job_id: String,
    pub request_id: String,
    pub fencing_token: u64,
    /// The result, the reason, or the progress.
    pub text: String,
    pub attestation: Vec<u8>,
    pub attestation_type: String,
    pub max_jobs: u32,
    pub waits: bool,
    pub at: Instant,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<v1::Job>,
    answered_claims: BTreeMap<String, Vec<v1::Job>>,
    seen: Vec<Seen>,
    cancel: bool,
    heartbeats: Mood,
    completions: Mood,
    hold_claims_for: Duration,
}

#[derive(Default)]
pub struct Board(Mutex<State>);

impl Board {
    /// A service with jobs that have these payloads.
    pub fn with(payloads: &[&str]) -> Self {
        let board = Self::default();
        payloads.iter().for_each(|payload| board.add(payload));
        board
    }

    pub fn add(&self, payload: &str) {
        let mut state = self.0.lock().unwrap();
        let job_id = format!("j{:016x}", state.waiting.len() + 1);
        let job = v1::Job { job_id, queue: "q".into(), payload: payload.into(), ..Default::default() };
        let job = v1::Job { attempts: CLAIM_NUMBER, releases: CLAIM_NUMBER - 1, ..job };
        state.waiting.push_back(job);
    }

    pub fn heartbeats(&self, mood: Mood) {
        self.0.lock().unwrap().heartbeats = mood;
    }

    pub fn completions(&self, mood: Mood) {
        self.0.lock().unwrap().completions = mood;
    }

    pub fn cancel(&self) {
        self.0.lock().unwrap().cancel = true;
    }

    /// Every claim call takes at least this long.
    pub fn hold_claims_for(&self, time: Duration) {
        self.0.lock().unwrap().hold_claims_for = time;
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.0.lock().unwrap().seen.clone()
    }

    pub fn verbs(&self) -> Vec<&'static str> {
        self.seen().iter().map(|seen| seen.verb).filter(|verb| *verb != "heartbeat").collect()
    }

    pub fn of(&self, verb: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.verb == verb).collect()
    }

    fn see(&self, verb: &'static str, job_id: &str, text: &[u8]) -> Seen {
        let seen = Seen {
            verb,
            job_id: job_id.into(),
            request_id: String::new(),
            fencing_token: 0,
            text: String::from_utf8_lossy(text).into(),
            attestation: Vec::new(),
            attestation_type: String::new(),
            max_jobs: 0,
            waits: false,
            at: Instant::now(),
        };
        self.0.lock().unwrap().seen.push(seen.clone());
        seen
    }

    fn amend(&self, change: impl FnOnce(&mut Seen)) {
        change(self.0.lock().unwrap().seen.last_mut().unwrap());
    }

    fn take(&self, request: &v1::ClaimJobsRequest) -> Vec<v1::Job> {
        let mut state = self.0.lock().unwrap();
        if let Some(jobs) = state.answered_claims.get(&request.request_id) {
            return jobs.clone();
        }
        let count = state.waiting.len().min(request.max_jobs as usize);
        let jobs: Vec<v1::Job> = state.waiting.drain(..count).collect();
        if !jobs.is_empty() {
            state.answered_claims.insert(request.request_id.clone(), jobs.clone());
        }
        jobs
    }
}

#[tonic::async_trait]
impl Script for Board {
    async fn claim_jobs(&self, request: Request<v1::ClaimJobsRequest>) -> Reply<v1::ClaimJobsResponse> {
        let request = request.into_inner();
        let wait = request.wait.and_then(|wait| Duration::try_from(wait).ok()).unwrap_or_default();
        self.see("claim", "", b"");
        self.amend(|seen| {
            seen.request_id.clone_from(&request.request_id);
            (seen.max_jobs, seen.waits) = (request.max_jobs, !wait.is_zero());
        });
        let hold = self.0.lock().unwrap().hold_claims_for;
        if !hold.is_zero() {
            // The job is claimed at the end of the wait, as in a long poll.
            tokio::time::sleep(hold).await;
        }
        let end = Instant::now() + wait;
        loop {
            let jobs = self.take(&request);
            if !jobs.is_empty() || Instant::now() >= end {
                return Ok(Response::new(v1::ClaimJobsResponse { jobs }));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn heartbeat_jobs(&self, request: Request<v1::HeartbeatJobsRequest>) -> Reply<v1::HeartbeatJobsResponse> {
        let request = request.into_inner();
        for heartbeat in &request.heartbeats {
            self.see("heartbeat", &heartbeat.job_id, &heartbeat.progress);
            self.amend(|seen| seen.fencing_token = heartbeat.fencing_token);
        }
        let (mood, cancel_requested) = {
            let state = self.0.lock().unwrap();
            (state.heartbeats, state.cancel)
        };
        let result = |heartbeat: &v1::HeartbeatJobRequest| match mood {
            Mood::Serve | Mood::Hang => v1::HeartbeatJobResult {
                status: Some(v1::EntryStatus::default()),
                heartbeat: Some(v1::HeartbeatJobResponse {
                    cancel_requested,
                    lease: heartbeat.lease,
                    ..Default::default()
                }),
            },
            Mood::Refuse | Mood::Fence => v1::HeartbeatJobResult {
                status: Some(v1::EntryStatus {
                    code: Code::NotFound as i32,
                    reason: mood.reason().into(),
                    ..Default::default()
                }),
                heartbeat: None,
            },
        };
        if mood == Mood::Hang {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(v1::HeartbeatJobsResponse { results: request.heartbeats.iter().map(result).collect() }))
    }

    async fn complete_job(&self, request: Request<v1::CompleteJobRequest>) -> Reply<v1::Job> {
        let request = request.into_inner();
        self.see("complete", &request.job_id, &request.result);
        self.amend(|seen| {
            seen.request_id.clone_from(&request.request_id);
            seen.fencing_token = request.fencing_token;
            seen.attestation.clone_from(&request.attestation);
            seen.attestation_type.clone_from(&request.attestation_type);
        });
        let mood = self.0.lock().unwrap().completions;
        match mood {
            Mood::Serve => Ok(Response::new(v1::Job::default())),
            Mood::Hang => std::future::pending().await,
            Mood::Refuse | Mood::Fence => Err(refusal(Code::FailedPrecondition, mood.reason())),
        }
    }

    async fn fail_job(&self, request: Request<v1::FailJobRequest>) -> Reply<v1::Job> {
        self.see("fail", &request.get_ref().job_id, request.get_ref().reason.as_bytes());
        self.amend(|seen| seen.fencing_token = request.get_ref().fencing_token);
        Ok(Response::new(v1::Job::default()))
    }

    async fn release_job(&self, request: Request<v1::ReleaseJobRequest>) -> Reply<v1::Job> {
        self.see("release", &request.get_ref().job_id, b"");
        self.amend(|seen| seen.fencing_token = request.get_ref().fencing_token);
        Ok(Response::new(v1::Job::default()))
    }
}

/// A worker within this process.
pub struct Working {
    pub events: Arc<Mutex<Vec<(Event, Instant)>>>,
    stop: Option<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<Result<WorkerReport, WorkerError>>,
}

pub fn config(addr: &str, command: &str) -> WorkerConfig {
    let client = Client::builder().addrs(addr).build().unwrap();
    let config = WorkerConfig::new(client, vec!["q".into()], "w".into(), command.into());
    let (lease, stop_grace) = (Duration::from_secs(2), Duration::from_millis(300));
    WorkerConfig { lease, stop_grace, wait: Duration::from_millis(400), ..config }
}

pub fn start(mut config: WorkerConfig) -> Working {
    let events = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&events);
    config.observer = Some(Arc::new(move |event: &Event| told.lock().unwrap().push((event.clone(), Instant::now()))));
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(ag_worker::run(config, async {
        let _ = stopped.await;
    }));
    Working { events, stop: Some(stop), task }
}

impl Working {
    /// Waits until something of this name has happened.
    pub async fn until(&self, name: &str) -> (Event, Instant) {
        support::until(name, || self.find(name)).await
    }

    pub fn find(&self, name: &str) -> Option<(Event, Instant)> {
        self.events.lock().unwrap().iter().find(|(event, _)| event.name() == name).cloned()
    }

    pub fn tell_to_stop(&mut self) {
        drop(self.stop.take());
    }

    /// Stops the worker and waits for its end.
    pub async fn stop(mut self) -> WorkerReport {
        self.tell_to_stop();
        tokio::time::timeout(Duration::from_secs(30), self.task).await.expect("the worker ends").unwrap().unwrap()
    }
}

/// Runs a worker with `command` on one job until it has said how the claim ended, and gives that with the service.
pub async fn one(payload: &str, command: &str) -> (Event, Fake<Board>) {
    let fake = Fake::start(Board::with(&[payload]));
    let working = start(config(&fake.addr.to_string(), command));
    let ends = |event: &Event| !matches!(event, Event::Claimed(_) | Event::Started { .. });
    let ended =
        support::until("an end", || working.events.lock().unwrap().iter().map(|(event, _)| event.clone()).find(ends));
    let ended = ended.await;
    working.stop().await;
    (ended, fake)
}

/// The number that a command wrote to a file.
pub async fn pid_in(path: &Path) -> u32 {
    let read = || std::fs::read_to_string(path).ok().filter(|text| text.ends_with('\n'));
    support::until("a process id", || read().and_then(|text| text.trim().parse().ok())).await
}

/// Whether the process runs; one that has ended but was not reaped does not.
pub fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Waits until the process runs no more, and gives the moment.
pub async fn until_dead(pid: u32) -> Instant {
    support::until("a process to be dead", || (!runs(pid)).then(Instant::now)).await
}
