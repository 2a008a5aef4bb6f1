//! `ag serve`: one replica of a cluster.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ag_api::{ApiConfig, ApiServer};
use ag_auth::{Authenticator, Reload};
use ag_core::name::Addr;
use ag_replica::{Replica, ReplicaConfig, Timings};
use anyhow::{Context as _, Result};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::ServeConfig;
use crate::exit::{ADDRESS, Exit, FAILED};
use crate::notify;
use crate::signals::Signals;

/// How long a shutdown may take.
const SHUTDOWN: Duration = Duration::from_secs(20);

/// Runs one replica of a cluster.
#[derive(Args, Clone, Debug)]
pub struct Serve {
    /// The configuration (TOML). Every key can also come from the environment, as AG_ and the key in capitals.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// A replica with its client port.
pub struct Running {
    /// The replica.
    pub replica: Replica,
    /// Its client port.
    pub server: ApiServer,
}

impl Serve {
    /// Runs until it is told to stop, or fails.
    pub async fn run(self) -> Result<()> {
        let config = ServeConfig::read(self.config.as_deref())?;
        let mut signals = Signals::watch()?;
        let running = tokio::select! {
            running = start(&config) => running?,
            () = signals.next() => return stopped_early(),
        };
        tracing::info!(addr = %running.server.local_addr(), "serving");
        if running.replica.replica_id().is_none() {
            tracing::info!("this replica is in no cluster yet: it waits for `ag cluster init` or `ag cluster add`");
        }
        notify::ready();
        until_stopped(running, signals).await
    }
}

/// What comes of a signal before the replica serves. What it had begun is taken up again by the next start.
pub fn stopped_early() -> Result<()> {
    tracing::info!("told to stop before it served");
    Ok(())
}

/// Starts a replica and its client port.
pub async fn start(config: &ServeConfig) -> Result<Running> {
    let (listen, peer_listen) = config.addresses()?;
    let authenticator = match &config.principals {
        None => Authenticator::open(),
        Some(path) => Authenticator::from_file(path)
            .map_err(|error| Exit::usage(format!("principals: {:#}", anyhow::Error::from(error))))?,
    };
    reload_on_hangup(authenticator.clone())?;
    let addr = |key: &str, given: Option<&String>, default: String| {
        Addr::parse(key, given.unwrap_or(&default)).map_err(|error| Exit::usage(error.to_string()))
    };
    let fsync = config.fsync()?;
    if !fsync {
        tracing::warn!("fsync is off: a power cut loses acknowledged jobs");
    }
    let replica = Replica::start(ReplicaConfig {
        data_dir: config.data()?.to_owned(),
        addr: addr("advertise", config.advertise.as_ref(), listen.to_string())?,
        peer_addr: addr("peer_advertise", config.peer_advertise.as_ref(), peer_listen.to_string())?,
        peer_listen,
        peer_tls: config.peer_tls()?,
        timings: timings(config),
        fsync,
    });
    let replica = replica.await.context("the replica cannot start")?;
    let tls = config.server_tls()?;
    let server = ApiServer::start(ApiConfig { listen, tls, authenticator }, replica.clone()).await;
    let server =
        server.map_err(|error| Exit { code: ADDRESS, message: format!("cannot listen on {listen}: {error}") })?;
    Ok(Running { replica, server })
}

fn timings(config: &ServeConfig) -> Timings {
    let mut timings = Timings::default();
    if let Some(election_ms) = config.election_ms {
        let election_ms = election_ms.clamp(100, 60_000);
        timings.heartbeat = Duration::from_millis(election_ms / 4);
        timings.election_min = Duration::from_millis(election_ms);
        timings.election_max = Duration::from_millis(election_ms * 2);
    }
    timings.snapshot_entries = config.snapshot_entries.unwrap_or(timings.snapshot_entries).max(10);
    timings.kept_entries = config.kept_entries.unwrap_or(timings.kept_entries);
    timings
}

/// Reads the principals file anew at once on SIGHUP. The authenticator looks for changes of the file by itself.
fn reload_on_hangup(authenticator: Authenticator) -> Result<()> {
    let mut hangup = signal(SignalKind::hangup()).context("cannot watch for SIGHUP")?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            match authenticator.reload() {
                Ok(Reload::Unchanged) => {}
                Ok(Reload::Loaded(principals)) => tracing::info!(principals, "the principals file was read anew"),
                Err(error) => {
                    let error = format!("{:#}", anyhow::Error::from(error));
                    tracing::error!(error, "the principals file is not good; the principals of before stay");
                }
            }
        }
    });
    Ok(())
}

/// Serves until SIGTERM, SIGINT or a fatal error; a second signal ends at once.
pub async fn until_stopped(running: Running, mut signals: Signals) -> Result<()> {
    tokio::select! {
        error = running.replica.failed() => {
            tracing::error!(error = format!("{:#}", anyhow::Error::from(error.clone())), "the replica has stopped");
            return Err(anyhow::Error::from(error).context("the replica has stopped"));
        }
        () = signals.next() => tracing::info!("told to stop"),
    }
    tokio::select! {
        () = stop(running) => return Ok(()),
        () = signals.next() => {}
    }
    // At once: an end in good order would wait for a disk that hangs. What was acknowledged is on disk.
    eprintln!("error: stopped at once by a second signal");
    std::process::exit(i32::from(FAILED))
}

/// Hands the leadership over first, so that calls find another leader; then ends what runs.
pub async fn stop(running: Running) {
    let deadline = Instant::now() + SHUTDOWN;
    if running.replica.is_leader() {
        let soon = Instant::now() + Duration::from_secs(3);
        match running.replica.transfer_leadership(None, soon).await {
            Ok(successor) => tracing::info!(%successor, "handed the leadership over"),
            Err(error) => tracing::info!(%error, "the leadership was not handed over"),
        }
    }
    running.server.shutdown(deadline).await;
    running.replica.shutdown(deadline).await;
    tracing::info!("stopped");
}
