//! A cluster on this machine: each replica a child process of the test.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ag_client::{Client, v1};
use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::{binary, until};

const PATIENCE: Duration = Duration::from_secs(60);

/// Replicas that are killed when this value goes.
pub struct Cluster {
    /// Their data and their logs.
    pub folder: TempDir,
    base_port: u16,
    environment: BTreeMap<String, String>,
    replicas: BTreeMap<u16, Child>,
    /// Replicas that run another build than this one.
    builds: BTreeMap<u16, PathBuf>,
}

impl Cluster {
    /// Starts replicas, and makes a cluster of them. In a value of the environment, `{replica}` stands for the number.
    pub async fn start(replicas: u16, environment: &[(&str, &str)]) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("ag-cluster-").tempdir().context("cannot make a folder")?;
        Self::start_in(folder, replicas, environment).await
    }

    /// The same, in a folder that is there.
    pub async fn start_in(folder: TempDir, replicas: u16, environment: &[(&str, &str)]) -> Result<Self> {
        Self::start_builds(folder, replicas, environment, BTreeMap::new()).await
    }

    /// The same, with another build for some of them.
    pub async fn start_builds(
        folder: TempDir,
        replicas: u16,
        environment: &[(&str, &str)],
        builds: BTreeMap<u16, PathBuf>,
    ) -> Result<Self> {
        let environment = environment.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let base_port = free_ports(replicas + 2)?;
        let mut cluster = Self { folder, base_port, environment, replicas: BTreeMap::new(), builds };
        for number in 1..=replicas {
            cluster.start_replica(number)?;
        }
        for number in 1..=replicas {
            cluster.answers(number).await?;
        }
        let peer_addrs = (2..=replicas).map(|number| cluster.peer_addr(number)).collect();
        cluster.client_of(1)?.init_cluster(v1::InitClusterRequest { peer_addrs }).await?;
        cluster.serve_all().await?;
        Ok(cluster)
    }

    /// Starts the process of a replica, with the data that it has.
    pub fn start_replica(&mut self, number: u16) -> Result<()> {
        let folder = self.replica_folder(number);
        std::fs::create_dir_all(&folder)?;
        let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log.txt"))?;
        let mut command = Command::new(match self.builds.get(&number) {
            Some(build) => build.clone(),
            None => binary("ag")?,
        });
        command
            .arg("serve")
            .env("AG_DATA", folder.join("data"))
            .env("AG_LISTEN", self.addr(number))
            .env("AG_PEER_LISTEN", self.peer_addr(number))
            .envs(self.environment.iter().map(|(key, value)| (key, value.replace("{replica}", &number.to_string()))))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = command.spawn().context("cannot start a replica")?;
        self.replicas.insert(number, child);
        Ok(())
    }

    /// Another environment for processes that are started from now on.
    pub fn set_environment(&mut self, environment: &[(&str, &str)]) {
        self.environment = environment.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    }

    /// The build of a replica, from its next start on; `None`: this one.
    pub fn set_build(&mut self, number: u16, build: Option<PathBuf>) {
        match build {
            Some(build) => self.builds.insert(number, build),
            None => self.builds.remove(&number),
        };
    }

    /// Waits until the cluster is at this version.
    pub async fn at_version(&self, cluster_version: u32) -> Result<()> {
        let client = self.client()?;
        let ask = || async {
            let cluster = client.get_cluster(v1::GetClusterRequest {}).await?.value;
            Ok((cluster.cluster_version == cluster_version).then_some(()))
        };
        until(&format!("cluster version {cluster_version}"), PATIENCE, ask).await
    }

    /// Where the data and the log of a replica are.
    pub fn replica_folder(&self, number: u16) -> PathBuf {
        self.folder.path().join(format!("replica-{number}"))
    }

    /// Where clients reach a replica.
    pub fn addr(&self, number: u16) -> String {
        format!("127.0.0.1:{}", self.base_port + number - 1)
    }

    /// Where its peers reach it.
    pub fn peer_addr(&self, number: u16) -> String {
        format!("127.0.0.1:{}", self.base_port + number - 1 + 1_000)
    }

    /// The numbers of the replicas whose processes were started and not killed.
    pub fn running(&self) -> Vec<u16> {
        self.replicas.keys().copied().collect()
    }

    /// Where clients reach those replicas.
    pub fn addrs(&self) -> Vec<String> {
        self.running().into_iter().map(|number| self.addr(number)).collect()
    }

    /// A client that asks only this replica.
    pub fn client_of(&self, number: u16) -> Result<Client> {
        client_of(&self.addr(number))
    }

    /// A client that asks any of them.
    pub fn client(&self) -> Result<Client> {
        client(&self.addrs())
    }

    /// SIGKILL.
    pub fn kill(&mut self, number: u16) -> Result<()> {
        let mut child = self.replicas.remove(&number).context("this replica does not run")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// SIGTERM, and waits for a clean end.
    pub async fn stop(&mut self, number: u16) -> Result<()> {
        let mut child = self.replicas.remove(&number).context("this replica does not run")?;
        signal(child.id(), libc::SIGTERM)?;
        let status =
            until("the replica stops", PATIENCE, || std::future::ready(child.try_wait().map_err(Into::into))).await?;
        ensure!(status.success(), "replica {number} ended with {status}");
        Ok(())
    }

    /// Sends a signal, such as SIGSTOP.
    pub fn signal(&self, number: u16, which: i32) -> Result<()> {
        signal(self.replicas.get(&number).context("this replica does not run")?.id(), which)
    }

    /// Waits for a replica's process to end by itself; gives its exit code.
    pub async fn ended(&mut self, number: u16) -> Result<Option<i32>> {
        let mut child = self.replicas.remove(&number).context("this replica does not run")?;
        let status =
            until("the replica ends", PATIENCE, || std::future::ready(child.try_wait().map_err(Into::into))).await;
        if status.is_err() {
            child.kill()?;
        }
        Ok(status?.code())
    }

    /// The last lines that a replica logged.
    pub fn last_words(&self, number: u16) -> String {
        std::fs::read_to_string(self.replica_folder(number).join("log.txt")).unwrap_or_default()
    }

    /// Waits until a replica's client port is open.
    pub async fn answers(&mut self, number: u16) -> Result<()> {
        let addr = self.addr(number);
        let connect = || async { Ok(tokio::net::TcpStream::connect(&addr).await.ok().map(drop)) };
        let open = until("the client port opens", PATIENCE, connect).await;
        open.with_context(|| format!("replica {number}: {}", self.last_words(number)))
    }

    /// Waits until all running replicas serve linearizable reads.
    pub async fn serve_all(&mut self) -> Result<()> {
        for number in self.running() {
            self.answers(number).await?;
            let client = self.client_of(number)?.with_deadline(Duration::from_secs(2));
            let read = || async { Ok(Some(client.list_queues(v1::ListQueuesRequest::default()).await?)) };
            until("the replica serves", PATIENCE, read)
                .await
                .with_context(|| format!("replica {number}: {}", self.last_words(number)))?;
        }
        Ok(())
    }

    /// The number of the replica that leads.
    pub async fn leader(&self) -> Result<u16> {
        let client = self.client()?;
        let ask = || async {
            let cluster = client.get_cluster(v1::GetClusterRequest {}).await?.value;
            let leader = cluster.replicas.iter().find(|replica| Some(replica.id) == cluster.leader);
            Ok(leader.and_then(|leader| self.running().into_iter().find(|number| self.addr(*number) == leader.addr)))
        };
        until("a leader", PATIENCE, ask).await
    }

    /// Waits until `replicas` of them have the same state hash at the same index; gives that index and the hash.
    pub async fn same_hash(&self, replicas: usize) -> Result<(u64, String)> {
        same_hash(&self.client()?, replicas).await
    }

    /// The whole audit log, as this replica has it.
    pub async fn audit(&self, number: u16) -> Result<Vec<v1::AuditRecord>> {
        audit_log(&self.client_of(number)?).await
    }
}

