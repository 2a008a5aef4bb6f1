//! Replicas and workers of this release and of the real 0.1.0, side by side.

use std::path::PathBuf;
use std::time::Duration;

use ag_client::v1;
use ag_cluster_tests::cluster::Cluster;
use ag_cluster_tests::load::{Load, check};
use ag_cluster_tests::worker::Worker;
use ag_cluster_tests::{binary, http, is_long, release, until};
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(40);
const OLD: &str = "0.1.0";

/// Which build a replica runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Build {
    Old,
    New,
}

impl Build {
    fn path(self) -> Result<Option<PathBuf>> {
        match self {
            Self::Old => release::binary(OLD, "ag").map(Some),
            Self::New => Ok(None),
        }
    }
}

async fn start(builds: [Build; 3], environment: &[(&str, &str)]) -> Result<Cluster> {
    let folder = tempfile::Builder::new().prefix("ag-mixed-").tempdir()?;
    let mut paths = std::collections::BTreeMap::new();
    for (number, build) in (1..).zip(builds) {
        if let Some(path) = build.path()? {
            paths.insert(number, path);
        }
    }
    Cluster::start_builds(folder, 3, environment, paths).await
}

/// Stops a replica in good order and starts it with another build on the same data.
async fn change(cluster: &mut Cluster, number: u16, build: Build) -> Result<()> {
    cluster.stop(number).await?;
    cluster.set_build(number, build.path()?);
    cluster.start_replica(number)?;
    cluster.serve_all().await
}

async fn hold(cluster: &Cluster, hold: bool) -> Result<()> {
    let request = v1::SetClusterVersionRequest { version: 0, hold: Some(hold) };
    cluster.client()?.set_cluster_version(request).await.map(drop).context("hold the cluster version")
}

async fn lead(cluster: &Cluster, number: u16) -> Result<()> {
    let client = cluster.client()?;
    let addr = cluster.addr(number);
    let ask = || async {
        if cluster.leader().await? == number {
            return Ok(Some(()));
        }
        let members = client.get_cluster(v1::GetClusterRequest {}).await?.value.replicas;
        let replica_id = members.iter().find(|replica| replica.addr == addr).context("a member")?.id;
        client.transfer_leadership(v1::TransferLeadershipRequest { replica_id }).await?;
        Ok(None)
    };
    until(&format!("replica {number} leads"), PATIENCE, ask).await
}

/// Jobs for the workers, whose number is known.
async fn enqueue(cluster: &Cluster, jobs: usize) -> Result<()> {
    let job = v1::EnqueueJobRequest { queue: "work".into(), payload: b"x".to_vec(), ..Default::default() };
    let request = v1::EnqueueJobsRequest { jobs: vec![job; jobs], ..Default::default() };
    cluster.client()?.enqueue_jobs(request).await.map(drop).context("enqueue")
}

/// Old and new workers on all replicas.
struct Workers {
    _old: Worker,
    new: Worker,
    _folder: tempfile::TempDir,
}

impl Workers {
    fn start(cluster: &Cluster) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let addrs = cluster.addrs();
        let old = release::binary(OLD, "ag-worker")?;
        let old = Worker::start(&old, &addrs, "old-worker", "cat", folder.path(), "old")?;
        let new = Worker::start(&binary("ag-worker")?, &addrs, "new-worker", "cat", folder.path(), "new")?;
        Ok(Self { _old: old, new, _folder: folder })
    }

    /// Waits until all their jobs are done, by both of them.
    async fn finish(&self, cluster: &Cluster, jobs: u64) -> Result<()> {
        let client = cluster.client()?;
        let done = || async {
            let request = v1::GetQueueRequest { queue: "work".into(), stale: false };
            let counts = client.get_queue(request).await?.value.counts.unwrap_or_default();
            Ok((counts.completed == jobs).then_some(()))
        };
        until(&format!("{jobs} jobs of the workers are done"), PATIENCE, done).await?;
        let request = v1::ListJobsRequest { queue: "work".into(), page_size: Some(1_000), ..Default::default() };
        let all = client.list_jobs(request).await?.value.jobs;
        for worker in ["old-worker", "new-worker"] {
            let by = all.iter().filter(|job| job.claimed_by.ends_with(worker)).count();
            ensure!(by > 0, "{worker} did none of {jobs} jobs");
        }
        Ok(())
    }
}

