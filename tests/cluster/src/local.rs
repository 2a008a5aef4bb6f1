//! `ag local`: its replicas, seen from outside.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;
use tempfile::TempDir;

use crate::cluster::{free_ports, signal};
use crate::{binary, until};

const PATIENCE: Duration = Duration::from_secs(60);

/// What a replica last said of itself: its address, and its process.
type Said = Arc<Mutex<BTreeMap<u64, (String, u32)>>>;

/// A running `ag local --restart`. It is told to stop when this value goes.
pub struct Local {
    child: Child,
    said: Said,
    _data: TempDir,
}

impl Local {
    /// Starts it, and waits until all replicas serve.
    pub async fn start(replicas: usize) -> Result<Self> {
        let data = tempfile::Builder::new().prefix("ag-local-").tempdir()?;
        let base_port = free_ports(replicas as u16)?;
        let mut command = Command::new(binary("ag")?);
        command
            .args(["local", "--json", "--restart", "--replicas", &replicas.to_string(), "--data"])
            .arg(data.path())
            .args(["--base-port", &base_port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start ag local")?;
        let stdout = child.stdout.take().context("ag local has no output")?;
        let said = Said::default();
        let told = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let Ok(line) = serde_json::from_str::<Value>(&line) else { continue };
                let of = |key: &str| line[key].as_u64();
                let (Some(replica), Some(pid), Some(addr)) = (of("replica"), of("pid"), line["addr"].as_str()) else {
                    continue;
                };
                let pid = u32::try_from(pid).unwrap_or_default();
                told.lock().unwrap_or_else(PoisonError::into_inner).insert(replica, (addr.to_owned(), pid));
            }
        });
        let local = Self { child, said, _data: data };
        let all = || async { Ok((local.replicas().len() == replicas).then_some(())) };
        until("all replicas of ag local serve", PATIENCE, all).await?;
        Ok(local)
    }

    /// The address and the process of each replica that has served, by its number.
    pub fn replicas(&self) -> BTreeMap<u64, (String, u32)> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Their addresses.
    pub fn addrs(&self) -> Vec<String> {
        self.replicas().into_values().map(|(addr, _)| addr).collect()
    }

    /// SIGKILL to the process of a replica.
    pub fn kill(&self, pid: u32) -> Result<()> {
        signal(pid, libc::SIGKILL)
    }

    /// Waits until none of these processes is the one of a replica any more: all have been started again, and serve.
    pub async fn restarted(&self, pids: &[u32]) -> Result<()> {
        let anew = || async { Ok(self.replicas().values().all(|(_, pid)| !pids.contains(pid)).then_some(())) };
        until("killed replicas serve again", PATIENCE, anew).await
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // Its replicas end with it, whichever way it ends.
        let _ = signal(self.child.id(), libc::SIGTERM);
        let _ = self.child.wait();
    }
}
