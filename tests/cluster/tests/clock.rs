//! Wall clocks that are set while leases run.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ag_client::v1;
use ag_cluster_tests::cluster::Cluster;
use ag_cluster_tests::faults::{build, text};
use anyhow::{Context as _, Result, ensure};

const LEASE: Duration = Duration::from_secs(3);
const HOUR_S: i64 = 3_600;

/// Sets a replica's wall clock off by this many seconds.
fn step(clocks: &Path, number: u16, seconds: i64) -> Result<()> {
    use std::os::unix::fs::FileExt as _;
    // Written in place: the file is mapped by the process.
    let path = clocks.join(format!("clock-{number}"));
    let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    Ok(file.write_all_at(&seconds.to_ne_bytes(), 0)?)
}

fn claim(worker: &str, wait: Duration) -> Result<v1::ClaimJobRequest> {
    Ok(v1::ClaimJobRequest {
        queues: vec!["q".into()],
        worker: worker.into(),
        lease: Some(LEASE.try_into()?),
        wait: Some(wait.try_into()?),
        ..Default::default()
    })
}

/// Kind D. The leader's wall clock is set by an hour, forward and back, and those of the others by ten minutes, while a
/// lease runs: it ends neither early nor late, and the replicas do not drift apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_of_a_wall_clock_moves_no_lease() -> Result<()> {
    let clocks = tempfile::tempdir()?;
    for number in 1..=3 {
        step(clocks.path(), number, 0)?;
    }
    let (library, file) = (text(&build("clock", clocks.path())?)?, text(&clocks.path().join("clock-{replica}"))?);
    let cluster = Cluster::start(3, &[("LD_PRELOAD", &library), ("CLOCK_STEP_FILE", &file)]).await?;
    let client = cluster.client()?;
    for leader_step in [HOUR_S, -HOUR_S] {
        let job = v1::EnqueueJobRequest { queue: "q".into(), ..Default::default() };
        let job_id = client.enqueue_job(job.clone()).await?.value.job_id;
        let asked = Instant::now();
        let held = client.claim_job(claim("first", Duration::ZERO)?).await?.value.job.context("a job")?;
        let granted = Instant::now();
        ensure!(held.job_id == job_id, "another job: {held:?}");

        let leader = cluster.leader().await?;
        for number in 1..=3 {
            let follower_step = if number % 2 == 0 { 600 } else { -600 };
            step(clocks.path(), number, if number == leader { leader_step } else { follower_step })?;
        }
        // That the step took place shows at a time that is stamped by the wall clock.
        let stamped = client.enqueue_job(v1::EnqueueJobRequest { queue: "other".into(), ..job }).await?.value;
        let real_s = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())?;
        let off_s = stamped.created_at.context("a time")?.seconds - real_s;
        ensure!((off_s - leader_step).abs() <= 5, "the wall clock is off by {off_s} s, not by {leader_step} s");

        let next = client.claim_job(claim("second", Duration::from_secs(20))?).await?.value.job.context("it lapses")?;
        let (since_asked, since_granted) = (asked.elapsed(), granted.elapsed());
        println!("leader stepped by {leader_step} s: a lease of {LEASE:?} ended after {} ms", since_asked.as_millis());
        ensure!(next.job_id == job_id && next.attempts == 2, "another job: {next:?}");
        ensure!(since_asked >= LEASE, "the lease ended early, after {since_asked:?}");
        ensure!(since_granted <= LEASE + Duration::from_secs(1), "the lease ended late, after {since_granted:?}");
        ensure!(cluster.leader().await? == leader, "a step of a clock made an election");
        let complete = v1::CompleteJobRequest { job_id, worker: "second".into(), ..Default::default() };
        client.raw().complete_job(complete).await?;
    }
    cluster.same_hash(3).await?;
    Ok(())
}
