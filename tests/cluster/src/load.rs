//! Clients at work, and what they were told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ag_client::{Claim, Client, v1};
use anyhow::{Context as _, Result, ensure};
use sha2::{Digest as _, Sha256};
use tokio::task::JoinSet;

use crate::cluster::{Cluster, audit_log, client, client_of};

/// What clients were told.
#[derive(Default)]
pub struct Told {
    /// Jobs whose enqueueing was acknowledged.
    pub enqueued: BTreeSet<String>,
    /// Jobs whose completion was acknowledged, with the result.
    pub completed: BTreeMap<String, Vec<u8>>,
    /// When calls succeeded.
    pub successes: Vec<Instant>,
    /// Calls that failed for good.
    pub failures: Vec<String>,
}

impl Told {
    /// The longest time without any success.
    pub fn longest_gap(&mut self) -> Duration {
        self.successes.sort();
        self.successes.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }

    fn merge(&mut self, other: Self) {
        self.enqueued.extend(other.enqueued);
        self.completed.extend(other.completed);
        self.successes.extend(other.successes);
        self.failures.extend(other.failures);
    }
}

/// Clients that enqueue, claim, extend and complete until they are told to stop.
pub struct Load {
    stop: Arc<AtomicBool>,
    tasks: JoinSet<Told>,
}

impl Load {
    /// Starts `clients` clients, each with a first address of its own.
    pub fn start(cluster: &Cluster, clients: usize) -> Result<Self> {
        Self::start_on(&cluster.addrs(), clients)
    }

    /// The same, on a cluster that is reached there.
    pub fn start_on(addrs: &[String], clients: usize) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for number in 0..clients {
            let mut addrs = addrs.to_vec();
            let first = number % addrs.len();
            addrs.rotate_left(first);
            let client = Client::builder().addrs(&addrs.join(",")).deadline(Duration::from_secs(20)).build()?;
            tasks.spawn(work(client, number, Arc::clone(&stop)));
        }
        Ok(Self { stop, tasks })
    }

    /// Tells the clients to stop after the call that they are at.
    pub fn wind_up(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Stops the clients; gives what they were told.
    pub async fn stop(mut self) -> Result<Told> {
        self.stop.store(true, Ordering::Relaxed);
        let mut told = Told::default();
        while let Some(joined) = self.tasks.join_next().await {
            told.merge(joined.context("a client panicked")?);
        }
        Ok(told)
    }
}

async fn work(client: Client, number: usize, stop: Arc<AtomicBool>) -> Told {
    let mut told = Told::default();
    let worker = format!("client-{number}");
    let queue = "load".to_owned();
    while !stop.load(Ordering::Relaxed) {
        let payload = format!("{worker}-{}", told.enqueued.len()).into_bytes();
        let enqueue = v1::EnqueueJobRequest { queue: queue.clone(), payload, ..Default::default() };
        match client.enqueue_job(enqueue).await {
            Ok(answer) => {
                told.enqueued.insert(answer.value.job_id);
                told.successes.push(Instant::now());
            }
            Err(error) => told.failures.push(format!("enqueue: {error}")),
        }
        let claim = v1::ClaimJobRequest { queues: vec![queue.clone()], worker: worker.clone(), ..Default::default() };
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let job = match client.claim_job(claim).await {
            Ok(answer) => answer.value.job,
            Err(error) => {
                told.failures.push(format!("claim: {error}"));
                None
            }
        };
        let Some(job) = job else { continue };
        told.successes.push(Instant::now());
        let result = format!("by {worker}").into_bytes();
        let Some(claim) = Claim::of(&job, &worker) else {
            told.failures.push(format!("claim: {} has no number", job.job_id));
            continue;
        };
        if stop.load(Ordering::Relaxed) {
            break;
        }
        match client.heartbeat_job(&claim, v1::HeartbeatJobRequest::default()).await {
            Ok(_) => told.successes.push(Instant::now()),
            Err(error) => told.failures.push(format!("heartbeat: {error}")),
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let complete = v1::CompleteJobRequest { result: result.clone(), ..Default::default() };
        match client.complete_job(&claim, complete).await {
            Ok(_) => {
                told.completed.insert(job.job_id, result);
                told.successes.push(Instant::now());
            }
            Err(error) => told.failures.push(format!("complete: {error}")),
        }
    }
    told
}

/// All jobs of the load, as the cluster has them.
pub async fn all_jobs(client: &Client) -> Result<BTreeMap<String, v1::Job>> {
    let mut jobs = BTreeMap::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListJobsRequest { page_size: Some(1_000), page_token, ..Default::default() };
        let page = client.list_jobs(request).await?.value;
        jobs.extend(page.jobs.into_iter().map(|job| (job.job_id.clone(), job)));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok(jobs);
        }
    }
}

/// Everything that was acknowledged is there, and nothing was completed twice.
pub async fn check(cluster: &Cluster, told: &Told) -> Result<()> {
    check_on(&cluster.addrs(), told).await
}

/// The same, on a cluster that is reached there.
pub async fn check_on(addrs: &[String], told: &Told) -> Result<()> {
    let jobs = all_jobs(&client(addrs)?).await?;
    let lost: Vec<_> = told.enqueued.iter().filter(|job_id| !jobs.contains_key(*job_id)).collect();
    ensure!(lost.is_empty(), "{} acknowledged jobs are lost, such as {:?}", lost.len(), lost.first());
    for job_id in told.completed.keys() {
        let state = jobs.get(job_id).map(v1::Job::state);
        ensure!(state == Some(v1::JobState::Completed), "{job_id} was completed, and is {state:?}");
    }
    let audits = audits(addrs).await?;
    let mut completions: BTreeMap<&str, u32> = BTreeMap::new();
    for record in audits.iter().filter(|record| record.verb == "complete" && record.outcome == "done") {
        *completions.entry(&record.job_id).or_default() += 1;
    }
    let twice: Vec<_> = completions.iter().filter(|(_, count)| **count != 1).collect();
    ensure!(twice.is_empty(), "completed more than once: {twice:?}");
    for job_id in told.completed.keys() {
        ensure!(completions.contains_key(job_id.as_str()), "{job_id}: no completion in the audit log");
    }
    Ok(())
}

/// The hash of a record with these canonical bytes, after one with this hash.
fn hash_after(previous_hash: &str, canonical: &[u8]) -> Result<String> {
    ensure!(previous_hash.len() == 64 && previous_hash.is_ascii(), "{previous_hash:?} is no hash");
    let mut hasher = Sha256::new();
    for place in (0..64).step_by(2) {
        hasher.update([u8::from_str_radix(&previous_hash[place..place + 2], 16)?]);
    }
    hasher.update(canonical);
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The audit log, which is the same, byte for byte, on all running replicas, and whose hashes are right.
async fn audits(addrs: &[String]) -> Result<Vec<v1::AuditRecord>> {
    let mut first: Option<Vec<v1::AuditRecord>> = None;
    for addr in addrs {
        let records = audit_log(&client_of(addr)?).await?;
        let mut hash = "0".repeat(64);
        for (expected, record) in (1..).zip(&records) {
            ensure!(record.sequence == expected && record.previous_hash == hash, "the chain breaks at {expected}");
            hash = hash_after(&hash, &record.canonical)?;
            ensure!(record.hash == hash, "record {expected} does not have the hash of its content");
        }
        match &first {
            None => first = Some(records),
            Some(first) => ensure!(*first == records, "the replica at {addr} has another audit log"),
        }
    }
    first.context("no replica runs")
}
