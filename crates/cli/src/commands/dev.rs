//! `ag dev`: one replica for trying things out. The same state machine and the same storage as in production.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ag_core::command::Actor;
use anyhow::{Context as _, Result};
use clap::Args;

use super::serve::{Running, start, stopped_early, until_stopped};
use crate::config::ServeConfig;
use crate::exit::Exit;
use crate::signals::Signals;

/// Runs one replica, everything on, on loopback, without credentials.
#[derive(Args, Clone, Debug)]
pub struct Dev {
    /// The data folder. Without it, a temporary one that is removed at the end.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Where clients are listened for; loopback only.
    #[arg(long, default_value = "127.0.0.1:7400")]
    pub listen: SocketAddr,
}

impl Dev {
    /// Runs until it is told to stop.
    pub async fn run(self) -> Result<()> {
        if !self.listen.ip().is_loopback() {
            return Err(Exit::usage("listen: ag dev listens on loopback only; use ag serve for a network"));
        }
        let temporary = match &self.data {
            Some(_) => None,
            None => Some(tempfile::Builder::new().prefix("ag-dev-").tempdir().context("cannot make a folder")?),
        };
        let data = self.data.clone().or_else(|| temporary.as_ref().map(|folder| folder.path().to_owned()));
        let config = ServeConfig {
            data,
            listen: Some(self.listen.to_string()),
            // No other replica ever connects: any free port will do.
            peer_listen: Some(SocketAddr::new(self.listen.ip(), 0).to_string()),
            ..ServeConfig::default()
        };
        let mut signals = Signals::watch()?;
        let started = async {
            let running = start(&config).await?;
            make_cluster(&running).await?;
            anyhow::Ok(running)
        };
        let running = tokio::select! {
            running = started => running?,
            () = signals.next() => return stopped_early(),
        };
        let addr = running.server.local_addr();
        let kept = if temporary.is_some() { "; the data is temporary" } else { "" };
        eprintln!("ag dev serves http://{addr} (gRPC and HTTP), without credentials{kept}. Ctrl-C ends it.");
        until_stopped(running, signals).await
    }
}

/// Makes a cluster of one, unless the data folder holds one, and waits until it serves.
async fn make_cluster(running: &Running) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    if running.replica.replica_id().is_none() {
        running.replica.init_cluster(Actor::System, Vec::new(), deadline).await.context("cannot make the cluster")?;
    }
    running.replica.read_barrier(deadline).await.map(drop).context("the replica does not serve")
}
