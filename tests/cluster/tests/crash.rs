//! Replicas that are killed.

use std::time::Duration;

use ag_client::v1;
use ag_cluster_tests::cluster::{Cluster, client, same_hash};
use ag_cluster_tests::load::{Load, check, check_on};
use ag_cluster_tests::local::Local;
use ag_cluster_tests::{http, until};
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

/// Waits until the clients have been at work for this long.
async fn work_for(duration: Duration) {
    tokio::time::sleep(duration).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_killed_under_load_and_then_all_replicas_lose_nothing() -> Result<()> {
    let mut cluster = Cluster::start(3, &[]).await?;
    let load = Load::start(&cluster, 8)?;
    work_for(Duration::from_secs(5)).await;
    let leader = cluster.leader().await?;
    cluster.kill(leader)?;
    work_for(Duration::from_secs(8)).await;
    let mut told = load.stop().await?;
    let gap = told.longest_gap();
    println!(
        "leader {leader} killed: {} enqueued, {} completed, {} failed calls, longest gap {} ms",
        told.enqueued.len(),
        told.completed.len(),
        told.failures.len(),
        gap.as_millis()
    );
    ensure!(gap < Duration::from_secs(5), "no success for {} ms", gap.as_millis());
    ensure!(told.completed.len() > 100, "too little was done to show anything");
    check(&cluster, &told).await?;

    for number in cluster.running() {
        cluster.kill(number)?;
    }
    for number in 1..=3 {
        cluster.start_replica(number)?;
    }
    cluster.serve_all().await?;
    check(&cluster, &told).await?;
    let (log_index, hash) = cluster.same_hash(3).await?;
    println!("all killed and restarted: nothing lost; state hash {hash} at {log_index} on all three");
    Ok(())
}

/// The same, on the cluster that `ag local` runs and keeps up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_replicas_of_ag_local_are_killed_and_lose_nothing() -> Result<()> {
    let local = Local::start(3).await?;
    let addrs = local.addrs();
    let load = Load::start_on(&addrs, 8)?;
    work_for(Duration::from_secs(5)).await;
    let leader = leader_addr(&addrs).await?;
    let pid_of_leader = local.replicas().into_values().find(|(addr, _)| *addr == leader).map(|(_, pid)| pid);
    local.kill(pid_of_leader.context("the leader is one of them")?)?;
    work_for(Duration::from_secs(8)).await;
    let mut told = load.stop().await?;
    let gap = told.longest_gap();
    println!(
        "ag local, leader killed: {} enqueued, {} completed, {} failed calls, longest gap {} ms",
        told.enqueued.len(),
        told.completed.len(),
        told.failures.len(),
        gap.as_millis()
    );
    ensure!(gap < Duration::from_secs(5), "no success for {} ms", gap.as_millis());
    ensure!(told.completed.len() > 100, "too little was done to show anything");

    let pids: Vec<_> = local.replicas().into_values().map(|(_, pid)| pid).collect();
    pids.iter().try_for_each(|pid| local.kill(*pid))?;
    local.restarted(&pids).await?;
    check_on(&addrs, &told).await?;
    let (log_index, hash) = same_hash(&client(&addrs)?, 3).await?;
    println!("ag local, all killed and restarted: nothing lost; state hash {hash} at {log_index} on all three");
    Ok(())
}

async fn leader_addr(addrs: &[String]) -> Result<String> {
    let client = client(addrs)?;
    let ask = || async {
        let cluster = client.get_cluster(v1::GetClusterRequest {}).await?.value;
        Ok(cluster.replicas.into_iter().find(|replica| Some(replica.id) == cluster.leader).map(|leader| leader.addr))
    };
    until("a leader", Duration::from_secs(30), ask).await
}

