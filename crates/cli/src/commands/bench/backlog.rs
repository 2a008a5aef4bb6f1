//! `ag bench backlog`.

use std::time::{Duration, Instant};

use ag_client::{Claim, Client, v1};
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{Times, conditions};
use crate::connect::{Connect, proto};
use crate::output;
use crate::progress::Progress;

/// How long claims take with few and with many jobs waiting: the same queue policy, round by round in turn.
#[derive(Args, Clone, Debug)]
pub struct Backlog {
    /// Waiting jobs in the smaller queue.
    #[arg(long, default_value_t = 1_000)]
    small: u64,
    /// Waiting jobs in the larger queue.
    #[arg(long, default_value_t = 1_000_000)]
    large: u64,
    /// The jobs of the larger queue are delayed by a day, beside as many that are ready as in the smaller one.
    #[arg(long)]
    delayed: bool,
    /// Rounds; in each, first one queue and then the other.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Claims in a round on each queue.
    #[arg(long, default_value_t = 2_000)]
    claims: usize,
}

/// Long enough that no delayed job becomes ready while it is measured.
const DAY: Duration = Duration::from_secs(86_400);

/// Of the claims of one round on one queue, in milliseconds.
#[derive(Clone, Copy)]
struct Figure {
    p50: f64,
    p99: f64,
}

impl Backlog {
    /// Runs it.
    pub async fn run(self, connect: &Connect, as_json: bool) -> Result<()> {
        ensure!(self.rounds > 0 && self.claims > 0, "rounds, claims: must be at least 1");
        let client = connect.client()?;
        let mut conditions = conditions(&client).await?;
        let name = ag_client::new_request_id();
        let [small, large] = ["small", "large"].map(|size| format!("bench/{}/{size}", &name[..8]));
        fill(&client, &small, self.small, None).await?;
        let memory_before = leader_memory(&client).await;
        if self.delayed {
            fill(&client, &large, self.small, None).await?;
        }
        fill(&client, &large, self.large, self.delayed.then_some(DAY)).await?;
        conditions["leader_memory_bytes_with_small"] = json!(memory_before);
        conditions["leader_memory_bytes_with_both"] = json!(leader_memory(&client).await);
        let (mut with_small, mut with_large) = (Vec::new(), Vec::new());
        for round in 1..=self.rounds {
            let on_small = self.round(&client, &small).await?;
            let on_large = self.round(&client, &large).await?;
            eprintln!(
                "round {round}: claim p99 {:.2} ms on the small queue, {:.2} ms on the large",
                on_small.p99, on_large.p99
            );
            with_small.push(on_small);
            with_large.push(on_large);
        }
        let ratios =
            with_small.iter().zip(&with_large).map(|(small, large)| large.p99 / small.p99.max(f64::MIN_POSITIVE));
        let ratio = median(ratios);
        let of = |figures: &[Figure]| Figure {
            p50: median(figures.iter().map(|figure| figure.p50)),
            p99: median(figures.iter().map(|figure| figure.p99)),
        };
        self.report(of(&with_small), of(&with_large), ratio, &conditions, as_json)
    }

    async fn round(&self, client: &Client, queue: &str) -> Result<Figure> {
        let mut times = Times::default();
        for _ in 0..self.claims {
            claim_and_release(client, queue, &mut times).await?;
        }
        Ok(Figure { p50: times.quantile_ms(0.5), p99: times.quantile_ms(0.99) })
    }

    fn report(
        &self,
        small: Figure,
        large: Figure,
        ratio: f64,
        conditions: &serde_json::Value,
        as_json: bool,
    ) -> Result<()> {
        if as_json {
            let report = json!({
                "conditions": conditions, "small": self.small, "large": self.large, "delayed": self.delayed,
                "rounds": self.rounds,
                "claims": self.claims, "p50_small_ms": small.p50, "p50_large_ms": large.p50,
                "p99_small_ms": small.p99, "p99_large_ms": large.p99, "ratio": ratio,
            });
            return output::line(&report.to_string());
        }
        output::line(&format!("conditions: {conditions}"))?;
        output::line(&format!(
            "claims, medians of {} rounds of {}; ratio of the p99: {ratio:.2}",
            self.rounds, self.claims
        ))?;
        let row = |jobs: u64, figure: Figure| {
            vec![jobs.to_string(), format!("{:.2}", figure.p50), format!("{:.2}", figure.p99)]
        };
        output::table(&["JOBS WAITING", "P50 MS", "P99 MS"], &[row(self.small, small), row(self.large, large)])
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// The resident memory of the leader, from its metrics. `None`: it cannot be asked, as with TLS.
async fn leader_memory(client: &Client) -> Option<u64> {
    let cluster = client.get_cluster(v1::GetClusterRequest {}).await.ok()?.value;
    let leader = cluster.leader?;
    let addr = &cluster.replicas.iter().find(|replica| replica.id == leader)?.addr;
    let ask = async {
        let mut stream = tokio::net::TcpStream::connect(addr).await?;
        stream.write_all(format!("GET /metrics HTTP/1.0\r\nhost: {addr}\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.map(|_| answer)
    };
    let answer = tokio::time::timeout(Duration::from_secs(5), ask).await.ok()?.ok()?;
    let line = answer.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes "))?;
    line.trim().parse().ok()
}

/// Puts jobs into a queue, by batches.
async fn fill(client: &Client, queue: &str, jobs: u64, delay: Option<Duration>) -> Result<()> {
    let progress = Progress::start(format!("putting {jobs} jobs into {queue}"));
    let mut left = jobs;
    while left > 0 {
        let batch = left.min(1_000);
        let (queue, payload, delay) = (queue.to_owned(), vec![b'x'; 64], delay.map(proto));
        let one = v1::EnqueueJobRequest { queue, payload, delay, ..Default::default() };
        let jobs_of_batch = vec![one; usize::try_from(batch).unwrap_or(1_000)];
        client.enqueue_jobs(v1::EnqueueJobsRequest { jobs: jobs_of_batch, ..Default::default() }).await?;
        left -= batch;
        progress.say(format!("{} of {jobs} jobs", jobs - left));
    }
    Ok(())
}

/// Times a claim; gives it back, so that the queue stays as full as it was.
async fn claim_and_release(client: &Client, queue: &str, times: &mut Times) -> Result<()> {
    let request = v1::ClaimJobRequest { queues: vec![queue.to_owned()], worker: "bench".into(), ..Default::default() };
    let from = Instant::now();
    let job = client.claim_job(request).await?.value.job;
    times.add(from);
    let claim = job.and_then(|job| Claim::of(&job, "bench")).context("a queue with jobs handed out none")?;
    client.release_job(&claim).await?;
    Ok(())
}