/// (a) Three replicas are upgraded one by one, under load from old and new workers; at version 1 all of them have the
/// same state after each step, and nothing is lost.
async fn upgrade(order: [u16; 3], leader: u16) -> Result<()> {
    let mut cluster = start([Build::Old; 3], &[]).await?;
    hold(&cluster, true).await?;
    lead(&cluster, leader).await?;
    let workers = Workers::start(&cluster)?;
    let load = Load::start(&cluster, 4)?;
    let mut jobs = 0;
    for number in order {
        enqueue(&cluster, 60).await?;
        jobs += 60;
        change(&mut cluster, number, Build::New).await?;
        cluster.same_hash(3).await.with_context(|| format!("after replica {number} of {order:?}"))?;
        cluster.at_version(1).await?;
    }
    workers.finish(&cluster, jobs).await?;
    let told = load.stop().await?;
    check(&cluster, &told).await?;
    let (log_index, hash) = cluster.same_hash(3).await?;

    hold(&cluster, false).await?;
    cluster.at_version(2).await?;
    let load = Load::start(&cluster, 4)?;
    enqueue(&cluster, 40).await?;
    workers.finish(&cluster, jobs + 40).await?;
    let more = load.stop().await?;
    check(&cluster, &told).await?;
    check(&cluster, &more).await?;
    cluster.same_hash(3).await?;
    println!(
        "upgraded in the order {order:?}, led by {leader}: state hash {hash} at {log_index} at version 1, \
         {} + {} jobs completed, nothing lost",
        told.completed.len(),
        more.completed.len()
    );
    Ok(())
}

/// Replica 1 leads at first: these are all the places that it can have in an order of three.
const ORDERS: [[u16; 3]; 6] = [[1, 2, 3], [1, 3, 2], [2, 1, 3], [3, 1, 2], [2, 3, 1], [3, 2, 1]];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_are_upgraded_in_every_order_under_load_of_old_and_new_workers() -> Result<()> {
    // Which of three equal replicas has which number makes no difference; with --long it is tried all the same.
    let leaders = if is_long() { 1..=3 } else { 1..=1 };
    for leader in leaders {
        for order in ORDERS {
            upgrade(order, leader).await?;
        }
    }
    Ok(())
}

/// (b) A new worker against old replicas: it sends its claim's number, is told that nobody checks it, and says so once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_worker_works_with_old_replicas_and_says_once_that_nothing_is_fenced() -> Result<()> {
    let cluster = start([Build::Old; 3], &[]).await?;
    let workers = Workers::start(&cluster)?;
    enqueue(&cluster, 60).await?;
    workers.finish(&cluster, 60).await?;
    let folder = tempfile::tempdir()?;
    let program = binary("ag-worker")?;
    let slow = Worker::start(&program, &cluster.addrs(), "slow", "sleep 3; echo ok", folder.path(), "slow")?;
    enqueue(&cluster, 40).await?;
    workers.finish(&cluster, 100).await.ok();
    let said = || async { Ok(slow.words().contains("fenc").then_some(())) };
    until("the worker says that nothing is fenced", PATIENCE, said).await?;
    let words = slow.words() + &workers.new.words();
    for words in [slow.words(), workers.new.words()] {
        let times = words.lines().filter(|line| line.contains("fencing")).count();
        ensure!(times <= 1, "said {times} times: {words}");
    }
    println!("{}", words.lines().find(|line| line.contains("fencing")).unwrap_or_default());
    Ok(())
}

