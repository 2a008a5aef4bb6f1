//! A cluster of its own, for a measurement: `ag local` in a temporary folder.

use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::commands::local::{PEER_PORT_ABOVE, die_with_parent, terminate};
use crate::connect::Connect;

const START: Duration = Duration::from_secs(120);
const STOP: Duration = Duration::from_secs(60);

/// A running cluster; killed when this value is dropped.
pub struct OwnCluster {
    child: Child,
    addrs: String,
    // After `child`: the processes end before their data goes.
    _data: TempDir,
}

impl OwnCluster {
    /// Starts it, and waits until it serves.
    pub async fn start(replicas: u16) -> Result<Self> {
        let data = tempfile::Builder::new().prefix("ag-bench-").tempdir().context("cannot make a folder")?;
        let base_port = free_ports(replicas)?;
        let mut command = Command::new(std::env::current_exe().context("cannot find the program itself")?);
        command.args(["local", "--json", "--replicas", &replicas.to_string(), "--base-port", &base_port.to_string()]);
        command.arg("--data").arg(data.path()).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        command.process_group(0);
        die_with_parent(&mut command);
        let mut child = command.spawn().context("cannot start a cluster")?;
        let stdout = child.stdout.take().context("the output of ag local is piped")?;
        let mut lines = BufReader::new(stdout).lines();
        let serves = async {
            while let Some(line) = lines.next_line().await? {
                let line: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
                if line["ready"] == true {
                    return Ok(());
                }
            }
            bail!("the cluster ended before it served")
        };
        tokio::time::timeout(START, serves).await.context("the cluster does not serve")??;
        let addrs: Vec<_> = (0..replicas).map(|n| format!("127.0.0.1:{}", base_port + n)).collect();
        Ok(Self { child, addrs: addrs.join(","), _data: data })
    }

    /// How it is reached: without credentials.
    pub fn connect(&self, given: &Connect) -> Connect {
        Connect { addr: self.addrs.clone(), ca: None, ..given.clone() }
    }

    /// Stops it, and removes its data.
    pub async fn stop(mut self) -> Result<()> {
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            terminate(pid);
        }
        let status = tokio::time::timeout(STOP, self.child.wait()).await.context("the cluster does not stop")?;
        let status = status.context("cannot wait for the cluster")?;
        ensure!(status.success(), "the cluster ended with {status}");
        Ok(())
    }
}

/// The first of `count` client ports that are free, along with their peer ports. If another process is faster,
/// `ag local` says so.
fn free_ports(count: u16) -> Result<u16> {
    let start = 20_000 + (std::process::id() % 700) as u16 * 10;
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let good = |base: &u16| (0..count).all(|n| is_free(base + n) && is_free(base + n + PEER_PORT_ABOVE));
    (0..200).map(|n| start + n * 10).find(good).context("no free ports on the loopback address")
}
