//! The command line of `ag`.

use anyhow::Result;
use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;

use crate::commands::audit::{Attestation, Audit};
use crate::commands::bench::Bench;
use crate::commands::cluster::Cluster;
use crate::commands::dev::Dev;
use crate::commands::job::Job;
use crate::commands::local::Local;
use crate::commands::principal::Principal;
use crate::commands::queue::Queue;
use crate::commands::serve::Serve;
use crate::config::ServeConfig;
use crate::connect::Connect;
use crate::telemetry::{self, LogFormat};
use crate::{exit, output};

/// Hands out jobs to workers, and does not lose them.
#[derive(Parser, Clone, Debug)]
#[command(name = "ag", version, after_help = exit::HELP)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    connect: Connect,
    /// How log lines look.
    #[arg(long, value_enum, default_value_t, global = true, env = "AG_LOG_FORMAT")]
    log_format: LogFormat,
}

/// The commands.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Run one replica for trying things out: loopback only, no credentials.
    Dev(Dev),
    /// Run a real cluster of separate processes on this machine.
    Local(Local),
    /// Run one replica of a cluster.
    Serve(Serve),
    /// The verbs of jobs.
    #[command(subcommand)]
    Job(Job),
    /// Queues and their policies.
    #[command(subcommand)]
    Queue(Queue),
    /// The audit log.
    #[command(subcommand)]
    Audit(Audit),
    /// Attestations.
    #[command(subcommand)]
    Attestation(Attestation),
    /// The cluster: its replicas, its leader, its version, its certificates.
    #[command(subcommand)]
    Cluster(Cluster),
    /// Principals and their bearer tokens.
    #[command(subcommand)]
    Principal(Principal),
    /// Load, measured.
    Bench(Bench),
    /// Print the OpenAPI document of the HTTP form.
    Openapi,
    /// Print completions for a shell.
    Completions {
        /// Which.
        shell: Shell,
    },
}

impl Cli {
    /// How many threads run tasks.
    pub fn threads(&self) -> usize {
        match &self.command {
            Command::Serve(serve) => {
                let threads = ServeConfig::read(serve.config.as_deref()).ok().and_then(|config| config.threads);
                crate::threads(threads)
            }
            Command::Bench(_) => crate::threads(None).max(2),
            _ => crate::threads(None),
        }
    }

    /// Does it.
    pub async fn run(self) -> Result<()> {
        let runs_a_replica = matches!(self.command, Command::Dev(_) | Command::Serve(_));
        telemetry::start(self.log_format, if runs_a_replica { "info,openraft=warn" } else { "warn" });
        match self.command {
            Command::Dev(dev) => dev.run().await,
            Command::Local(local) => local.run().await,
            Command::Serve(serve) => serve.run().await,
            Command::Job(job) => job.run(&self.connect).await,
            Command::Queue(queue) => queue.run(&self.connect).await,
            Command::Audit(audit) => audit.run(&self.connect).await,
            Command::Attestation(attestation) => attestation.run(&self.connect).await,
            Command::Cluster(cluster) => cluster.run(&self.connect).await,
            Command::Principal(principal) => principal.run(),
            Command::Bench(bench) => bench.run(&self.connect).await,
            Command::Openapi => output::line(ag_api::openapi_document().trim_end()),
            Command::Completions { shell } => {
                clap_complete::generate(shell, &mut Self::command(), "ag", &mut std::io::stdout());
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        crate::worker_args::WorkerCli::command().debug_assert();
    }
}