/// (b) An old worker, and JSON clients that do not know the field, against new replicas at version 2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_workers_and_clients_work_with_new_replicas() -> Result<()> {
    let cluster = start([Build::New; 3], &[]).await?;
    cluster.at_version(2).await?;
    let workers = Workers::start(&cluster)?;
    enqueue(&cluster, 60).await?;
    workers.finish(&cluster, 60).await?;
    let addr = cluster.addr(2);
    http::post(&addr, "/v1/jobs", &json!({"queue": "q"})).await?;
    let claimed = http::post(&addr, "/v1/jobs:claim", &json!({"queues": ["q"], "worker": "w"})).await?;
    let job_id = claimed.json["job"]["jobId"].as_str().context("a job")?.to_owned();
    for verb in ["heartbeat", "complete"] {
        let answer = http::post(&addr, &format!("/v1/jobs/{job_id}:{verb}"), &json!({"worker": "w"})).await?;
        ensure!(answer.status == 200 && answer.json["fenced"].as_bool() != Some(true), "{answer:?}");
    }
    Ok(())
}

/// (b) Below version 2 a new leader refuses what its own state shows as stale, and calls nothing fenced; an old replica
/// passes the number on that it does not know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_leader_below_version_2_refuses_the_stale_as_well_as_it_can() -> Result<()> {
    let cluster = start([Build::New, Build::New, Build::Old], &[]).await?;
    lead(&cluster, 1).await?;
    http::post(&cluster.addr(3), "/v1/jobs", &json!({"queue": "q"})).await?;
    let claim = json!({"queues": ["q"], "worker": "w", "lease": "0.3s", "wait": "10s"});
    http::post(&cluster.addr(3), "/v1/jobs:claim", &claim).await?;
    let second = http::post(&cluster.addr(3), "/v1/jobs:claim", &claim).await?.json["job"].clone();
    let job_id = second["jobId"].as_str().context("the job again")?.to_owned();
    ensure!(second["attempts"] == 2, "{second}");
    for number in 1..=2 {
        for verb in ["heartbeat", "complete", "fail", "release"] {
            let stale = json!({"worker": "w", "fencingToken": "1"});
            let answer = http::post(&cluster.addr(number), &format!("/v1/jobs/{job_id}:{verb}"), &stale).await?;
            ensure!(answer.reason() == "STALE_FENCING_TOKEN", "{verb} through {number}: {answer:?}");
        }
    }
    // JSON that the old replica does not know is lost there. A message of gRPC is passed on as it is.
    let old = cluster.client_of(3)?;
    let (worker, fencing_token) = ("w".to_owned(), 1);
    let id = || job_id.clone();
    let beat = v1::HeartbeatJobRequest { job_id: id(), worker: worker.clone(), fencing_token, ..Default::default() };
    let complete = v1::CompleteJobRequest { job_id: id(), worker: worker.clone(), fencing_token, ..Default::default() };
    let fail = v1::FailJobRequest { job_id: id(), worker: worker.clone(), fencing_token, ..Default::default() };
    let release = v1::ReleaseJobRequest { job_id: id(), worker, fencing_token };
    for error in [
        old.raw().heartbeat_job(beat).await.err(),
        old.raw().complete_job(complete).await.err(),
        old.raw().fail_job(fail).await.err(),
        old.raw().release_job(release).await.err(),
    ] {
        let error = error.context("a stale call through the old replica got through")?;
        ensure!(error.reason() == "STALE_FENCING_TOKEN", "{error}");
    }
    let good = json!({"worker": "w", "fencingToken": "2"});
    let beat = http::post(&cluster.addr(3), &format!("/v1/jobs/{job_id}:heartbeat"), &good).await?;
    ensure!(beat.status == 200 && beat.json["fenced"].as_bool() != Some(true), "{beat:?}");
    let update =
        v1::UpdateQueueRequest { queue: "q".into(), fencing: v1::Fencing::Required.into(), ..Default::default() };
    let refused = cluster.client_of(1)?.update_queue(update).await.err().context("REQUIRED below version 2")?;
    ensure!(refused.reason() == "CLUSTER_VERSION", "{refused}");
    cluster.same_hash(3).await?;
    Ok(())
}

