//! `ag local`: a cluster on this machine, each replica a process of its own.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use ag_client::{Client, v1};
use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Exit;
use crate::output;

/// A peer port is this far above its client port.
const PEER_PORT_ABOVE: u16 = 1_000;
/// How long replicas may take to start; loading a large state takes its time.
const START: Duration = Duration::from_secs(120);
/// After this, a replica that died is started again.
const RESTART: Duration = Duration::from_secs(2);
/// How long replicas may take to stop.
const STOP: Duration = Duration::from_secs(25);

/// Runs a real cluster of separate processes on this machine.
#[derive(Args, Clone, Debug)]
pub struct Local {
    /// How many replicas.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    pub replicas: u16,
    /// The folder for their data, one folder in it for each.
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// The first replica's client port; the others follow. Peer ports are 1000 higher.
    #[arg(long, default_value_t = 7400, value_parser = clap::value_parser!(u16).range(1..=60_000))]
    pub base_port: u16,
    /// One JSON line a replica, once it serves, then {"ready": true}.
    #[arg(long)]
    pub json: bool,
    /// Start a replica that died again, after 2 s.
    #[arg(long)]
    pub restart: bool,
    /// Do not make a cluster: let the replicas wait for `ag cluster init` or `ag cluster add`.
    #[arg(long, hide = true)]
    pub no_init: bool,
}

struct Member {
    number: u16,
    port: u16,
    child: Child,
}

impl Local {
    /// Runs until it is told to stop.
    pub async fn run(self) -> Result<()> {
        let mut terminate = signal(SignalKind::terminate()).context("cannot watch for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for SIGINT")?;
        let mut members = Vec::new();
        for number in 1..=self.replicas {
            members.push(self.spawn(number)?);
        }
        tokio::select! {
            started = self.started(&mut members) => started?,
            _ = terminate.recv() => return stop(members).await,
            _ = interrupt.recv() => return stop(members).await,
        }
        loop {
            let died = tokio::select! {
                died = first_to_end(&mut members) => died,
                _ = terminate.recv() => return stop(members).await,
                _ = interrupt.recv() => return stop(members).await,
            };
            let member = members.remove(died.0);
            say(&format!("replica {} ended: {}", member.number, died.1));
            if !self.restart {
                if members.is_empty() {
                    bail!("all replicas have ended");
                }
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep(RESTART) => {}
                _ = terminate.recv() => return stop(members).await,
                _ = interrupt.recv() => return stop(members).await,
            }
            let mut member = self.spawn(member.number)?;
            let served = self.serves(&mut member).await;
            match served {
                Ok(()) => self.announce(&member)?,
                Err(error) => say(&format!("replica {}: {error:#}", member.number)),
            }
            members.push(member);
        }
    }

