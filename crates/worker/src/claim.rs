//! The life of one claim: run the command, follow the news, report the end.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ag_client::{Claim, v1};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::attest::{self, ATTESTATION_TYPE, Facts};
use crate::command::{self, Ended, RESULT_BYTES_MAX, Run, Running, Verdict};
use crate::config::WorkerConfig;
use crate::event::{ClaimRef, Event};
use crate::keeper::Keeper;
use crate::lease::{Grant, LeaseTable, News, Slot};
use crate::os::Signal;
use crate::progress::ProgressDir;
use crate::report::{self, Taken};

/// The exit code by which a command says that it cannot work on this job now, such as for want of something that it
/// needs: EX_TEMPFAIL of sysexits.h. The claim is given back, and the retry budget is not charged.
pub const EXIT_RELEASE: i32 = 75;

/// What the tasks of a worker share.
pub(crate) struct Shared {
    pub config: WorkerConfig,
    pub table: Arc<LeaseTable>,
    pub keeper: Arc<Keeper>,
    pub progress: ProgressDir,
    /// True: stop now, and give the job back.
    pub stop: watch::Receiver<bool>,
}

/// Why a command was stopped before its own end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopped {
    No,
    Cancelled,
    Drained,
    TooLong,
}

/// Works on a claimed job to its end. Gives how it ended.
pub(crate) async fn work(shared: Arc<Shared>, job: v1::Job, grant: Grant) -> Event {
    let claim = reference(&job);
    let Some(held) = Claim::of(&job, &shared.config.label) else {
        return Event::Lost { claim, reason: "the service gave the claim no number".into() };
    };
    let progress = shared.progress.file(&job.job_id, job.attempts);
    let run = run_of(&shared.config, &job, progress.path().display().to_string());
    let slot = Arc::new(shared.table.register(held.clone(), grant, progress));
    let started_ms = now_ms();
    if *shared.stop.borrow() {
        return give_back(&shared, &slot, &held, claim, "the worker stops").await;
    }
    let (ended, stopped) = match command::start(run, Arc::clone(&slot), Arc::clone(&shared.keeper)).await {
        Ok(running) => {
            shared.config.tell(&Event::Started { claim: claim.clone(), process_group: running.process_group });
            follow(&shared, &slot, running).await
        }
        Err(error) => (broken(format!("cannot start the command: {error}")), Stopped::No),
    };
    if let Err(reason) = slot.remaining() {
        return Event::Lost { claim, reason };
    }
    match (stopped, &ended.verdict) {
        (Stopped::Drained, _) => give_back(&shared, &slot, &held, claim, "the worker stops").await,
        (Stopped::Cancelled, _) => {
            fail(&shared, &slot, &job, &held, claim, "stopped, because it was cancelled".into()).await
        }
        (Stopped::TooLong, _) => {
            let allowed = shared.config.max_runtime.unwrap_or_default();
            let reason = format!("stopped, because it ran for longer than {} ms", allowed.as_millis());
            fail(&shared, &slot, &job, &held, claim, reason).await
        }
        (Stopped::No, Verdict::Exit(0)) => complete(&shared, &slot, &job, &held, claim, ended.result, started_ms).await,
        (Stopped::No, Verdict::Exit(EXIT_RELEASE)) => {
            give_back(&shared, &slot, &held, claim, &format!("the command exited with {EXIT_RELEASE}")).await
        }
        (Stopped::No, _) => fail(&shared, &slot, &job, &held, claim, reason(&ended)).await,
    }
}

/// Which claim of which job.
pub(crate) fn reference(job: &v1::Job) -> ClaimRef {
    ClaimRef { job_id: job.job_id.clone(), queue: job.queue.clone(), claim_number: job.attempts }
}

fn run_of(config: &WorkerConfig, job: &v1::Job, progress_file: String) -> Run {
    let environment = vec![
        ("AG_JOB_ID", job.job_id.clone()),
        ("AG_QUEUE", job.queue.clone()),
        ("AG_CLAIM_NUMBER", job.attempts.to_string()),
        ("AG_ATTEMPT", job.attempts.saturating_sub(job.releases).to_string()),
        ("AG_PROGRESS_FILE", progress_file),
    ];
    let (command, directory) = (config.command.clone(), config.directory.clone());
    Run { command, directory, environment, payload: job.payload.clone() }
}

