//! The command line of `ag-worker`.

use std::time::Duration;

use ag_worker::WorkerConfig;
use anyhow::Result;
use clap::{CommandFactory as _, Parser};
use clap_complete::Shell;

use crate::connect::{Connect, duration};
use crate::exit;
use crate::signals::Signals;
use crate::telemetry::{self, LogFormat};

/// Claims jobs and runs a command for each: the payload on its standard input, the result from its standard output.
#[derive(Parser, Clone, Debug)]
#[command(name = "ag-worker", version, after_help = exit::HELP)]
pub struct WorkerCli {
    /// A queue to claim from; may be given several times.
    #[arg(long = "queue", required_unless_present = "completions")]
    queues: Vec<String>,
    /// What the worker calls itself; no two processes that run at once should share it. By default host and process id.
    #[arg(long)]
    label: Option<String>,
    /// The command, run by `sh -c` for each job.
    #[arg(long, required_unless_present = "completions")]
    exec: Option<String>,
    /// How many jobs at once.
    #[arg(long, default_value_t = 1)]
    concurrency: usize,
    /// The lease of every claim.
    #[arg(long, value_parser = duration, default_value = "30s")]
    lease: Duration,
    /// How long one call waits for a job.
    #[arg(long, value_parser = duration, default_value = "20s")]
    wait: Duration,
    /// How long running commands may go on after SIGTERM.
    #[arg(long, value_parser = duration, default_value = "30s")]
    drain: Duration,
    /// How long the first retry of a failed job is put off; twice as long for each further one.
    #[arg(long, value_parser = duration, default_value = "1s")]
    retry_backoff: Duration,
    /// Stop a command that runs for longer than this, and report its claim as failed. By default it may run for ever,
    /// as long as its lease is kept.
    #[arg(long, value_parser = duration)]
    max_runtime: Option<Duration>,
    /// Store an attestation with every completion.
    #[arg(long)]
    attest: bool,
    /// End when no job came for this long and none is running.
    #[arg(long, value_parser = duration)]
    exit_when_idle: Option<Duration>,
    #[command(flatten)]
    connect: Connect,
    /// How log lines look.
    #[arg(long, value_enum, default_value_t, env = "AG_LOG_FORMAT")]
    log_format: LogFormat,
    /// Print completions for a shell instead.
    #[arg(long)]
    completions: Option<Shell>,
}

impl WorkerCli {
    /// Works until SIGTERM or SIGINT.
    pub async fn run(self) -> Result<()> {
        if let Some(shell) = self.completions {
            clap_complete::generate(shell, &mut Self::command(), "ag-worker", &mut std::io::stdout());
            return Ok(());
        }
        telemetry::start(self.log_format, "info");
        let client = self.connect.client()?;
        let label = self.label.unwrap_or_else(default_label);
        let mut config = WorkerConfig::new(client, self.queues, label, self.exec.unwrap_or_default());
        config.concurrency = self.concurrency;
        config.lease = self.lease;
        config.wait = self.wait;
        config.drain_grace = self.drain;
        config.retry_backoff = self.retry_backoff;
        config.max_runtime = self.max_runtime;
        config.attest = self.attest;
        config.exit_when_idle = self.exit_when_idle;
        let mut signals = Signals::watch()?;
        let stop = async move { signals.next().await };
        let report = ag_worker::run(config, stop).await.map_err(|error| match error {
            ag_worker::WorkerError::Setting(setting) => exit::Exit::usage(setting.to_string()),
            other => other.into(),
        })?;
        tracing::info!(?report, "stopped");
        Ok(())
    }
}

fn default_label() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "worker" } else { host.trim() };
    format!("{host}-{}-{}", std::process::id(), &ag_client::new_request_id()[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Field report T16: host and process id may be the same after a restart, such as in a container; the label is not.
    #[test]
    fn a_default_label_is_never_the_same_twice() {
        assert_ne!(default_label(), default_label());
    }
}
