//! Workers that are paused past their leases, and whose jobs a restart of themselves under the same name takes over.

use std::path::Path;
use std::time::Duration;

use ag_client::v1;
use ag_cluster_tests::cluster::Cluster;
use ag_cluster_tests::proxy::Proxy;
use ag_cluster_tests::worker::Worker;
use ag_cluster_tests::{binary, http, until};
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(40);
const LABEL: &str = "builder-1";

async fn job(cluster: &Cluster, job_id: &str) -> Result<serde_json::Value> {
    Ok(http::get(&cluster.addr(1), &format!("/v1/jobs/{job_id}")).await?.json)
}

/// Waits until a job has this many claims, and stands in this state.
async fn becomes(cluster: &Cluster, job_id: &str, attempts: u64, state: &str) -> Result<()> {
    let ask = || async {
        let job = job(cluster, job_id).await?;
        Ok((job["attempts"] == attempts && job["state"] == state).then_some(()))
    };
    until(&format!("{job_id} is {state} with {attempts} claims"), PATIENCE, ask).await
}

/// How many files of this beginning the commands have left, each the trace of one that came so far.
fn traces(folder: &Path, beginning: &str) -> usize {
    let files = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    files.filter(|file| file.file_name().to_string_lossy().starts_with(beginning)).count()
}

/// What the story is about: one worker is away past its lease, another of the same name takes its job over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takeover {
    /// It has finished before the first comes back.
    Done,
    /// It is still at work.
    Running,
}