/// Kind E, T20 and T29. The leader is killed while a thousand claims are held, and another worker waits for jobs all
/// the time: it gets none of them while they are held, and all of them once their leases are over, not much later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_is_lost_when_the_leader_is_killed() -> Result<()> {
    let mut cluster = Cluster::start(3, &[]).await?;
    let client = cluster.client()?;
    let job = v1::EnqueueJobRequest { queue: "q".into(), ..Default::default() };
    client.enqueue_jobs(v1::EnqueueJobsRequest { jobs: vec![job; 1_000], ..Default::default() }).await?;
    let claim = v1::ClaimJobsRequest {
        queues: vec!["q".into()],
        worker: "w".into(),
        lease: Some(prost_types::Duration { seconds: 5, nanos: 0 }),
        max_jobs: 1_000,
        ..Default::default()
    };
    let claimed = client.claim_jobs(claim).await?.value.jobs;
    ensure!(claimed.len() == 1_000, "{} claimed", claimed.len());
    let held = std::time::Instant::now();
    let leader = cluster.leader().await?;
    cluster.kill(leader)?;
    let client = cluster.client()?;
    let greedy = client.clone();
    let rival = tokio::spawn(async move {
        let mut taken: Vec<(String, std::time::Instant)> = Vec::new();
        while taken.len() < 1_000 && held.elapsed() < Duration::from_secs(40) {
            let request = v1::ClaimJobsRequest {
                queues: vec!["q".into()],
                worker: "rival".into(),
                lease: Some(prost_types::Duration { seconds: 60, nanos: 0 }),
                wait: Some(prost_types::Duration { seconds: 2, nanos: 0 }),
                max_jobs: 1_000,
                ..Default::default()
            };
            let Ok(answer) = greedy.claim_jobs(request).await else { continue };
            taken.extend(answer.value.jobs.into_iter().map(|job| (job.job_id, std::time::Instant::now())));
        }
        taken
    });
    let entry = |job: &v1::Job| v1::HeartbeatJobRequest {
        job_id: job.job_id.clone(),
        worker: "w".into(),
        ..Default::default()
    };
    let request = v1::HeartbeatJobsRequest { heartbeats: claimed.iter().map(entry).collect() };
    let results = client.raw().heartbeat_jobs(request).await?.value.results;
    let refused = results.iter().filter(|result| result.status.as_ref().is_some_and(|status| status.code != 0)).count();
    println!("1,000 claims held through an election of {} ms: {refused} refused", held.elapsed().as_millis());
    ensure!(results.len() == 1_000 && refused == 0, "{refused} of {} heartbeats were refused", results.len());
    // The heartbeats end here. Their leases run from when they were applied: after the call began, before it returned.
    let extended = std::time::Instant::now();
    ensure!(!rival.is_finished(), "the rival took jobs whose claims were held");
    let taken = rival.await?;
    let first = taken.iter().map(|(_, at)| *at).min().context("the rival got nothing")?;
    let last = taken.iter().map(|(_, at)| *at).max().context("the rival got nothing")?;
    println!(
        "{} handed on {} to {} ms after the last heartbeat, with leases of 5,000 ms",
        taken.len(),
        first.duration_since(extended).as_millis(),
        last.duration_since(extended).as_millis()
    );
    ensure!(taken.len() == 1_000, "{} handed on", taken.len());
    ensure!(first.duration_since(extended) > Duration::from_millis(4_500), "a lease ended early");
    ensure!(last.duration_since(extended) < Duration::from_secs(5 + 1 + 3), "a lease ended late");
    Ok(())
}

