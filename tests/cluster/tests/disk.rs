//! A disk without room.

use std::time::Duration;

use ag_cluster_tests::cluster::Cluster;
use ag_cluster_tests::faults::{build, text};
use ag_cluster_tests::load::{Load, check};
use anyhow::{Result, ensure};

/// The leader's disk fills up under load: it stops, saying why, the others go on, and nothing acknowledged is lost.
/// With room again, it comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_with_a_full_disk_stops_and_loses_nothing() -> Result<()> {
    let folder = tempfile::Builder::new().prefix("ag-disk-").tempdir()?;
    let library = text(&build("full_disk", folder.path())?)?;
    let data = text(&folder.path().join("replica-{replica}/data"))?;
    let flag = text(&folder.path().join("full-{replica}"))?;
    let environment = [("LD_PRELOAD", library.as_str()), ("DISK_DIR", &data), ("DISK_FULL", &flag)];
    let mut cluster = Cluster::start_in(folder, 3, &environment).await?;
    let load = Load::start(&cluster, 4)?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let leader = cluster.leader().await?;
    let flag = cluster.folder.path().join(format!("full-{leader}"));
    std::fs::write(&flag, "")?;
    let code = cluster.ended(leader).await?;
    let words = cluster.last_words(leader);
    ensure!(code.is_some_and(|code| code != 0), "exit code {code:?}");
    ensure!(words.contains("No space left on device"), "it does not say why it stopped: {words}");

    tokio::time::sleep(Duration::from_secs(3)).await;
    let mut told = load.stop().await?;
    let gap = told.longest_gap();
    println!(
        "disk of leader {leader} full: exit code {code:?}; {} enqueued, {} completed, longest gap {} ms",
        told.enqueued.len(),
        told.completed.len(),
        gap.as_millis()
    );
    ensure!(gap < Duration::from_secs(5), "no success for {gap:?}");
    check(&cluster, &told).await?;

    std::fs::remove_file(&flag)?;
    cluster.start_replica(leader)?;
    cluster.serve_all().await?;
    check(&cluster, &told).await?;
    cluster.same_hash(3).await?;
    Ok(())
}
