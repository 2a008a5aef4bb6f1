//! Calls that go on somewhere else: on another replica, over another form, after their answer got lost.

use std::time::{Duration, Instant};

use ag_client::{Client, v1};
use ag_cluster_tests::cluster::Cluster;
use ag_cluster_tests::{http, until};
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(30);

fn claim(worker: &str, lease_s: i64) -> v1::ClaimJobRequest {
    v1::ClaimJobRequest {
        queues: vec!["q".into()],
        worker: worker.into(),
        lease: Some(prost_types::Duration { seconds: lease_s, nanos: 0 }),
        ..Default::default()
    }
}

async fn enqueue(client: &Client) -> Result<String> {
    let job = v1::EnqueueJobRequest { queue: "q".into(), ..Default::default() };
    Ok(client.enqueue_job(job).await?.value.job_id)
}

/// How many claims and completions of this job the audit log has as done.
async fn done(cluster: &Cluster, job_id: &str, verb: &str) -> Result<usize> {
    let records = cluster.audit(1).await?;
    let of_job = records.iter().filter(|record| record.job_id == job_id && record.outcome == "done");
    Ok(of_job.filter(|record| record.verb == verb).count())
}

/// Kind C. A claim made over gRPC on one replica is extended and completed over HTTP on the two others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_goes_on_over_http_on_any_other_replica() -> Result<()> {
    let cluster = Cluster::start(3, &[]).await?;
    let job_id = enqueue(&cluster.client()?).await?;
    let claimed = cluster.client_of(1)?.claim_job(claim("w", 2)).await?.value.job.context("a job")?;
    ensure!(claimed.job_id == job_id, "{claimed:?}");
    // The connection of the claim is gone. For longer than the lease, heartbeats come from elsewhere.
    let from = Instant::now();
    let mut beats = 0;
    while from.elapsed() < Duration::from_secs(4) {
        let addr = cluster.addr(2 + beats % 2);
        let beat = http::post(&addr, &format!("/v1/jobs/{job_id}:heartbeat"), &json!({"worker": "w"})).await?;
        ensure!(beat.status == 200 && beat.json["leaseExpiresAt"].is_string(), "{beat:?}");
        beats += 1;
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    let other = cluster.client_of(2)?.claim_job(claim("other", 2)).await?.value.job;
    ensure!(other.is_none(), "a claim that was extended was handed out: {other:?}");
    let complete =
        http::post(&cluster.addr(3), &format!("/v1/jobs/{job_id}:complete"), &json!({"worker": "w"})).await?;
    ensure!(complete.json["state"] == "COMPLETED" && complete.json["attempts"] == 1, "{complete:?}");
    println!("{beats} heartbeats over HTTP held a lease of 2 s for 4 s");
    Ok(())
}

/// Kinds E and F. The answer of a claim and of a completion get lost; the caller repeats them on another replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_answer_got_lost_is_repeated_elsewhere() -> Result<()> {
    let cluster = Cluster::start(3, &[]).await?;
    let client = cluster.client()?;
    let (first, second) = (enqueue(&client).await?, enqueue(&client).await?);
    let ask = json!({"queues": ["q"], "worker": "w", "requestId": "claim-1", "lease": "60s"});
    http::send_and_hang_up(&cluster.addr(2), "/v1/jobs:claim", &ask).await?;
    // Whether the lost call came through is not known, and must not matter.
    let again = http::post(&cluster.addr(3), "/v1/jobs:claim", &ask).await?;
    ensure!(again.json["job"]["jobId"] == first.as_str(), "{again:?}");
    ensure!(again.json["job"]["attempts"] == 1, "{again:?}");
    let other = json!({"queues": ["q"], "worker": "w", "requestId": "claim-2"});
    let other = http::post(&cluster.addr(1), "/v1/jobs:claim", &other).await?;
    ensure!(other.json["job"]["jobId"] == second.as_str(), "another request id gets another job: {other:?}");
    let more = http::post(&cluster.addr(1), "/v1/jobs:claim", &json!({"queues": ["q"], "worker": "v"})).await?;
    ensure!(more.json["job"].is_null(), "{more:?}");
    ensure!(done(&cluster, &first, "claim").await? == 1, "claimed more than once");

    let path = format!("/v1/jobs/{first}:complete");
    let result = json!({"worker": "w", "requestId": "done-1", "result": "b2s="});
    http::send_and_hang_up(&cluster.addr(3), &path, &result).await?;
    for number in [1, 2, 3] {
        let again = http::post(&cluster.addr(number), &path, &result).await?;
        ensure!(again.status == 200 && again.json["result"] == "b2s=", "{again:?}");
    }
    let changed = json!({"worker": "w", "requestId": "done-1", "result": "bm8="});
    let changed = http::post(&cluster.addr(1), &path, &changed).await?;
    ensure!((changed.status, changed.reason()) == (400, "INVALID_FIELD"), "{changed:?}");
    let without = http::post(&cluster.addr(2), &path, &json!({"worker": "w", "result": "bm8="})).await?;
    ensure!((without.status, without.reason()) == (400, "ALREADY_COMPLETED"), "{without:?}");
    ensure!(without.json["details"][0]["metadata"]["completedByCaller"] == "true", "{without:?}");
    ensure!(done(&cluster, &first, "complete").await? == 1, "completed more than once");
    let kept = http::get(&cluster.addr(3), &format!("/v1/jobs/{first}")).await?;
    ensure!(kept.json["result"] == "b2s=", "a refused completion changed the result: {kept:?}");
    Ok(())
}