/// Kind E, T34. The leader dies with the answers of an enqueue, a claim and a completion on their way; repeated
/// elsewhere they get one answer, and have had one effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_whose_answers_die_with_the_leader_are_repeated_elsewhere() -> Result<()> {
    let mut cluster = Cluster::start(3, &[]).await?;
    let queue = json!({"queue": "q", "requestId": "e-1"});
    let claim = json!({"queues": ["q"], "worker": "w", "lease": "60s", "requestId": "c-1"});
    let mut path = "/v1/jobs".to_owned();
    let mut job_id = String::new();
    for (verb, body) in [("enqueue", queue), ("claim", claim), ("complete", json!({"worker": "w", "requestId": "d-1"}))]
    {
        match verb {
            "claim" => path = "/v1/jobs:claim".into(),
            "complete" => path = format!("/v1/jobs/{job_id}:complete"),
            _ => {}
        }
        let leader = cluster.leader().await?;
        http::send_and_hang_up(&cluster.addr(leader), &path, &body).await?;
        cluster.kill(leader)?;
        let survivors: Vec<_> = cluster.running();
        let mut answers = Vec::new();
        for number in survivors {
            let addr = cluster.addr(number);
            let ask = || async {
                let answer = http::post(&addr, &path, &body).await?;
                Ok((answer.status == 200).then_some(answer.json))
            };
            answers.push(until("the repeated call is answered", Duration::from_secs(30), ask).await?);
        }
        ensure!(answers[0] == answers[1], "{verb}: {answers:?}");
        let job = if verb == "claim" { &answers[0]["job"] } else { &answers[0] };
        job_id = job["jobId"].as_str().context("a job")?.to_owned();
        cluster.start_replica(leader)?;
        cluster.serve_all().await?;
    }
    let audit = cluster.audit(1).await?;
    for verb in ["enqueue", "claim", "complete"] {
        let done = audit.iter().filter(|record| record.verb == verb && record.outcome == "done").count();
        ensure!(done == 1, "{verb} had {done} effects");
    }
    Ok(())
}

/// Kind E, T36. A leader that was paused and superseded answers no read from what it held before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_superseded_while_it_was_paused_reads_nothing_old() -> Result<()> {
    let cluster = Cluster::start(3, &[]).await?;
    let job = v1::EnqueueJobRequest { queue: "q".into(), ..Default::default() };
    let job_id = cluster.client()?.enqueue_job(job).await?.value.job_id;
    let old = cluster.leader().await?;
    let others: Vec<_> = cluster.addrs().into_iter().filter(|addr| *addr != cluster.addr(old)).collect();
    let elsewhere = client(&others)?;
    cluster.signal(old, libc::SIGSTOP)?;
    // A first try may have gone to the leader that is away.
    let cancel =
        || async { Ok(Some(elsewhere.cancel_job(v1::CancelJobRequest { job_id: job_id.clone() }).await?.value)) };
    let cancelled = until("the job is cancelled elsewhere", Duration::from_secs(30), cancel).await;
    cluster.signal(old, libc::SIGCONT)?;
    cancelled?;
    // At once, before it can have heard of anything.
    for _ in 0..20 {
        let read = http::get(&cluster.addr(old), &format!("/v1/jobs/{job_id}")).await?;
        ensure!(read.status == 503 || read.json["state"] == "CANCELLED", "an old state was read: {read:?}");
    }
    Ok(())
}

/// Kind E. A repeated call is given the same answer by every replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_call_on_another_replica_gets_the_first_answer() -> Result<()> {
    let cluster = Cluster::start(3, &[]).await?;
    let enqueue = v1::EnqueueJobRequest { queue: "q".into(), request_id: "e-1".into(), ..Default::default() };
    let claim = v1::ClaimJobRequest {
        queues: vec!["q".into()],
        worker: "w".into(),
        request_id: "c-1".into(),
        ..Default::default()
    };
    let mut enqueued = Vec::new();
    let mut claimed = Vec::new();
    let mut completed = Vec::new();
    for number in 1..=3 {
        enqueued.push(cluster.client_of(number)?.enqueue_job(enqueue.clone()).await?);
    }
    for number in 1..=3 {
        claimed.push(cluster.client_of(number)?.claim_job(claim.clone()).await?);
    }
    let job_id = enqueued[0].value.job_id.clone();
    let complete = v1::CompleteJobRequest {
        job_id,
        worker: "w".into(),
        result: b"r".to_vec(),
        request_id: "d-1".into(),
        ..Default::default()
    };
    for number in 1..=3 {
        completed.push(cluster.client_of(number)?.raw().complete_job(complete.clone()).await?);
    }
    ensure!(enqueued.windows(2).all(|pair| pair[0] == pair[1]), "{enqueued:?}");
    ensure!(claimed.windows(2).all(|pair| pair[0] == pair[1]), "{claimed:?}");
    ensure!(completed.windows(2).all(|pair| pair[0] == pair[1]), "{completed:?}");
    let other = cluster.client_of(2)?.claim_job(v1::ClaimJobRequest { request_id: "c-2".into(), ..claim }).await?;
    ensure!(other.value.job.is_none(), "one job was handed out twice");
    Ok(())
}

