//! `ag bench`: load, measured. What it prints is only good for comparing runs on one machine, side by side.

mod backlog;
mod cluster;
mod cycle;

use std::time::Instant;

use ag_client::{Client, v1};
use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::json;

use self::backlog::Backlog;
use self::cluster::OwnCluster;
use self::cycle::Cycle;
use crate::connect::Connect;

/// Load, measured.
#[derive(Args, Clone, Debug)]
pub struct Bench {
    /// Start a cluster of so many replicas on this machine for the measurement, instead of asking the one at --addr.
    #[arg(long, global = true, value_parser = clap::value_parser!(u16).range(1..=9))]
    replicas: Option<u16>,
    /// As JSON.
    #[arg(long, global = true)]
    json: bool,
    /// What is measured; by default `cycle`.
    #[command(subcommand)]
    what: Option<What>,
}

/// What is measured.
#[derive(Subcommand, Clone, Debug)]
enum What {
    /// Workers that each enqueue, claim and complete a job, over and over, and await every answer.
    Cycle(Cycle),
    /// How long claims take with few and with many jobs waiting: the same queue policy, round by round in turn.
    Backlog(Backlog),
}

impl Bench {
    /// Runs the measurement.
    pub async fn run(self, connect: &Connect) -> Result<()> {
        let own = match self.replicas {
            Some(replicas) => Some(OwnCluster::start(replicas).await?),
            None => None,
        };
        let connect = own.as_ref().map_or(connect.clone(), |own| own.connect(connect));
        let what = self.what.unwrap_or_else(|| What::Cycle(Cycle::default()));
        let measured = async {
            match what {
                What::Cycle(cycle) => cycle.run(&connect, self.json).await,
                What::Backlog(backlog) => backlog.run(&connect, self.json).await,
            }
        };
        // Its data is in a temporary folder, which is to be removed even if somebody stops it.
        let mut signals = crate::signals::Signals::watch()?;
        let outcome = tokio::select! {
            outcome = measured => outcome,
            () = signals.next() => Err(anyhow::anyhow!("stopped by a signal, before all was measured")),
        };
        match own {
            Some(own) => outcome.and(own.stop().await),
            None => outcome,
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

/// Under which conditions it is measured.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_times_in_order() {
        let mut times = Times((1..=100).rev().map(|ms| ms * 1_000).collect());
        assert_eq!((times.quantile_ms(0.0), times.quantile_ms(0.99), times.quantile_ms(1.0)), (1.0, 99.0, 100.0));
        assert_eq!(Times::default().quantile_ms(0.5), 0.0);
    }
}
