//! Replicas that are added, removed and replaced while clients go on.

use std::time::Duration;

use ag_client::v1;
use ag_cluster_tests::cluster::Cluster;
use ag_cluster_tests::load::{Load, check};
use anyhow::{Context as _, Result, ensure};

/// Kind H. A replica is wiped and added anew: it catches up by a snapshot, without an election, to the same state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_replica_catches_up_by_snapshot_while_clients_go_on() -> Result<()> {
    // Few entries between snapshots and few kept, so that only a snapshot can reach the new replica.
    let mut cluster = Cluster::start(3, &[("AG_SNAPSHOT_ENTRIES", "300"), ("AG_KEPT_ENTRIES", "50")]).await?;
    let load = Load::start(&cluster, 4)?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let leader = cluster.leader().await?;
    let wiped = cluster.running().into_iter().find(|number| *number != leader).context("a follower")?;
    let client = cluster.client_of(leader)?;
    let before = client.get_cluster(v1::GetClusterRequest {}).await?.value;
    let addr = cluster.addr(wiped);
    let old_id = before.replicas.iter().find(|replica| replica.addr == addr).context("a member")?.id;

    cluster.kill(wiped)?;
    client.remove_replica(v1::RemoveReplicaRequest { replica_id: old_id }).await?;
    std::fs::remove_dir_all(cluster.replica_folder(wiped))?;
    cluster.start_replica(wiped)?;
    cluster.answers(wiped).await?;
    let request = v1::AddReplicaRequest { peer_addr: cluster.peer_addr(wiped), learner: false };
    let added = client.with_deadline(Duration::from_secs(60)).add_replica(request).await?.value;
    let new = added.replicas.iter().find(|replica| replica.addr == addr).context("the new member")?;
    ensure!(new.id != old_id, "the id of a removed replica was used again");
    ensure!(new.role() == v1::ReplicaRole::Voter, "it does not vote");

    tokio::time::sleep(Duration::from_secs(1)).await;
    let told = load.stop().await?;
    let after = client.get_cluster(v1::GetClusterRequest {}).await?.value;
    ensure!(after.term == before.term, "there was an election: term {} after {}", after.term, before.term);
    cluster.serve_all().await?;
    let (log_index, hash) = cluster.same_hash(3).await?;
    let words = cluster.last_words(wiped);
    ensure!(words.contains("snapshot"), "no word of a snapshot in the new replica's log: {words}");
    println!("replica {old_id} replaced by {}: term {} kept, state hash {hash} at {log_index}", new.id, after.term);
    check(&cluster, &told).await
}

/// The leadership is handed over under load without losing anything, and reads stay linearizable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leadership_moves_under_load() -> Result<()> {
    let cluster = Cluster::start(3, &[]).await?;
    let load = Load::start(&cluster, 4)?;
    for _ in 0..3 {
        let leader = cluster.leader().await?;
        let to = leader % 3 + 1;
        let client = cluster.client_of(leader)?;
        let members = client.get_cluster(v1::GetClusterRequest {}).await?.value.replicas;
        let to_addr = cluster.addr(to);
        let replica_id = members.iter().find(|replica| replica.addr == to_addr).context("a member")?.id;
        client.transfer_leadership(v1::TransferLeadershipRequest { replica_id }).await?;
        // Written through one replica, read through the others: each read sees what was acknowledged before it.
        let job = v1::EnqueueJobRequest { queue: "seen".into(), ..Default::default() };
        let job_id = cluster.client()?.enqueue_job(job).await?.value.job_id;
        for number in cluster.running() {
            let client = cluster.client_of(number)?;
            let read = client.get_job(v1::GetJobRequest { job_id: job_id.clone(), stale: false }).await;
            read.with_context(|| format!("replica {number} does not see {job_id}"))?;
        }
    }
    let told = load.stop().await?;
    check(&cluster, &told).await?;
    cluster.same_hash(3).await?;
    Ok(())
}

/// A data folder whose log lost acknowledged entries is not served: the replica says so and ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_lost_its_log_refuses_to_vote() -> Result<()> {
    let mut cluster = Cluster::start(3, &[]).await?;
    let client = cluster.client()?;
    for _ in 0..20 {
        client.enqueue_job(v1::EnqueueJobRequest { queue: "q".into(), ..Default::default() }).await?;
    }
    let leader = cluster.leader().await?;
    let damaged = cluster.running().into_iter().find(|number| *number != leader).context("a follower")?;
    cluster.kill(damaged)?;
    let log = cluster.replica_folder(damaged).join("data/shards/0/log");
    for entry in std::fs::read_dir(&log)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            std::fs::OpenOptions::new().write(true).open(&path)?.set_len(0)?;
        }
    }
    cluster.start_replica(damaged)?;
    let code = cluster.ended(damaged).await?;
    let words = cluster.last_words(damaged);
    ensure!(code == Some(10), "exit code {code:?}; {words}");
    ensure!(words.contains("lost acknowledged entries"), "{words}");
    client.enqueue_job(v1::EnqueueJobRequest { queue: "q".into(), ..Default::default() }).await?;
    Ok(())
}