/// Kind E. A leader that is cut off from the others answers no linearizable read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_without_a_majority_answers_no_linearizable_read() -> Result<()> {
    let cluster = Cluster::start(3, &[]).await?;
    let leader = cluster.leader().await?;
    let others: Vec<_> = cluster.running().into_iter().filter(|number| *number != leader).collect();
    for number in &others {
        cluster.signal(*number, libc::SIGSTOP)?;
    }
    let client = cluster.client_of(leader)?.with_deadline(Duration::from_secs(4));
    let read = client.list_jobs(v1::ListJobsRequest::default()).await;
    let stale = client.list_jobs(v1::ListJobsRequest { stale: true, ..Default::default() }).await;
    for number in &others {
        cluster.signal(*number, libc::SIGCONT)?;
    }
    ensure!(read.is_err(), "it answered without a majority");
    ensure!(stale.is_ok(), "a stale read needs no majority: {stale:?}");
    let client = cluster.client()?;
    let again = || async { Ok(client.list_jobs(v1::ListJobsRequest::default()).await.ok()) };
    until("reads come back", Duration::from_secs(20), again).await?;
    Ok(())
}

/// A delayed job that is due while there is no leader is handed out once, late, and never lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_due_in_an_election_is_handed_out_once() -> Result<()> {
    let mut cluster = Cluster::start(3, &[]).await?;
    let delay = Some(prost_types::Duration { seconds: 1, nanos: 0 });
    let job = v1::EnqueueJobRequest { queue: "q".into(), delay, ..Default::default() };
    let job_id = cluster.client()?.enqueue_job(job).await?.value.job_id;
    let leader = cluster.leader().await?;
    cluster.kill(leader)?;
    let client = cluster.client()?;
    let claim = v1::ClaimJobRequest {
        queues: vec!["q".into()],
        worker: "w".into(),
        wait: Some(prost_types::Duration { seconds: 10, nanos: 0 }),
        ..Default::default()
    };
    let claimed = client.claim_job(claim.clone()).await?.value.job;
    ensure!(claimed.is_some_and(|job| job.job_id == job_id), "it was not handed out");
    let wait = Some(prost_types::Duration { seconds: 0, nanos: 100_000_000 });
    let again = client.claim_job(v1::ClaimJobRequest { wait, ..claim }).await?.value.job;
    ensure!(again.is_none(), "it was handed out twice");
    Ok(())
}

/// Each replica in turn is stopped and started again while clients work: calls are repeated, none fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_fails_no_call() -> Result<()> {
    let mut cluster = Cluster::start(3, &[]).await?;
    let load = Load::start(&cluster, 4)?;
    for number in 1..=3 {
        cluster.stop(number).await?;
        cluster.start_replica(number)?;
        cluster.serve_all().await?;
    }
    let mut told = load.stop().await?;
    let gap = told.longest_gap();
    println!("rolling restart: {} completed, longest gap {} ms", told.completed.len(), gap.as_millis());
    ensure!(told.failures.is_empty(), "{:?}", told.failures);
    check(&cluster, &told).await
}