/// (c) A snapshot goes from a leader of one build to a new replica of the other, at version 1.
async fn snapshot(leader: Build, follower: Build) -> Result<()> {
    let few = [("AG_SNAPSHOT_ENTRIES", "200"), ("AG_KEPT_ENTRIES", "50")];
    let mut cluster = start([leader, leader, follower], &few).await?;
    hold(&cluster, true).await?;
    let load = Load::start(&cluster, 4)?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    lead(&cluster, 1).await?;
    let client = cluster.client_of(1)?;
    let addr = cluster.addr(3);
    let members = client.get_cluster(v1::GetClusterRequest {}).await?.value.replicas;
    let old_id = members.iter().find(|replica| replica.addr == addr).context("a member")?.id;
    cluster.kill(3)?;
    client.remove_replica(v1::RemoveReplicaRequest { replica_id: old_id }).await?;
    std::fs::remove_dir_all(cluster.replica_folder(3))?;
    cluster.start_replica(3)?;
    cluster.answers(3).await?;
    let request = v1::AddReplicaRequest { peer_addr: cluster.peer_addr(3), learner: false };
    client.with_deadline(Duration::from_secs(60)).add_replica(request).await?;
    cluster.serve_all().await?;
    let told = load.stop().await?;
    check(&cluster, &told).await?;
    let (log_index, hash) = cluster.same_hash(3).await?;
    cluster.at_version(1).await?;
    ensure!(cluster.last_words(3).contains("snapshot"), "{}", cluster.last_words(3));
    println!("snapshot from {leader:?} to {follower:?}: state hash {hash} at {log_index} on all three");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_leader_sends_a_snapshot_to_an_old_replica() -> Result<()> {
    snapshot(Build::New, Build::Old).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_leader_sends_a_snapshot_to_a_new_replica() -> Result<()> {
    snapshot(Build::Old, Build::New).await
}

/// (d) Before version 2 each replica can go back to the old build, on the data that the new one wrote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_go_back_before_version_2() -> Result<()> {
    let mut cluster = start([Build::Old; 3], &[]).await?;
    hold(&cluster, true).await?;
    for number in 1..=3 {
        change(&mut cluster, number, Build::New).await?;
    }
    let load = Load::start(&cluster, 4)?;
    for number in [2, 1, 3] {
        change(&mut cluster, number, Build::Old).await?;
        cluster.same_hash(3).await.with_context(|| format!("after replica {number} went back"))?;
    }
    let told = load.stop().await?;
    check(&cluster, &told).await?;
    cluster.at_version(1).await?;
    println!("all three went back: {} jobs completed meanwhile, nothing lost", told.completed.len());
    Ok(())
}

/// (e) At version 2 the old build refuses to start, and says what to do; with the new one its data is as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_version_2_the_old_build_refuses_to_start() -> Result<()> {
    let mut cluster = start([Build::New; 3], &[]).await?;
    cluster.at_version(2).await?;
    cluster.same_hash(3).await?;
    let leader = cluster.leader().await?;
    let number = cluster.running().into_iter().find(|number| *number != leader).context("a follower")?;
    cluster.stop(number).await?;
    cluster.set_build(number, Build::Old.path()?);
    cluster.start_replica(number)?;
    let code = cluster.ended(number).await?;
    let words = cluster.last_words(number);
    ensure!(code.is_some_and(|code| code != 0), "exit code {code:?}: {words}");
    let said = words.lines().rfind(|line| line.contains("version 2")).with_context(|| words.clone())?;
    ensure!(said.contains("install"), "it does not say what to do: {said}");
    println!("exit code {code:?}: {said}");
    cluster.set_build(number, None);
    cluster.start_replica(number)?;
    cluster.serve_all().await?;
    cluster.same_hash(3).await?;
    Ok(())
}
