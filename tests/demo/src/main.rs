//! The main job of ag, on real input: a cluster of three replicas on this machine, one validation job for each
//! installed Debian package, several real workers; the leader is killed and a worker is stopped in the middle. At the
//! end a table says what happened, and the exit code whether it is what should have.

mod audit;
mod cluster;
mod input;
mod process;
mod scene;
mod show;
mod workers;

use std::time::{Duration, Instant};

use ag_client::v1;
use anyhow::{Context as _, Result};
use tokio::signal::unix::{SignalKind, signal};

use crate::audit::Tally;
use crate::cluster::{Leader, LocalCluster};
use crate::input::Input;
use crate::show::{Findings, say};
use crate::workers::Worker;

/// The queue of the validation jobs.
const QUEUE: &str = "verify";
/// How many workers share them.
const WORKERS: usize = 4;
/// The demo gives up after this long.
const TIME_MAX: Duration = Duration::from_secs(280);
/// How long the validation jobs may take, from when the first is enqueued.
const WORK_MAX: Duration = Duration::from_secs(200);
/// The leases of the workers: long enough for the largest package on a busy machine, with heartbeats.
const LEASE: &str = "5s";

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let demo = tokio::time::timeout(TIME_MAX, demo());
    // Dropping the demo ends all its processes: each is owned by a value of it.
    let result = tokio::select! {
        result = demo => result.unwrap_or_else(|_| Err(anyhow::anyhow!("not done after {} s", TIME_MAX.as_secs()))),
        signal = told_to_stop() => signal.and_then(|()| Err(anyhow::anyhow!("told to stop"))),
    };
    match result {
        Ok(true) => std::process::ExitCode::SUCCESS,
        Ok(false) => std::process::ExitCode::from(1),
        Err(error) => {
            eprintln!("demo: {error:#}");
            std::process::ExitCode::from(2)
        }
    }
}

/// SIGINT or SIGTERM.
async fn told_to_stop() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot watch for SIGTERM")?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        interrupted = tokio::signal::ctrl_c() => interrupted.context("cannot watch for SIGINT"),
    }
}

/// Whether everything was as it should be.
async fn demo() -> Result<bool> {
    let start = Instant::now();
    let input = Input::find()?;
    say(start, &format!("{}: {} jobs", input.title, input.jobs.len()));
    let mut cluster = LocalCluster::start(start).await?;
    let client = cluster.client()?;

    let work_start = Instant::now();
    let job_ids = enqueue(&client, &input).await?;
    say(start, &format!("enqueued {} jobs; {WORKERS} workers start", job_ids.len()));
    let workers =
        (1..=WORKERS).map(|n| Worker::start(&cluster.addrs(), QUEUE, &format!("demo-{n}"), &input.command, LEASE));
    let workers = workers.collect::<Result<Vec<_>>>()?;
    let mut findings = Findings::new(&input, job_ids.len());

    // The scenes with workers that lost their claims go on beside the work, and through the failover.
    let scenes =
        tokio::spawn(scene::all(client.clone(), cluster.addrs(), input.one_more(), input.command.clone(), start));
    findings.failover = Some(kill_leader_in_the_middle(&client, &mut cluster, job_ids.len(), start).await?);
    until_done(&client, job_ids.len(), work_start, start).await?;
    findings.work_took = work_start.elapsed();
    findings.scenes = scenes.await.context("the scenes ended badly")??;
    for worker in workers {
        worker.stop().await?;
    }

    say(start, "reading the audit log and every result");
    let tally = Tally::read(&client).await?;
    findings.read_results(&client, &job_ids, &tally).await?;
    findings.hashes = cluster.same_hash(start).await?;
    cluster.stop().await?;
    findings.took = start.elapsed();
    Ok(findings.print(&tally))
}

async fn enqueue(client: &ag_client::Client, input: &Input) -> Result<Vec<String>> {
    let mut job_ids = Vec::with_capacity(input.jobs.len());
    for batch in input.jobs.chunks(500) {
        let jobs = batch.iter().map(|job| v1::EnqueueJobRequest {
            queue: QUEUE.into(),
            payload: job.payload.clone().into_bytes(),
            labels: [("input".to_owned(), job.name.clone())].into(),
            ..Default::default()
        });
        let request = v1::EnqueueJobsRequest { jobs: jobs.collect(), ..Default::default() };
        let answer = client.enqueue_jobs(request).await.context("cannot enqueue the jobs")?;
        job_ids.extend(answer.value.jobs.into_iter().map(|job| job.job_id));
    }
    Ok(job_ids)
}

async fn counts(client: &ag_client::Client) -> Result<v1::QueueCounts> {
    let request = v1::GetQueueRequest { queue: QUEUE.into(), stale: false };
    Ok(client.get_queue(request).await.context("cannot read the queue")?.value.counts.unwrap_or_default())
}

/// Waits until a third of the jobs is done, kills the leader with SIGKILL, and measures how long it takes until the
/// cluster answers a linearizable read again.
async fn kill_leader_in_the_middle(
    client: &ag_client::Client,
    cluster: &mut LocalCluster,
    jobs: usize,
    start: Instant,
) -> Result<show::Failover> {
    let give_up = Instant::now() + WORK_MAX;
    let mut shown = show::Progress::new(start, jobs);
    loop {
        let counts = counts(client).await?;
        if counts.completed as usize >= jobs / 3 {
            break;
        }
        anyhow::ensure!(Instant::now() < give_up, "a third of the jobs is not done after {} s", WORK_MAX.as_secs());
        shown.show(&counts);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let before = counts(client).await?;
    let Leader { replica_id, pid, term } = cluster.leader().await?;
    process::signal(pid, "KILL")?;
    let killed_at = Instant::now();
    say(
        start,
        &format!("killed the leader, replica {replica_id} (process {pid}), with {} jobs done", before.completed),
    );
    let after = counts(client).await?;
    let gap = killed_at.elapsed();
    // The one that was killed may have been elected again, if it was started again in time.
    let next = cluster.leader_after(term).await?;
    let (successor, terms) = (next.replica_id, (term, next.term));
    say(start, &format!("replica {successor} leads; the cluster answered again after {} ms", gap.as_millis()));
    let (done_before, done_after) = (before.completed, after.completed);
    Ok(show::Failover { killed: replica_id, successor, terms, gap, done_before, done_after })
}

async fn until_done(client: &ag_client::Client, jobs: usize, work_start: Instant, start: Instant) -> Result<()> {
    let mut shown = show::Progress::new(start, jobs);
    loop {
        let counts = counts(client).await?;
        if counts.completed as usize + counts.dead as usize >= jobs {
            shown.end(&counts);
            return Ok(());
        }
        anyhow::ensure!(work_start.elapsed() < WORK_MAX, "the jobs are not done after {} s", WORK_MAX.as_secs());
        shown.show(&counts);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
