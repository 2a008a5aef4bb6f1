//! The cluster: `ag local` as a child process.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ag_client::{Client, v1};
use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::process::{self, Process};
use crate::show::say;

const REPLICAS: u16 = 3;
/// The peer port of a replica is its client port plus this.
const PEER_PORT_ABOVE: u16 = 1_000;
/// How long the cluster may take to serve, to have a leader again, or to have one state again.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct LocalCluster {
    // Before `data`: the processes end before their data goes.
    process: Process,
    _data: TempDir,
    replicas: Arc<Mutex<Replicas>>,
    base_port: u16,
}

#[derive(Default)]
struct Replicas {
    /// By address, as of the latest start of each.
    pids: BTreeMap<String, u32>,
    ready: bool,
}

/// The leader.
pub struct Leader {
    pub replica_id: u64,
    /// Its process.
    pub pid: u32,
    pub term: u64,
}

/// The state of the replicas at one place in the log.
pub struct SameHash {
    pub log_index: u64,
    pub state_hash: String,
    pub replicas: Vec<u64>,
}

impl LocalCluster {
    /// Starts three replicas in a temporary folder, and waits until they serve.
    pub async fn start(start: Instant) -> Result<Self> {
        let data = tempfile::Builder::new().prefix("ag-demo-").tempdir().context("cannot make a temporary folder")?;
        let base_port = free_ports()?;
        let mut command = Command::new(process::binary("AG_BIN", "ag")?);
        command.args(["local", "--replicas", &REPLICAS.to_string(), "--base-port", &base_port.to_string()]);
        command.arg("--data").arg(data.path()).args(["--json", "--restart"]);
        // What it says goes to a file in the data folder, so that the demo's own lines can be read.
        let log = std::fs::File::create(data.path().join("local.log")).context("cannot make the log file")?;
        command.stdout(Stdio::piped()).stderr(log);
        let mut process = Process::start("ag local", &mut command)?;
        let stdout = process.child().stdout.take().context("the output of ag local is piped")?;
        let replicas = Arc::new(Mutex::new(Replicas::default()));
        let seen = Arc::clone(&replicas);
        // Ends with the child's output.
        std::thread::spawn(move || follow(BufReader::new(stdout), &seen));
        let mut cluster = Self { process, _data: data, replicas, base_port };
        cluster.until_ready().await?;
        let pids: Vec<String> = cluster.replicas().pids.values().map(u32::to_string).collect();
        say(start, &format!("three replicas serve at {} (processes {})", cluster.addrs(), pids.join(", ")));
        Ok(cluster)
    }