    fn spawn(&self, number: u16) -> Result<Member> {
        let port = self.base_port + number - 1;
        let folder = self.data.join(format!("replica-{number}"));
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let program = std::env::current_exe().context("cannot find the program itself")?;
        let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log.txt"));
        let log = log.with_context(|| format!("cannot open {}", folder.join("log.txt").display()))?;
        let mut command = Command::new(program);
        command
            .arg("serve")
            .env("AG_DATA", folder.join("data"))
            .env("AG_LISTEN", format!("127.0.0.1:{port}"))
            .env("AG_PEER_LISTEN", format!("127.0.0.1:{}", port + PEER_PORT_ABOVE))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true);
        die_with_parent(&mut command);
        let child = command.spawn().context("cannot start a replica")?;
        Ok(Member { number, port, child })
    }

    /// Waits until all serve, makes the cluster if there is none, and says so.
    async fn started(&self, members: &mut [Member]) -> Result<()> {
        for member in members.iter_mut() {
            self.serves(member).await?;
        }
        let first = client(self.base_port)?;
        let cluster = first.get_cluster(v1::GetClusterRequest {}).await?.value;
        if cluster.cluster_id.is_empty() && !self.no_init {
            let others = members.iter().skip(1).map(|member| format!("127.0.0.1:{}", member.port + PEER_PORT_ABOVE));
            first.init_cluster(v1::InitClusterRequest { peer_addrs: others.collect() }).await?;
        }
        for member in members.iter() {
            if !self.no_init {
                wait_until_ready(member.port).await?;
            }
            self.announce(member)?;
        }
        if self.json {
            return output::line(&json!({ "ready": true }).to_string());
        }
        say("the cluster serves. Ctrl-C ends it.");
        Ok(())
    }

    /// Waits until a replica answers on its client port.
    async fn serves(&self, member: &mut Member) -> Result<()> {
        let deadline = tokio::time::Instant::now() + START;
        let mut said = tokio::time::Instant::now();
        loop {
            if let Some(status) = member.child.try_wait().context("cannot watch a replica")? {
                let log = self.data.join(format!("replica-{}/log.txt", member.number));
                let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(crate::exit::FAILED);
                let message =
                    format!("replica {} ended ({status}); its last words:\n{}", member.number, last_lines(&log));
                return Err(Exit { code, message }.into());
            }
            if tokio::net::TcpStream::connect(("127.0.0.1", member.port)).await.is_ok() {
                return Ok(());
            }
            if tokio::time::Instant::now() > deadline {
                bail!("replica {} does not serve after {} s", member.number, START.as_secs());
            }
            if said.elapsed() > Duration::from_secs(2) {
                say(&format!("waiting for replica {}", member.number));
                said = tokio::time::Instant::now();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn announce(&self, member: &Member) -> Result<()> {
        let pid = member.child.id().context("the replica has just ended")?;
        let addr = format!("127.0.0.1:{}", member.port);
        if self.json {
            return output::line(&json!({ "replica": member.number, "pid": pid, "addr": addr }).to_string());
        }
        say(&format!("replica {} serves {addr}, process {pid}", member.number));
        Ok(())
    }
}

fn client(port: u16) -> Result<Client> {
    let addr = format!("http://127.0.0.1:{port}");
    Client::builder().addrs(&addr).stay().deadline(START).build().map_err(|error| anyhow!("{error}"))
}

/// Waits until a replica may serve: it knows a leader, and has caught up.
async fn wait_until_ready(port: u16) -> Result<()> {
    client(port)?.list_queues(v1::ListQueuesRequest::default()).await.map(drop).context("a replica does not serve")
}

async fn first_to_end(members: &mut [Member]) -> (usize, String) {
    loop {
        for (position, member) in members.iter_mut().enumerate() {
            if let Ok(Some(status)) = member.child.try_wait() {
                return (position, status.to_string());
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// SIGTERM to all at once, then waits; who takes too long is killed.
async fn stop(mut members: Vec<Member>) -> Result<()> {
    for member in &members {
        if let Some(pid) = member.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            terminate(pid);
        }
    }
    let mut late = 0;
    let deadline = tokio::time::Instant::now() + STOP;
    for member in &mut members {
        if tokio::time::timeout_at(deadline, member.child.wait()).await.is_err() {
            late += 1;
            member.child.kill().await.context("cannot kill a replica")?;
        }
    }
    if late > 0 {
        bail!("{late} replicas did not stop in time and were killed");
    }
    Ok(())
}

#[expect(unsafe_code, reason = "there is no safe way to send a signal in the standard library")]
fn terminate(pid: i32) {
    // SAFETY: the process is a child of this one that has not been waited for, so its pid is its own.
    unsafe {
        libc::kill(pid, libc::SIGTERM);
    }
}

#[expect(unsafe_code, reason = "a child asks the kernel to end with its parent between fork and exec")]
fn die_with_parent(command: &mut Command) {
    // SAFETY: prctl is a system call without side effects on memory, and allowed between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

fn last_lines(path: &std::path::Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<_> = text.lines().rev().take(8).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

fn say(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "ag local: {text}");
}
