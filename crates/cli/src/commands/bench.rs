//! `ag bench`: load, measured. What it prints is only good for comparing runs on one machine, side by side.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ag_client::{Client, v1};
use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand};
use serde_json::json;

use crate::connect::{Connect, duration, proto};
use crate::output;

/// Load, measured against a running cluster.
#[derive(Subcommand, Clone, Debug)]
pub enum Bench {
    /// Workers that each enqueue, claim and complete a job, over and over, and await every answer.
    Cycle(Cycle),
    /// How long claims take with few and with many jobs waiting: the same queue policy, round by round in turn.
    Backlog(Backlog),
}

/// See [`Bench::Cycle`].
#[derive(Args, Clone, Debug)]
pub struct Cycle {
    /// How many workers.
    #[arg(long, default_value_t = 16)]
    workers: usize,
    /// For how long, after a warm-up of a quarter of it.
    #[arg(long, value_parser = duration, default_value = "10s")]
    duration: Duration,
    /// Bytes of a payload.
    #[arg(long, default_value_t = 256)]
    payload_bytes: usize,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// See [`Bench::Backlog`].
#[derive(Args, Clone, Debug)]
pub struct Backlog {
    /// Waiting jobs in the smaller queue.
    #[arg(long, default_value_t = 1_000)]
    small: u64,
    /// Waiting jobs in the larger queue.
    #[arg(long, default_value_t = 1_000_000)]
    large: u64,
    /// Rounds; in each, first one queue and then the other.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Claims in a round on each queue.
    #[arg(long, default_value_t = 2_000)]
    claims: usize,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Bench {
    /// Runs the measurement.
    pub async fn run(self, connect: &Connect) -> Result<()> {
        match self {
            Self::Cycle(cycle) => cycle.run(connect).await,
            Self::Backlog(backlog) => backlog.run(connect).await,
        }
    }
}

/// Times of calls, in microseconds.
#[derive(Default)]
struct Times(Vec<u64>);

impl Times {
    fn add(&mut self, from: Instant) {
        self.0.push(u64::try_from(from.elapsed().as_micros()).unwrap_or(u64::MAX));
    }