fn broken(problem: String) -> Ended {
    Ended { result: Vec::new(), verdict: Verdict::Broken(problem), stderr_tail: String::new() }
}

/// Waits for the command's end, and stops it when that is asked for. The loss of the claim kills it without this.
async fn follow(shared: &Shared, slot: &Slot, mut running: Running) -> (Ended, Stopped) {
    let (mut news, mut stop) = (slot.news.clone(), shared.stop.clone());
    let mut stopped = Stopped::No;
    let mut kill_at: Option<Instant> = None;
    let too_long_at = shared.config.max_runtime.and_then(|time| Instant::now().checked_add(time));
    loop {
        let too_long = async {
            match too_long_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let cancel = async { news.wait_for(|news| *news == News::Cancel).await.is_ok() };
        let drain = async { stop.wait_for(|stop| *stop).await.is_ok() };
        let kill = async {
            match kill_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            ended = &mut running.ended => {
                return (ended.unwrap_or_else(|_| broken("the task that follows the command is gone".into())), stopped);
            }
            true = cancel, if stopped == Stopped::No => stopped = Stopped::Cancelled,
            true = drain, if stopped == Stopped::No => stopped = Stopped::Drained,
            () = too_long, if stopped == Stopped::No => stopped = Stopped::TooLong,
            () = kill => {
                slot.signal(Signal::Kill);
                kill_at = None;
                continue;
            }
        }
        slot.signal(Signal::Terminate);
        kill_at = Some(Instant::now() + shared.config.stop_grace);
    }
}

async fn complete(
    shared: &Shared,
    slot: &Slot,
    job: &v1::Job,
    held: &Claim,
    claim: ClaimRef,
    result: Vec<u8>,
    started_ms: u64,
) -> Event {
    let (label, command) = (shared.config.label.as_str(), shared.config.command.as_str());
    let facts = Facts { job, label, command, result: &result, started_ms, finished_ms: now_ms() };
    let (attestation, attestation_type) = match shared.config.attest {
        true => (attest::envelope(&facts), ATTESTATION_TYPE.to_owned()),
        false => (Vec::new(), String::new()),
    };
    let request = v1::CompleteJobRequest { result, attestation, attestation_type, ..Default::default() };
    match report::complete(&shared.config.client, slot, held, request).await {
        Taken::Yes => Event::Completed(claim),
        Taken::Lost(reason) => Event::Lost { claim, reason },
        Taken::Unknown(reason) => Event::Unknown { claim, reason },
    }
}

async fn fail(shared: &Shared, slot: &Slot, job: &v1::Job, held: &Claim, claim: ClaimRef, reason: String) -> Event {
    let request = report::failure(job, &reason, shared.config.retry_backoff);
    match report::fail(&shared.config.client, slot, held, request).await {
        Taken::Yes => Event::Failed { claim, reason },
        Taken::Lost(reason) => Event::Lost { claim, reason },
        Taken::Unknown(reason) => Event::Unknown { claim, reason },
    }
}

/// Gives a claim back.
async fn give_back(shared: &Shared, slot: &Slot, held: &Claim, claim: ClaimRef, reason: &str) -> Event {
    match report::release(&shared.config.client, slot, held).await {
        Taken::Yes => Event::Released { claim, reason: reason.into() },
        Taken::Lost(reason) => Event::Lost { claim, reason },
        Taken::Unknown(reason) => Event::Unknown { claim, reason },
    }
}

fn reason(ended: &Ended) -> String {
    let what = match &ended.verdict {
        Verdict::Exit(code) => format!("the command exited with {code}"),
        Verdict::Signal(signal) => format!("the command was killed by signal {signal}"),
        Verdict::TooMuchOutput => format!("the command's result is larger than {RESULT_BYTES_MAX} bytes"),
        Verdict::OutputLeftOpen => "the command ended, but something that it started kept its output open".into(),
        Verdict::Broken(problem) => problem.clone(),
    };
    match ended.stderr_tail.as_str() {
        "" => what,
        tail => format!("{what}; standard error ends with:\n{tail}"),
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