/// Kind C. A leader that is stopped for longer than the leases of its claims, which are extended elsewhere meanwhile,
/// takes none of them away once it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_away_takes_no_claim_away() -> Result<()> {
    let cluster = Cluster::start(3, &[]).await?;
    let job_id = enqueue(&cluster.client()?).await?;
    let old = cluster.leader().await?;
    let others: Vec<_> = cluster.running().into_iter().filter(|number| *number != old).collect();
    let addrs: Vec<_> = others.iter().map(|number| cluster.addr(*number)).collect();
    let client = Client::builder().addrs(&addrs.join(",")).deadline(Duration::from_secs(20)).build()?;
    client.claim_job(claim("w", 5)).await?.value.job.context("a job")?;
    cluster.signal(old, libc::SIGSTOP)?;
    let away = Instant::now();
    let mut beats = 0;
    while away.elapsed() < Duration::from_secs(7) {
        let beat = v1::HeartbeatJobRequest { job_id: job_id.clone(), worker: "w".into(), ..Default::default() };
        client.raw().heartbeat_job(beat).await.context("a heartbeat while the old leader is away")?;
        beats += 1;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    cluster.signal(old, libc::SIGCONT)?;
    ensure!(beats >= 6, "only {beats} heartbeats in 7 s: calls hung on the leader that was stopped");
    cluster.same_hash(3).await?;
    let taken = cluster.client_of(old)?.claim_job(claim("other", 5)).await?.value.job;
    ensure!(taken.is_none(), "the claim was taken away: {taken:?}");
    let complete = v1::CompleteJobRequest { job_id, worker: "w".into(), ..Default::default() };
    let completed = cluster.client_of(old)?.raw().complete_job(complete).await?.value;
    ensure!(completed.attempts == 1, "{completed:?}");
    println!("leader {old} was away for 7 s, {beats} heartbeats elsewhere; the claim stayed");
    Ok(())
}

/// Kind H. A replica that was started again is alive at once, and ready only when it may serve.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_alive_before_it_is_ready() -> Result<()> {
    let mut cluster = Cluster::start(3, &[]).await?;
    let job = v1::EnqueueJobRequest { queue: "q".into(), payload: vec![7; 100], ..Default::default() };
    for _ in 0..20 {
        let jobs = vec![job.clone(); 1_000];
        cluster.client()?.enqueue_jobs(v1::EnqueueJobsRequest { jobs, ..Default::default() }).await?;
    }
    for number in 1..=3 {
        cluster.kill(number)?;
    }
    let from = Instant::now();
    cluster.start_replica(1)?;
    let addr = cluster.addr(1);
    let alive = || async { Ok(http::get(&addr, "/healthz").await.ok().filter(|answer| answer.status == 200)) };
    until("it is alive", PATIENCE, alive).await?;
    let alive_ms = from.elapsed().as_millis();
    // Alone, without a leader, it must not serve, however long it has been up.
    let ready = http::get(&addr, "/readyz").await?;
    ensure!(ready.status == 503, "ready without a leader: {ready:?}");
    cluster.start_replica(2)?;
    let ready = || async { Ok(http::get(&addr, "/readyz").await.ok().filter(|answer| answer.status == 200)) };
    until("it is ready", PATIENCE, ready).await?;
    let queue = http::get(&addr, "/v1/queues/q").await?;
    ensure!(queue.json["counts"]["ready"] == "20000", "{queue:?}");
    println!(
        "with 20,000 jobs: alive after {alive_ms} ms, ready with a majority after {} ms",
        from.elapsed().as_millis()
    );
    Ok(())
}