    /// The time below which this share of the calls stayed, in milliseconds.
    fn quantile_ms(&mut self, share: f64) -> f64 {
        self.0.sort_unstable();
        let last = self.0.len().saturating_sub(1);
        let position = ((last as f64) * share).round() as usize;
        self.0.get(position).copied().unwrap_or(0) as f64 / 1_000.0
    }
}

async fn conditions(client: &Client) -> Result<serde_json::Value> {
    let cluster = client.get_cluster(v1::GetClusterRequest {}).await?.value;
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    Ok(json!({
        "cores_of_this_machine": cores,
        "replicas": cluster.replicas.len(),
        "release": cluster.replicas.first().map(|replica| replica.release.clone()),
        "client": ag_wire::version::RELEASE,
        "debug_assertions": cfg!(debug_assertions),
    }))
}

impl Cycle {
    async fn run(self, connect: &Connect) -> Result<()> {
        ensure!(self.workers > 0, "workers: must be at least 1");
        let client = connect.client()?;
        let conditions = conditions(&client).await?;
        let queue = format!("bench/{}", &ag_client::new_request_id()[..8]);
        let warm_until = Instant::now() + self.duration / 4;
        let until = warm_until + self.duration;
        let done = Arc::new(AtomicU64::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..self.workers {
            // A connection of its own for each, as separate processes would have.
            let client = connect.client()?;
            let worker = CycleWorker {
                queue: queue.clone(),
                label: format!("bench-{number}"),
                payload: vec![b'x'; self.payload_bytes],
            };
            tasks.spawn(worker.run(client, warm_until, until, Arc::clone(&done)));
        }
        let mut total = CycleTimes::default();
        let mut tick = tokio::time::interval(Duration::from_secs(2));
        tick.tick().await;
        loop {
            tokio::select! {
                joined = tasks.join_next() => match joined {
                    None => break,
                    Some(joined) => total.merge(joined.context("a worker failed")??),
                },
                _ = tick.tick() => eprintln!("{} cycles", done.load(Ordering::Relaxed)),
            }
        }
        self.report(total, &conditions)
    }

    fn report(&self, mut total: CycleTimes, conditions: &serde_json::Value) -> Result<()> {
        let cycles = total.complete.0.len();
        let per_second = cycles as f64 / self.duration.as_secs_f64();
        let verbs = [("enqueue", &mut total.enqueue), ("claim", &mut total.claim), ("complete", &mut total.complete)];
        let figures: Vec<_> =
            verbs.into_iter().map(|(verb, times)| (verb, times.quantile_ms(0.5), times.quantile_ms(0.99))).collect();
        if self.json {
            let latency: serde_json::Map<_, _> = figures
                .iter()
                .map(|(verb, p50, p99)| ((*verb).to_owned(), json!({ "p50_ms": p50, "p99_ms": p99 })))
                .collect();
            let report = json!({
                "conditions": conditions, "workers": self.workers, "payload_bytes": self.payload_bytes,
                "seconds": self.duration.as_secs_f64(), "cycles": cycles, "cycles_per_s": per_second, "latency": latency,
            });
            return output::line(&report.to_string());
        }
        output::line(&format!("conditions: {conditions}"))?;
        let (workers, seconds, bytes) = (self.workers, self.duration.as_secs_f64(), self.payload_bytes);
        output::line(&format!("{workers} workers, {seconds} s, payloads of {bytes} bytes: {per_second:.0} cycles/s"))?;
        let row =
            |(verb, p50, p99): &(&str, f64, f64)| vec![(*verb).to_owned(), format!("{p50:.2}"), format!("{p99:.2}")];
        output::table(&["CALL", "P50 MS", "P99 MS"], &figures.iter().map(row).collect::<Vec<_>>())
    }
}

#[derive(Default)]
struct CycleTimes {
    enqueue: Times,
    claim: Times,
    complete: Times,
}

impl CycleTimes {
    fn merge(&mut self, other: Self) {
        self.enqueue.0.extend(other.enqueue.0);
        self.claim.0.extend(other.claim.0);
        self.complete.0.extend(other.complete.0);
    }
}

struct CycleWorker {
    queue: String,
    label: String,
    payload: Vec<u8>,
}

impl CycleWorker {
    async fn run(self, client: Client, warm: Instant, until: Instant, done: Arc<AtomicU64>) -> Result<CycleTimes> {
        let mut times = CycleTimes::default();
        while Instant::now() < until {
            let counts = Instant::now() >= warm;
            let from = Instant::now();
            let (queue, payload) = (self.queue.clone(), self.payload.clone());
            client.enqueue_job(v1::EnqueueJobRequest { queue, payload, ..Default::default() }).await?;
            if counts {
                times.enqueue.add(from);
            }
            let from = Instant::now();
            let request = v1::ClaimJobRequest {
                queues: vec![self.queue.clone()],
                worker: self.label.clone(),
                wait: Some(proto(Duration::from_secs(5))),
                ..Default::default()
            };
            let Some(job) = client.claim_job(request).await?.value.job else { continue };
            if counts {
                times.claim.add(from);
            }
            let from = Instant::now();
            let (job_id, worker) = (job.job_id, self.label.clone());
            client.complete_job(v1::CompleteJobRequest { job_id, worker, ..Default::default() }).await?;
            if counts {
                times.complete.add(from);
                done.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(times)
    }
}

impl Backlog {
    async fn run(self, connect: &Connect) -> Result<()> {
        let client = connect.client()?;
        let conditions = conditions(&client).await?;
        let name = ag_client::new_request_id();
        let queues =
            [(format!("bench/{}/small", &name[..8]), self.small), (format!("bench/{}/large", &name[..8]), self.large)];
        for (queue, jobs) in &queues {
            fill(&client, queue, *jobs).await?;
        }
        let mut figures: Vec<(f64, f64)> = Vec::new();
        for round in 0..self.rounds {
            let mut p99 = Vec::new();
            for (queue, _) in &queues {
                let mut times = Times::default();
                for _ in 0..self.claims {
                    claim_and_release(&client, queue, &mut times).await?;
                }
                p99.push(times.quantile_ms(0.99));
            }
            eprintln!(
                "round {}: p99 {:.2} ms with {} jobs, {:.2} ms with {}",
                round + 1,
                p99[0],
                self.small,
                p99[1],
                self.large
            );
            figures.push((p99[0], p99[1]));
        }
        let median = |pick: fn(&(f64, f64)) -> f64| {
            let mut values: Vec<_> = figures.iter().map(pick).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(0.0)
        };
        let ratio = median(|figure| figure.1 / figure.0.max(f64::MIN_POSITIVE));
        let (small_ms, large_ms) = (median(|figure| figure.0), median(|figure| figure.1));
        if self.json {
            let report = json!({
                "conditions": conditions, "small": self.small, "large": self.large, "rounds": self.rounds, "claims": self.claims,
                "p99_small_ms": small_ms, "p99_large_ms": large_ms, "ratio": ratio,
            });
            return output::line(&report.to_string());
        }
        output::line(&format!("conditions: {conditions}"))?;
        output::line(&format!(
            "claim p99, median of {} rounds of {} claims: {small_ms:.2} ms with {} jobs waiting, {large_ms:.2} ms with {}: ratio {ratio:.2}",
            self.rounds, self.claims, self.small, self.large
        ))
    }
}

/// Puts jobs into a queue, by batches.
async fn fill(client: &Client, queue: &str, jobs: u64) -> Result<()> {
    let mut said = Instant::now();
    let mut left = jobs;
    while left > 0 {
        let batch = left.min(1_000);
        let one = v1::EnqueueJobRequest { queue: queue.to_owned(), payload: vec![b'x'; 64], ..Default::default() };
        let jobs_of_batch = vec![one; usize::try_from(batch).unwrap_or(1_000)];
        client.enqueue_jobs(v1::EnqueueJobsRequest { jobs: jobs_of_batch, ..Default::default() }).await?;
        left -= batch;
        if said.elapsed() > Duration::from_secs(2) {
            eprintln!("{} of {jobs} jobs in {queue}", jobs - left);
            said = Instant::now();
        }
    }
    Ok(())
}

/// Times a claim; gives it back, so that the queue stays as full as it was.
async fn claim_and_release(client: &Client, queue: &str, times: &mut Times) -> Result<()> {
    let request = v1::ClaimJobRequest { queues: vec![queue.to_owned()], worker: "bench".into(), ..Default::default() };
    let from = Instant::now();
    let job = client.claim_job(request).await?.value.job;
    times.add(from);
    let job_id = job.context("a queue with jobs handed out none")?.job_id;
    client.release_job(v1::ReleaseJobRequest { job_id, worker: "bench".into() }).await?;
    Ok(())
}