/// A client that asks only the replica at `addr`.
pub fn client_of(addr: &str) -> Result<Client> {
    Ok(Client::builder().addrs(&format!("http://{addr}")).stay().deadline(Duration::from_secs(30)).build()?)
}

/// A client that asks any of the replicas at `addrs`.
pub fn client(addrs: &[String]) -> Result<Client> {
    Ok(Client::builder().addrs(&addrs.join(",")).deadline(Duration::from_secs(30)).build()?)
}

/// Waits until `replicas` of them have the same state hash at the same index; gives that index and the hash.
pub async fn same_hash(client: &Client, replicas: usize) -> Result<(u64, String)> {
    let ask = || async {
        let cluster = client.get_cluster(v1::GetClusterRequest {}).await?.value;
        let hashes: Vec<_> = cluster.replicas.iter().filter(|replica| !replica.state_hash.is_empty()).collect();
        let Some(first) = hashes.first() else { return Ok(None) };
        let at_one_index: Vec<_> =
            hashes.iter().filter(|replica| replica.state_hash_index == first.state_hash_index).collect();
        let differs = at_one_index.iter().find(|replica| replica.state_hash != first.state_hash);
        assert!(differs.is_none(), "replicas have drifted apart: {cluster:?}");
        let enough = at_one_index.len() == replicas;
        Ok(enough.then(|| (first.state_hash_index, first.state_hash.clone())))
    };
    until("the same state hash", PATIENCE, ask).await
}

/// The whole audit log, as this client sees it.
pub async fn audit_log(client: &Client) -> Result<Vec<v1::AuditRecord>> {
    let mut records: Vec<v1::AuditRecord> = Vec::new();
    loop {
        let after = records.last().map_or(0, |record| record.sequence);
        let request = v1::ListAuditRecordsRequest { after, page_size: Some(1_000), stale: false };
        let page = client.list_audit_records(request).await?.value.records;
        if page.is_empty() {
            return Ok(records);
        }
        records.extend(page);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.replicas.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() || std::env::var_os("AG_KEEP").is_some() {
            let kept = std::mem::replace(&mut self.folder, tempfile::tempdir().expect("a folder can be made")).keep();
            eprintln!("the data of the cluster is kept in {}", kept.display());
        }
    }
}

#[expect(unsafe_code, reason = "there is no safe way to send a signal in the standard library")]
pub(crate) fn signal(pid: u32, which: i32) -> Result<()> {
    let pid = i32::try_from(pid)?;
    // SAFETY: the process is a child of this one that has not been waited for, so its pid is its own.
    let sent = unsafe { libc::kill(pid, which) };
    ensure!(sent == 0, "cannot send signal {which} to process {pid}");
    Ok(())
}

/// The first of `count` ports in a row that are free, as are those 1000 above.
pub(crate) fn free_ports(count: u16) -> Result<u16> {
    let own = std::process::id() as u16;
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    // Below the ports that the system gives to outgoing connections.
    let mut candidates = (0..400).map(|n: u16| 30_000 + (own.wrapping_mul(11).wrapping_add(n * 17)) % 500 * 2 % 900);
    let good = candidates.find(|base| (0..count).all(|n| free(base + n) && free(base + n + 1_000)));
    good.context("no free ports on the loopback address")
}

/// Copies a folder, for tests that damage one.
pub fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
