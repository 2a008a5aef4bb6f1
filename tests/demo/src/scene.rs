//! Workers that lost their claims, on purpose.
//!
//! A caller under another name is refused by its name. One under the same name, such as the former self of a worker
//! that was started again, is refused by the number of its claim: these scenes count both.

use std::time::{Duration, Instant};

use ag_client::{Claim, Client, Code, v1};
use anyhow::{Context as _, Result, ensure};

use crate::input::InputJob;
use crate::show::say;
use crate::workers::Worker;

/// How long any one thing may take, with a leader that is killed meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);
/// The lease of the claims that are let run out.
const SHORT_LEASE: Duration = Duration::from_secs(1);

/// What the scenes found.
#[derive(Default)]
pub struct Scenes {
    pub jobs: u64,
    /// Calls of an older claim, under another name, that were refused.
    pub refused: u64,
    /// Calls of an older claim, under the same name, that were refused.
    pub fenced_off: u64,
    /// Calls of an older claim, under the same name, completions apart, that were accepted.
    pub stale_calls: u64,
    /// Completions of an older claim, under the same name, that were accepted.
    pub stale_completions: u64,
    /// Reports by the real worker that was stopped and continued; it must not have made any.
    pub reports_of_stopped_worker: u64,
}

/// All scenes, one after the other.
pub async fn all(client: Client, addrs: String, job: InputJob, command: String, start: Instant) -> Result<Scenes> {
    let mut scenes = Scenes::default();
    let cluster_version = fenced(&client).await.context("the cluster version")?;
    say(start, &format!("the cluster is at version {cluster_version}: it compares the numbers of claims"));
    stopped_worker(&client, &addrs, &job, &command, start, &mut scenes).await.context("the stopped worker")?;
    other_name(&client, &job, &mut scenes).await.context("a stale caller with another name")?;
    same_name(&client, &job, &mut scenes).await.context("a stale caller with the same name")?;
    say(start, "the stale callers have had their say");
    Ok(scenes)
}

/// Waits until the cluster version, which rises by itself, has brought the fence. Gives it.
async fn fenced(client: &Client) -> Result<u32> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let cluster = client.get_cluster(v1::GetClusterRequest {}).await?.value;
        if cluster.cluster_version >= 2 {
            return Ok(cluster.cluster_version);
        }
        ensure!(Instant::now() < deadline, "the cluster is at version {} still", cluster.cluster_version);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A real worker is stopped past its lease, its job is done by a second one with the same label, and it is continued.
async fn stopped_worker(
    client: &Client,
    addrs: &str,
    job: &InputJob,
    command: &str,
    start: Instant,
    scenes: &mut Scenes,
) -> Result<()> {
    let (queue, label) = ("demo-stopped", "demo-restarted");
    let job_id = enqueue(client, queue, job).await?;
    scenes.jobs += 1;
    // Slow, so that there is time to stop it in the middle, and done long before it is continued, so that the
    // completion is the very next thing it would do.
    let mut first = Worker::start(addrs, queue, label, &format!("sleep 1.5\n{command}"), "2s")?;
    until(client, &job_id, "claimed", |job| job.attempts == 1).await?;
    first.signal("STOP")?;
    say(start, "stopped a worker that holds a claim");
    until(client, &job_id, "lapsed", |job| job.lapsed).await?;
    let second = Worker::start(addrs, queue, label, command, "2s")?;
    let done =
        until(client, &job_id, "done by the second worker", |job| job.state() == v1::JobState::Completed).await?;
    // Once more when the second one, too, lost its claim to the leader's death.
    ensure!(done.attempts >= 2, "the job was claimed {} times", done.attempts);
    second.stop().await?;
    let before = reports(client, &job_id).await?;
    first.signal("CONT")?;
    say(start, "its job was done by a second one with the same label; continued it");
    // It claims again once it has dealt with its lost claim: a new job shows that it is back.
    let next = enqueue(client, queue, job).await?;
    scenes.jobs += 1;
    until(client, &next, "claimed by the continued worker", |job| job.attempts >= 1).await?;
    scenes.reports_of_stopped_worker = reports(client, &job_id).await? - before;
    ensure!(first.runs(), "the continued worker has ended");
    until(client, &next, "done by the continued worker", |job| job.state() == v1::JobState::Completed).await?;
    first.stop().await
}

/// How many reports about this job the audit log holds, accepted or refused.
async fn reports(client: &Client, job_id: &str) -> Result<u64> {
    let (mut after, mut count) = (0, 0);
    loop {
        let request = v1::ListAuditRecordsRequest { after, page_size: Some(1_000), stale: false };
        let page = client.list_audit_records(request).await?.value;
        let Some(last) = page.records.last() else { return Ok(count) };
        after = last.sequence;
        let verbs = ["complete", "fail", "release"];
        let about = |record: &&v1::AuditRecord| record.job_id == job_id && verbs.contains(&record.verb.as_str());
        count += page.records.iter().filter(about).count() as u64;
    }
}