async fn story(takeover: Takeover) -> Result<()> {
    let cluster = Cluster::start(3, &[]).await?;
    cluster.at_version(2).await?;
    let folder = tempfile::tempdir()?;
    let addrs = cluster.addrs();
    let body = json!({"queue": "work", "payload": "cGF5bG9hZA=="});
    let enqueued = http::post(&addrs[0], "/v1/jobs", &body).await?.json;
    let job_id = enqueued["jobId"].as_str().context("a job id")?.to_owned();

    // Each command says that it began; the first would go on for a minute and then say that it ended.
    let slow = "touch began-$$; sleep 60; touch ended-first-$$; echo first";
    let first = Worker::start(&binary("ag-worker")?, &addrs, LABEL, slow, folder.path(), "first")?;
    let begun = || async { Ok((traces(folder.path(), "began-") == 1).then_some(())) };
    until("the first command runs", PATIENCE, begun).await?;
    becomes(&cluster, &job_id, 1, "CLAIMED").await?;
    first.signal(libc::SIGSTOP)?;

    let takes = if takeover == Takeover::Done { "0.1" } else { "12" };
    let second_exec = format!("touch began-$$; sleep {takes}; touch ended-second-$$; echo second");
    let second = Worker::start(&binary("ag-worker")?, &addrs, LABEL, &second_exec, folder.path(), "second")?;
    match takeover {
        Takeover::Done => becomes(&cluster, &job_id, 2, "COMPLETED").await?,
        Takeover::Running => becomes(&cluster, &job_id, 2, "CLAIMED").await?,
    }
    let before = job(&cluster, &job_id).await?;
    first.signal(libc::SIGCONT)?;
    // The first finds out by itself, or by a refusal, that it lost the claim, and ends its command.
    let lost = || async {
        Ok(first.words().contains("claim").then_some(())).map(|seen| seen.filter(|()| is_lost(&first.words())))
    };
    until("the first worker reports a lost claim", PATIENCE, lost).await?;
    if takeover == Takeover::Done {
        ensure!(job(&cluster, &job_id).await? == before, "a late call of the first worker changed the job");
    } else {
        becomes(&cluster, &job_id, 2, "COMPLETED").await?;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    ensure!(traces(folder.path(), "ended-first-") == 0, "the first worker's command went on to its end");
    ensure!(traces(folder.path(), "ended-second-") == 1, "the second worker's command did not end once");

    let job = job(&cluster, &job_id).await?;
    ensure!(job["result"] == "c2Vjb25kCg==", "the result is not the second worker's: {job}");
    let audit = cluster.audit(1).await?;
    let done = |verb: &str| {
        audit.iter().filter(|record| record.job_id == job_id && record.verb == verb && record.outcome == "done").count()
    };
    ensure!((done("claim"), done("complete")) == (2, 1), "{} claims, {} completions", done("claim"), done("complete"));
    let attested = audit.iter().filter(|record| record.details.contains_key("attestation_sha256")).count();
    let digest = job["attestationDigest"].as_str().unwrap_or_default();
    ensure!(attested == 1 && digest.len() == 64, "{attested} attestations: {job}");
    let failures: Vec<_> = audit.iter().filter(|record| record.verb == "fail" && record.outcome == "done").collect();
    ensure!(failures.is_empty(), "a lost claim was reported as an error of the job: {failures:?}");
    println!("first: {}", last_line(&first.words()));
    println!("second: {}", last_line(&second.words()));
    Ok(())
}

fn is_lost(words: &str) -> bool {
    let words = words.to_lowercase();
    words.contains("lost")
}

fn last_line(words: &str) -> &str {
    words
        .lines()
        .rfind(|line| line.to_lowercase().contains("lost"))
        .or_else(|| words.lines().last())
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_comes_back_after_its_job_was_done_by_its_restart_changes_nothing() -> Result<()> {
    story(Takeover::Done).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_comes_back_while_its_restart_is_at_work_changes_nothing() -> Result<()> {
    story(Takeover::Running).await
}

/// The late calls themselves, sent by a client that does not give up by itself as `ag-worker` does: all are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_late_call_of_the_paused_claim_is_refused() -> Result<()> {
    let cluster = Cluster::start(3, &[]).await?;
    cluster.at_version(2).await?;
    let client = cluster.client()?;
    let job = v1::EnqueueJobRequest { queue: "q".into(), ..Default::default() };
    let job_id = client.enqueue_job(job).await?.value.job_id;
    let lease = Some(prost_types::Duration { seconds: 0, nanos: 200_000_000 });
    let wait = Some(prost_types::Duration { seconds: 10, nanos: 0 });
    let (queues, worker) = (vec!["q".to_owned()], LABEL.to_owned());
    let claim = v1::ClaimJobRequest { queues, worker: worker.clone(), lease, wait, ..Default::default() };
    let first = client.claim_job(claim.clone()).await?.value.job.context("a job")?;
    let lease = Some(prost_types::Duration { seconds: 60, nanos: 0 });
    let second = client.claim_job(v1::ClaimJobRequest { lease, ..claim }).await?.value.job.context("the job again")?;
    ensure!((first.attempts, second.attempts, &second.job_id) == (1, 2, &job_id), "{first:?} {second:?}");
    for number in 1..=3 {
        let raw = cluster.client_of(number)?;
        let raw = raw.raw();
        let (job_id, worker, fencing_token) = (job_id.clone(), worker.clone(), 1);
        let beat = v1::HeartbeatJobRequest {
            job_id: job_id.clone(),
            worker: worker.clone(),
            fencing_token,
            ..Default::default()
        };
        let complete = v1::CompleteJobRequest {
            job_id: job_id.clone(),
            worker: worker.clone(),
            fencing_token,
            attestation: b"evidence".to_vec(),
            attestation_type: "text/plain".into(),
            ..Default::default()
        };
        let fail =
            v1::FailJobRequest { job_id: job_id.clone(), worker: worker.clone(), fencing_token, ..Default::default() };
        let release = v1::ReleaseJobRequest { job_id, worker, fencing_token };
        let errors = [
            raw.heartbeat_job(beat).await.err(),
            raw.complete_job(complete).await.err(),
            raw.fail_job(fail).await.err(),
            raw.release_job(release).await.err(),
        ];
        for error in errors {
            let error = error.context("a late call was accepted")?;
            ensure!(error.reason() == "STALE_FENCING_TOKEN", "{error}");
        }
    }
    let job = client.get_job(v1::GetJobRequest { job_id, stale: false }).await?.value;
    ensure!(job.attestation_digest.is_empty() && job.state() == v1::JobState::Claimed, "{job:?}");
    Ok(())
}

/// Ports 1, 2 and 3 of the first ten in a row that are free.
fn free_ten() -> Result<u16> {
    let free = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
    let own = std::process::id() as u16;
    let mut tens = (0..90).map(|n| 2_900 + (n + own) % 90);
    tens.find(|ten| (1..=3).all(|number| free(ten * 10 + number))).context("no free ports on the loopback address")
}

/// The same by a partition: the worker runs on, and cannot reach any replica. Its command is dead before the lease can
/// be over, and what was under way when the partition ends comes too late to change anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_was_cut_off_changes_nothing_once_its_job_is_handed_out_again() -> Result<()> {
    let ten = free_ten()?;
    // Clients are told to come by the proxies; who is told to stay where it is goes past them.
    let cluster = Cluster::start(3, &[("AG_ADVERTISE", &format!("127.0.0.1:{ten}{{replica}}"))]).await?;
    let mut ways = Vec::new();
    for number in 1..=3 {
        ways.push((format!("127.0.0.1:{ten}{number}").parse()?, cluster.addr(number).parse()?));
    }
    let proxy = Proxy::start(&ways).await?;
    cluster.at_version(2).await?;
    let folder = tempfile::tempdir()?;
    let by_proxy: Vec<_> = ways.iter().map(|(from, _)| from.to_string()).collect();
    let direct = cluster.client_of(2)?;
    let job = v1::EnqueueJobRequest { queue: "work".into(), payload: b"payload".to_vec(), ..Default::default() };
    let job_id = direct.enqueue_job(job).await?.value.job_id;
    let slow = "touch began-$$; sleep 60; touch ended-first-$$";
    let first = Worker::start(&binary("ag-worker")?, &by_proxy, LABEL, slow, folder.path(), "first")?;
    let begun = || async { Ok((traces(folder.path(), "began-") == 1).then_some(())) };
    until("the command runs", PATIENCE, begun).await?;
    let held = || async {
        let job = direct.get_job(v1::GetJobRequest { job_id: job_id.clone(), stale: false }).await?.value;
        Ok((job.attempts == 1).then_some(job))
    };
    until("the job is claimed", PATIENCE, held).await?;
    proxy.cut();
    let lost = || async { Ok(is_lost(&first.words()).then_some(())) };
    until("the worker that is cut off gives up its claim", PATIENCE, lost).await?;

    // Its restart, under the same name, on the other side.
    let wait = Some(prost_types::Duration { seconds: 20, nanos: 0 });
    let lease = Some(prost_types::Duration { seconds: 60, nanos: 0 });
    let (queues, worker) = (vec!["work".to_owned()], LABEL.to_owned());
    let claim = v1::ClaimJobRequest { queues, worker, lease, wait, ..Default::default() };
    let second = direct.claim_job(claim).await?.value.job.context("the job again")?;
    ensure!((second.attempts, &second.job_id) == (2, &job_id), "{second:?}");
    let before = direct.get_job(v1::GetJobRequest { job_id: job_id.clone(), stale: false }).await?.value;
    proxy.mend();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let after = direct.get_job(v1::GetJobRequest { job_id: job_id.clone(), stale: false }).await?.value;
    ensure!(after == before, "what was under way changed the job: {after:?}");
    ensure!(traces(folder.path(), "ended-first-") == 0, "the command went on to its end");
    let claim = ag_client::Claim::of(&second, LABEL).context("the claim has no number")?;
    let evidence = v1::CompleteJobRequest {
        result: b"second".to_vec(),
        attestation: b"{}".to_vec(),
        attestation_type: "text/json".into(),
        ..Default::default()
    };
    let done = direct.complete_job(&claim, evidence).await?.value;
    ensure!(done.fenced && !done.attestation_digest.is_empty(), "{done:?}");
    let audit = cluster.audit(1).await?;
    let of_job = |verb: &str, outcome: &str| {
        let records = audit.iter().filter(|record| record.job_id == job_id && record.verb == verb);
        records.filter(|record| record.outcome == outcome).count()
    };
    ensure!((of_job("claim", "done"), of_job("complete", "done")) == (2, 1), "{audit:?}");
    println!("late heartbeats of the first claim that were refused: {}", of_job("heartbeat", "STALE_FENCING_TOKEN"));
    Ok(())
}
