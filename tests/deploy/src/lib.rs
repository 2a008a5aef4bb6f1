//! A cluster from the very files in `deploy/`, for tests. Only what cannot be the same on one machine as on three is
//! overridden, from the environment: the data directories, and the addresses.

// Only tests use this; one that cannot go on ends at the right line.
#![allow(clippy::unwrap_used)]

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The principals that the cluster knows besides those of the example: name and role.
pub const PRINCIPALS: [(&str, &str); 3] = [("operator", "admin"), ("builds", "producer"), ("fleet", "worker")];

/// The folder `deploy/` of this checkout.
pub fn deploy() -> PathBuf {
    Path::new("../../deploy").canonicalize().unwrap()
}

/// A binary of this workspace: the one that the environment variable names, else the one in the target folder of this
/// test. `./dev test` builds both.
pub fn binary(variable: &str, name: &str) -> PathBuf {
    if let Some(path) = std::env::var_os(variable) {
        return path.into();
    }
    let own = std::env::current_exe().unwrap();
    let found = own.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{name} is not near {}: build ag-cli, or name it in {variable}", own.display()))
}

/// `ag` without anything of the environment that would configure it.
pub fn ag() -> Command {
    without_settings(Command::new(binary("AG_BIN", "ag")))
}

/// `ag-worker`, likewise.
pub fn ag_worker() -> Command {
    without_settings(Command::new(binary("AG_WORKER_BIN", "ag-worker")))
}

fn without_settings(mut command: Command) -> Command {
    for (key, _) in std::env::vars_os().filter(|(key, _)| key.to_string_lossy().starts_with("AG_")) {
        command.env_remove(key);
    }
    command.stdin(Stdio::null());
    command
}

/// What a command has put out; it must have succeeded.
pub fn stdout(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Calls `attempt` until it gives something.
pub fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(Instant::now() < deadline, "{what}: not within {} s", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A running replica; killed when this value is dropped.
pub struct Replica {
    /// Its client port.
    pub port: u16,
    /// Its peer port.
    pub peer_port: u16,
    child: Child,
    log: PathBuf,
}

impl Drop for Replica {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

impl Replica {
    fn start(folder: &Path, number: usize, port: u16, peer_port: u16) -> Self {
        let log = folder.join(format!("replica-{number}.log"));
        let mut command = ag();
        command.arg("serve").arg("--config").arg(folder.join(format!("replica-{number}.toml")));
        command.env("AG_DATA", folder.join(format!("data-{number}")));
        for (key, port) in [("LISTEN", port), ("ADVERTISE", port), ("PEER_LISTEN", peer_port)] {
            command.env(format!("AG_{key}"), format!("127.0.0.1:{port}"));
        }
        command.env("AG_PEER_ADVERTISE", format!("127.0.0.1:{peer_port}"));
        // Paths in the file are relative to the file, wherever the process was started.
        command.current_dir("/").stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
        let child = command.spawn().unwrap();
        Self { port, peer_port, child, log }
    }

    fn wait_for_port(&mut self) {
        let log = self.log.clone();
        let child = &mut self.child;
        until("the replica listens", || {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "a replica ended: {}", std::fs::read_to_string(&log).unwrap());
            TcpStream::connect(("127.0.0.1", self.port)).ok()
        });
    }

    /// Asks it to stop, and waits until it has; its exit code.
    pub fn stop(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        let sent = Command::new("sh").args(["-c", "kill -TERM \"$1\"", "sh", &pid]).status().unwrap();
        assert!(sent.success());
        until("the replica stops", || self.child.try_wait().unwrap()).code()
    }
}

/// A cluster of three replicas from the files in `deploy/cluster`.
pub struct Cluster {
    /// The replicas. Before `folder`: they end before their files go.
    pub replicas: Vec<Replica>,
    folder: TempDir,
}

impl Cluster {
    /// Copies the files, makes certificates and principals, starts the replicas and makes the cluster.
    pub fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("ag-deploy-").tempdir().unwrap();
        let path = folder.path();
        for number in 1..=3 {
            let name = format!("replica-{number}.toml");
            std::fs::copy(deploy().join("cluster").join(&name), path.join(&name)).unwrap();
        }
        std::fs::copy(deploy().join("cluster/principals.example.toml"), path.join("principals.toml")).unwrap();

        let mut certs = ag();
        certs.args(["cluster", "certs", "--out"]).arg(path.join("certs"));
        for number in 1..=3 {
            certs.args(["--replica", &format!("replica-{number}=replica-{number}.ag.example,127.0.0.1")]);
        }
        stdout(certs);
        for (name, role) in PRINCIPALS {
            let mut new = ag();
            new.args(["principal", "new", name, "--role", role, "--principals"]).arg(path.join("principals.toml"));
            std::fs::write(path.join(format!("{name}.bearer")), stdout(new)).unwrap();
        }

        let ports = free_ports();
        let start = |number: usize| Replica::start(path, number, ports[2 * number - 2], ports[2 * number - 1]);
        let mut cluster = Self { replicas: (1..=3).map(start).collect(), folder };
        cluster.replicas.iter_mut().for_each(Replica::wait_for_port);
        let mut init = cluster.ag_of(0, Some("operator"));
        let peers = &cluster.replicas[1..];
        let peers: Vec<_> = peers.iter().map(|replica| format!("127.0.0.1:{}", replica.peer_port)).collect();
        init.args(["cluster", "init", "--peers", &peers.join(",")]);
        stdout(init);
        cluster
    }

    /// A file of the cluster's folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The addresses of all replicas, with commas between them.
    pub fn addrs(&self) -> String {
        let addrs: Vec<_> = self.replicas.iter().map(|replica| format!("https://127.0.0.1:{}", replica.port)).collect();
        addrs.join(",")
    }

    /// `ag` for all replicas, as a principal, or without credentials.
    pub fn ag(&self, principal: Option<&str>) -> Command {
        let mut command = ag();
        self.connect(&mut command, principal, &self.addrs());
        command
    }

    /// `ag` for one replica, by its position.
    pub fn ag_of(&self, position: usize, principal: Option<&str>) -> Command {
        let mut command = ag();
        self.connect(&mut command, principal, &format!("https://127.0.0.1:{}", self.replicas[position].port));
        command
    }

    /// Puts into the environment how the cluster is reached, and who calls.
    pub fn connect(&self, command: &mut Command, principal: Option<&str>, addrs: &str) {
        command.env("AG_ADDR", addrs).env("AG_CA", self.file("certs/client-ca.crt"));
        if let Some(principal) = principal {
            command.arg("--bearer-token-file").arg(self.file(&format!("{principal}.bearer")));
        }
    }
}

/// The exit code of a command and what it said on stderr.
pub fn refused(mut command: Command) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(stdout.is_empty(), "{command:?} put out {}", String::from_utf8_lossy(&stdout));
    (status.code(), String::from_utf8(stderr).unwrap())
}

/// Ports that were free a moment ago. All are held until all are known, so that they differ.
fn free_ports() -> Vec<u16> {
    let listeners: Vec<_> = (0..6).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}
