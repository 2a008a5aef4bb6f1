//! Power cuts of all replicas at once.

use std::time::Duration;

use ag_cluster_tests::cluster::Cluster;
use ag_cluster_tests::faults::{build, text};
use ag_cluster_tests::load::{Load, Told, check};
use ag_cluster_tests::power::{Taken, cut};
use anyhow::{Context as _, Result, ensure};

/// Works for a while, cuts the power of all replicas, starts them again. Gives what was acknowledged before.
async fn cut_all(fsync: &str) -> Result<(Cluster, Told, Taken)> {
    let folder = tempfile::Builder::new().prefix("ag-power-").tempdir()?;
    let library = build("power", folder.path())?;
    let journal = folder.path().join("journal");
    let (library, journal_text, data) = (text(&library)?, text(&journal)?, text(&folder.path().join("replica-"))?);
    let environment = [
        ("LD_PRELOAD", library.as_str()),
        ("POWER_DIR", data.as_str()),
        ("POWER_JOURNAL", journal_text.as_str()),
        ("AG_FSYNC", fsync),
    ];
    // The cluster is made with fsync either way, so that what is lost is jobs, not the knowledge of the cluster.
    let mut cluster = Cluster::start_in(folder, 3, &[]).await?;
    for number in cluster.running() {
        cluster.stop(number).await?;
    }
    cluster.set_environment(&environment);
    for number in 1..=3 {
        cluster.start_replica(number)?;
    }
    cluster.serve_all().await?;
    let load = Load::start(&cluster, 4)?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    load.wind_up();
    for number in cluster.running() {
        cluster.kill(number)?;
    }
    let told = tokio::time::timeout(Duration::from_secs(60), load.stop()).await.context("clients hang")??;
    let taken = cut(&journal)?;
    cluster.set_environment(&[]);
    for number in 1..=3 {
        cluster.start_replica(number)?;
    }
    Ok((cluster, told, taken))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_of_all_replicas_loses_nothing_that_was_acknowledged() -> Result<()> {
    let (mut cluster, told, taken) = cut_all("on").await?;
    let (enqueued, completed) = (told.enqueued.len(), told.completed.len());
    println!("with fsync: {enqueued} enqueued, {completed} completed; {taken:?}");
    ensure!(enqueued > 50, "too little was done to show anything");
    ensure!(taken.writes > 0, "the power cut took nothing, so it shows nothing");
    cluster.serve_all().await?;
    check(&cluster, &told).await?;
    let (log_index, hash) = cluster.same_hash(3).await?;
    println!("after the power cut: 0 lost; state hash {hash} at {log_index} on all three");
    Ok(())
}

/// The control: without fsync the same cut must lose acknowledged jobs, or the test above shows nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_power_cut_without_fsync_loses_jobs() -> Result<()> {
    let (mut cluster, told, taken) = cut_all("off").await?;
    println!("without fsync: {} enqueued, {} completed; {taken:?}", told.enqueued.len(), told.completed.len());
    ensure!(told.enqueued.len() > 50, "too little was done to show anything");
    cluster.serve_all().await?;
    let loss =
        check(&cluster, &told).await.err().context("nothing was lost without fsync: the power cut is not one")?;
    ensure!(loss.to_string().contains("acknowledged jobs are lost"), "it failed for another reason: {loss:#}");
    println!("as it must: {loss:#}");
    Ok(())
}