/// A claim runs out and a worker with another name gets the job: whatever the first one sends is refused.
async fn other_name(client: &Client, job: &InputJob, scenes: &mut Scenes) -> Result<()> {
    let queue = "demo-other-name";
    let job_id = enqueue(client, queue, job).await?;
    scenes.jobs += 1;
    let old = claim(client, queue, "demo-old", 1).await?;
    until(client, &job_id, "lapsed", |job| job.lapsed).await?;
    let new = claim(client, queue, "demo-new", 2).await?;
    let heartbeaten = client.heartbeat_job(&old, v1::HeartbeatJobRequest::default()).await.map(drop);
    let completed = client.complete_job(&old, complete("stale")).await.map(drop);
    let failed = client.fail_job(&old, v1::FailJobRequest::default()).await.map(drop);
    for (verb, answer, code) in [
        ("heartbeat", heartbeaten, Code::NotFound),
        ("complete", completed, Code::FailedPrecondition),
        ("fail", failed, Code::NotFound),
    ] {
        let error = answer.err().with_context(|| format!("a stale {verb} under another name got through"))?;
        ensure!((error.code(), error.reason()) == (code, "CLAIM_LOST"), "a stale {verb} was refused as {error}");
        scenes.refused += 1;
    }
    client.complete_job(&new, complete("the new claim's result")).await?;
    let done = get(client, &job_id).await?;
    ensure!(done.result == b"the new claim's result", "the result is not that of the claim that held the job");
    Ok(())
}

/// The same, but the second worker has the name of the first, as a worker that was started again has.
async fn same_name(client: &Client, job: &InputJob, scenes: &mut Scenes) -> Result<()> {
    let (queue, label) = ("demo-same-name", "demo-twin");
    let job_id = enqueue(client, queue, job).await?;
    scenes.jobs += 1;
    let old = claim(client, queue, label, 1).await?;
    until(client, &job_id, "lapsed", |job| job.lapsed).await?;
    let new = claim(client, queue, label, 2).await?;
    // The caller is the OLD one, that holds claim 1 while the record says 2.
    let before = get(client, &job_id).await?;
    ensure!(old.fencing_token() < before.attempts.into(), "the old claim's number is the newest");
    let heartbeaten = client.heartbeat_job(&old, v1::HeartbeatJobRequest::default()).await.map(drop);
    let failed = client.fail_job(&old, v1::FailJobRequest::default()).await.map(drop);
    let released = client.release_job(&old).await.map(drop);
    let completed = client.complete_job(&old, complete("the old claim's result")).await.map(drop);
    scenes.stale_completions += u64::from(completed.is_ok());
    scenes.stale_calls += [&heartbeaten, &failed, &released].into_iter().filter(|answer| answer.is_ok()).count() as u64;
    for error in [heartbeaten, failed, released, completed].into_iter().filter_map(Result::err) {
        ensure!(error.reason() == "STALE_FENCING_TOKEN", "a stale call was refused as {error}");
        scenes.fenced_off += 1;
    }
    ensure!(
        scenes.stale_calls + scenes.stale_completions > 0 || get(client, &job_id).await? == before,
        "the job changed"
    );
    client.complete_job(&new, complete("the new claim's result")).await?;
    let done = get(client, &job_id).await?;
    ensure!(done.result == b"the new claim's result", "the result is not that of the claim that held the job");
    Ok(())
}

async fn enqueue(client: &Client, queue: &str, job: &InputJob) -> Result<String> {
    let payload = job.payload.clone().into_bytes();
    let request = v1::EnqueueJobRequest { queue: queue.into(), payload, ..Default::default() };
    Ok(client.enqueue_job(request).await?.value.job_id)
}

async fn claim(client: &Client, queue: &str, label: &str, attempts: u32) -> Result<Claim> {
    let request = v1::ClaimJobRequest {
        queues: vec![queue.into()],
        worker: label.into(),
        lease: prost_types::Duration::try_from(SHORT_LEASE).ok(),
        wait: prost_types::Duration::try_from(Duration::from_secs(10)).ok(),
        request_id: String::new(),
    };
    let job = client.claim_job(request).await?.value.job.context("there was no job to claim")?;
    ensure!(job.attempts == attempts, "the claim has number {}, not {attempts}", job.attempts);
    Claim::of(&job, label).context("the claim has no number")
}

fn complete(result: &str) -> v1::CompleteJobRequest {
    v1::CompleteJobRequest { result: result.as_bytes().to_vec(), ..Default::default() }
}

async fn get(client: &Client, job_id: &str) -> Result<v1::Job> {
    Ok(client.get_job(v1::GetJobRequest { job_id: job_id.into(), stale: false }).await?.value)
}

async fn until(client: &Client, job_id: &str, what: &str, check: impl Fn(&v1::Job) -> bool) -> Result<v1::Job> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let job = get(client, job_id).await?;
        if check(&job) {
            return Ok(job);
        }
        ensure!(Instant::now() < deadline, "job {job_id} is not {what} after {} s", PATIENCE.as_secs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
