//! `ag bench cycle`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ag_client::{Claim, Client, v1};
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde_json::json;

use super::{Times, conditions};
use crate::connect::{Connect, duration, proto};
use crate::output;
use crate::progress::Progress;

const WORKERS_DEFAULT: usize = 16;
const DURATION_DEFAULT: Duration = Duration::from_secs(10);
const PAYLOAD_BYTES_DEFAULT: usize = 256;

/// Workers that each enqueue, claim and complete a job, over and over, and await every answer.
#[derive(Args, Clone, Debug)]
pub struct Cycle {
    /// How many workers.
    #[arg(long, default_value_t = WORKERS_DEFAULT)]
    workers: usize,
    /// For how long, after a warm-up of a quarter of it.
    #[arg(long, value_parser = duration, default_value = "10s")]
    duration: Duration,
    /// Bytes of a payload.
    #[arg(long, default_value_t = PAYLOAD_BYTES_DEFAULT)]
    payload_bytes: usize,
}

impl Default for Cycle {
    fn default() -> Self {
        Self { workers: WORKERS_DEFAULT, duration: DURATION_DEFAULT, payload_bytes: PAYLOAD_BYTES_DEFAULT }
    }
}

impl Cycle {
    /// Runs it.
    pub async fn run(self, connect: &Connect, as_json: bool) -> Result<()> {
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
        let progress = Progress::start("warming up");
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        loop {
            tokio::select! {
                joined = tasks.join_next() => match joined {
                    None => break,
                    Some(joined) => total.merge(joined.context("a worker failed")??),
                },
                _ = tick.tick() => progress.say(format!("{} cycles after the warm-up", done.load(Ordering::Relaxed))),
            }
        }
        drop(progress);
        self.report(total, &conditions, as_json)
    }

    fn report(&self, mut total: CycleTimes, conditions: &serde_json::Value, as_json: bool) -> Result<()> {
        let cycles = total.complete.0.len();
        let per_second = cycles as f64 / self.duration.as_secs_f64();
        let verbs = [("enqueue", &mut total.enqueue), ("claim", &mut total.claim), ("complete", &mut total.complete)];
        let figures: Vec<_> =
            verbs.into_iter().map(|(verb, times)| (verb, times.quantile_ms(0.5), times.quantile_ms(0.99))).collect();
        if as_json {
            let latency: serde_json::Map<_, _> = figures
                .iter()
                .map(|(verb, p50, p99)| ((*verb).to_owned(), json!({ "p50_ms": p50, "p99_ms": p99 })))
                .collect();
            let report = json!({
                "conditions": conditions, "workers": self.workers, "payload_bytes": self.payload_bytes,
                "seconds": self.duration.as_secs_f64(), "cycles": cycles, "cycles_per_s": per_second,
                "latency": latency,
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
            let claim = Claim::of(&job, &self.label).context("a claim without a number")?;
            client.complete_job(&claim, v1::CompleteJobRequest::default()).await?;
            if counts {
                times.complete.add(from);
                done.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(times)
    }
}