    async fn until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.replicas().ready {
            if let Some(status) = self.process.ended() {
                let log = std::fs::read_to_string(self._data.path().join("local.log")).unwrap_or_default();
                bail!("ag local ended with {status}:\n{log}");
            }
            ensure!(Instant::now() < deadline, "the cluster does not serve after {} s", PATIENCE.as_secs());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    fn replicas(&self) -> std::sync::MutexGuard<'_, Replicas> {
        self.replicas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The addresses of all replicas, with commas between them.
    pub fn addrs(&self) -> String {
        let addrs: Vec<String> = (0..REPLICAS).map(|n| format!("127.0.0.1:{}", self.base_port + n)).collect();
        addrs.join(",")
    }

    pub fn client(&self) -> Result<Client> {
        Ok(Client::builder().addrs(&self.addrs()).deadline(PATIENCE).build()?)
    }

    /// The leader, as soon as there is one.
    pub async fn leader(&self) -> Result<Leader> {
        self.leader_after(0).await
    }

    /// The leader of a later term than this one, as soon as there is one.
    pub async fn leader_after(&self, term: u64) -> Result<Leader> {
        let client = self.client()?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let cluster = client.get_cluster(v1::GetClusterRequest {}).await.context("cannot read the cluster")?.value;
            let leader = cluster.leader.and_then(|leader| cluster.replicas.iter().find(|replica| replica.id == leader));
            if let Some(leader) = leader.filter(|_| cluster.term > term) {
                let pid = self.replicas().pids.get(&leader.addr).copied();
                let pid = pid.with_context(|| format!("ag local named no process at {}", leader.addr))?;
                return Ok(Leader { replica_id: leader.id, pid, term: cluster.term });
            }
            ensure!(Instant::now() < deadline, "there is no leader after {} s", PATIENCE.as_secs());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until all replicas tell the same hash of their state at one place in the log.
    pub async fn same_hash(&self, start: Instant) -> Result<SameHash> {
        say(start, "waiting for all three replicas to have the same state");
        let client = self.client()?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let cluster = client.get_cluster(v1::GetClusterRequest {}).await.context("cannot read the cluster")?.value;
            if let Some(same) = same(&cluster)? {
                return Ok(same);
            }
            ensure!(Instant::now() < deadline, "not all replicas tell their state after {} s", PATIENCE.as_secs());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Stops all replicas.
    pub async fn stop(self) -> Result<()> {
        self.process.stop(Duration::from_secs(30)).await
    }
}

/// `None`: not all of them could tell. Two hashes for one place are an error: the replicas have diverged.
fn same(cluster: &v1::Cluster) -> Result<Option<SameHash>> {
    let told = |replica: &&v1::Replica| !replica.state_hash.is_empty();
    let mut by_index: BTreeMap<u64, Vec<&v1::Replica>> = BTreeMap::new();
    for replica in cluster.replicas.iter().filter(told) {
        by_index.entry(replica.state_hash_index).or_default().push(replica);
    }
    for (log_index, replicas) in by_index {
        let first = &replicas[0].state_hash;
        if let Some(other) = replicas.iter().find(|replica| replica.state_hash != *first) {
            bail!("at index {log_index}, replica {} has another state than replica {}", other.id, replicas[0].id);
        }
        if replicas.len() == usize::from(REPLICAS) {
            let ids = replicas.iter().map(|replica| replica.id).collect();
            return Ok(Some(SameHash { log_index, state_hash: first.clone(), replicas: ids }));
        }
    }
    Ok(None)
}

fn follow(lines: impl std::io::BufRead, seen: &Mutex<Replicas>) {
    for line in lines.lines().map_while(Result::ok) {
        let Ok(line) = serde_json::from_str::<serde_json::Value>(&line) else { continue };
        let mut replicas = seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(addr), Some(pid)) = (line["addr"].as_str(), line["pid"].as_u64()) {
            replicas.pids.insert(addr.into(), pid as u32);
        }
        replicas.ready |= line["ready"] == true;
    }
}

/// The first of three client ports that are free, along with their peer ports. Another process may take them before the
/// replicas do; `ag local` then says so.
fn free_ports() -> Result<u16> {
    let own = std::process::id() as u16;
    let candidates = (0..200).map(|n| 20_000 + (own.wrapping_mul(7).wrapping_add(n * 13)) % 9_000);
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let mut good = candidates.filter(|base| (0..REPLICAS).all(|n| free(base + n) && free(base + n + PEER_PORT_ABOVE)));
    good.next().context("no free ports on the loopback address")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(id: u64, state_hash_index: u64, state_hash: &str) -> v1::Replica {
        v1::Replica { id, state_hash_index, state_hash: state_hash.into(), ..Default::default() }
    }

    #[test]
    fn only_three_equal_hashes_at_one_index_will_do() {
        let of = |replicas: Vec<v1::Replica>| same(&v1::Cluster { replicas, ..Default::default() });
        assert!(of(vec![replica(1, 5, "a"), replica(2, 5, "a"), replica(3, 5, "a")]).unwrap().is_some());
        assert!(of(vec![replica(1, 5, "a"), replica(2, 5, "a"), replica(3, 6, "a")]).unwrap().is_none());
        assert!(of(vec![replica(1, 5, "a"), replica(2, 5, "a"), replica(3, 5, "")]).unwrap().is_none());
        assert!(of(vec![replica(1, 5, "a"), replica(2, 5, "b"), replica(3, 6, "a")]).is_err());
    }

    #[test]
    fn the_lines_of_ag_local_are_followed() {
        let seen = Mutex::new(Replicas::default());
        let lines = [
            r#"{"replica": 1, "pid": 7, "addr": "h:1"}"#,
            "noise",
            r#"{"ready": true}"#,
            r#"{"replica": 1, "pid": 8, "addr": "h:1"}"#,
        ];
        let lines = lines.join("\n");
        follow(lines.as_bytes(), &seen);
        let seen = seen.into_inner().unwrap();
        assert!(seen.ready);
        assert_eq!(seen.pids["h:1"], 8, "the latest start counts");
    }
}
