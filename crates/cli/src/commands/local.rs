//! `ag local`: a cluster on this machine, each replica a process of its own.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ag_client::{Client, v1};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::Args;
use serde_json::json;
use tokio::process::{Child, Command};

use crate::exit::{Exit, FAILED};
use crate::notify::{self, Supervisor};
use crate::output;
use crate::signals::Signals;

/// A peer port is this far above its client port.
pub(crate) const PEER_PORT_ABOVE: u16 = 1_000;
/// How long replicas may take to start; loading a large state takes its time.
const START: Duration = Duration::from_secs(120);
/// After this, a replica that died is started again.
const RESTART: Duration = Duration::from_secs(2);
/// How often it looks after the replicas.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often it says that it still waits.
const SAY_EVERY: Duration = Duration::from_secs(2);
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
    supervisor: Supervisor,
    /// It has said that it serves, and that was passed on.
    serves: bool,
    /// It has ended, and that was passed on.
    ended: bool,
    /// When it is started again.
    restart_at: Option<Instant>,
}

impl Local {
    /// Runs until it is told to stop.
    pub async fn run(self) -> Result<()> {
        let mut signals = Signals::watch()?;
        let mut members = Vec::new();
        for number in 1..=self.replicas {
            members.push(self.spawn(number)?);
        }
        let supervised = async {
            self.start(&mut members).await?;
            self.supervise(&mut members).await
        };
        tokio::select! {
            failed = supervised => return failed,
            () = signals.next() => {}
        }
        tokio::select! {
            stopped = stop(members) => stopped,
            () = signals.next() => bail!("stopped at once by a second signal"),
        }
    }

    fn folder(&self, number: u16) -> PathBuf {
        self.data.join(format!("replica-{number}"))
    }

    fn spawn(&self, number: u16) -> Result<Member> {
        let port = self.base_port + number - 1;
        let folder = self.folder(number);
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let program = std::env::current_exe().context("cannot find the program itself")?;
        let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log.txt"));
        let log = log.with_context(|| format!("cannot open {}", folder.join("log.txt").display()))?;
        let supervisor = Supervisor::listen().context("cannot make a socket")?;
        let mut command = Command::new(program);
        // What tunes a replica may come from the environment; what tells who and where it is may not.
        for key in crate::config::IDENTITY_KEYS {
            command.env_remove(key);
        }
        command
            .arg("serve")
            .env("AG_DATA", folder.join("data"))
            .env("AG_LISTEN", format!("127.0.0.1:{port}"))
            .env("AG_PEER_LISTEN", format!("127.0.0.1:{}", port + PEER_PORT_ABOVE))
            .env(notify::SOCKET, supervisor.name())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            // A ctrl-C on the terminal is for this process, which then asks each replica to stop, once.
            .process_group(0)
            .kill_on_drop(true);
        die_with_parent(&mut command);
        let child = command.spawn().context("cannot start a replica")?;
        Ok(Member { number, port, child, supervisor, serves: false, ended: false, restart_at: None })
    }

    /// Waits until all serve, makes the cluster if there is none, and says so.
    async fn start(&self, members: &mut [Member]) -> Result<()> {
        let from = Instant::now();
        let mut said = from;
        loop {
            for member in members.iter_mut() {
                if let Some(status) = member.child.try_wait().context("cannot watch a replica")? {
                    return Err(self.start_failed(member.number, status));
                }
                member.serves |= member.supervisor.is_ready().context("cannot hear a replica")?;
            }
            let waiting: Vec<_> = members.iter().filter(|member| !member.serves).collect();
            let Some(first) = waiting.first() else { break };
            ensure!(from.elapsed() < START, "replica {} does not serve after {} s", first.number, START.as_secs());
            if said.elapsed() > SAY_EVERY {
                say(&format!("waiting for {} of {} replicas", waiting.len(), members.len()));
                said = Instant::now();
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        if !self.no_init {
            self.make_cluster(members).await?;
        }
        members.iter().try_for_each(|member| self.announce(member))?;
        if self.json {
            output::line(&json!({ "ready": true }).to_string())?;
        } else {
            say("the cluster serves. Ctrl-C ends it.");
        }
        notify::ready();
        Ok(())
    }

    fn start_failed(&self, number: u16, status: ExitStatus) -> anyhow::Error {
        let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED);
        let words = last_lines(&self.folder(number).join("log.txt"));
        Exit { code, message: format!("replica {number} ended ({status}); its last words:\n{words}") }.into()
    }

    /// Makes the cluster, unless the data holds one, and waits until each replica serves reads.
    async fn make_cluster(&self, members: &[Member]) -> Result<()> {
        let first = client(self.base_port)?;
        let cluster = first.get_cluster(v1::GetClusterRequest {}).await?.value;
        if cluster.cluster_id.is_empty() {
            let others = members.iter().skip(1).map(|member| format!("127.0.0.1:{}", member.port + PEER_PORT_ABOVE));
            first.init_cluster(v1::InitClusterRequest { peer_addrs: others.collect() }).await?;
        }
        for member in members {
            wait_until_ready(member.port).await?;
        }
        Ok(())
    }

    /// Tells of replicas that end, and starts them again if that is wanted. Ends only with an error.
    async fn supervise(&self, members: &mut [Member]) -> Result<()> {
        loop {
            for member in members.iter_mut() {
                if !member.ended
                    && let Some(status) = member.child.try_wait().context("cannot watch a replica")?
                {
                    say(&format!("replica {} ended: {status}", member.number));
                    member.ended = true;
                    member.restart_at = self.restart.then(|| Instant::now() + RESTART);
                }
                if member.restart_at.is_some_and(|at| Instant::now() >= at) {
                    *member = self.spawn(member.number)?;
                }
                if !member.serves && member.supervisor.is_ready().context("cannot hear a replica")? {
                    member.serves = true;
                    self.announce(member)?;
                }
            }
            ensure!(self.restart || !members.iter().all(|member| member.ended), "all replicas have ended");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn announce(&self, member: &Member) -> Result<()> {
        // A replica that ended just now has no process; that is told of next.
        let Some(pid) = member.child.id() else { return Ok(()) };
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
pub(crate) fn terminate(pid: i32) {
    // SAFETY: the process is a child of this one that has not been waited for, so its pid is its own.
    unsafe {
        libc::kill(pid, libc::SIGTERM);
    }
}

#[expect(unsafe_code, reason = "a child asks the kernel to end with its parent between fork and exec")]
pub(crate) fn die_with_parent(command: &mut Command) {
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
