//! What tests of the programs share.

// A helper of a test that unwraps fails the test with the right line; not every test uses every helper.
#![allow(clippy::unwrap_used, dead_code)]

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// `ag` without anything of the environment that would configure it.
pub fn ag() -> Command {
    without_settings(Command::new(env!("CARGO_BIN_EXE_ag")))
}

/// `ag-worker`, likewise.
pub fn ag_worker() -> Command {
    without_settings(Command::new(env!("CARGO_BIN_EXE_ag-worker")))
}

fn without_settings(mut command: Command) -> Command {
    for (key, _) in std::env::vars_os().filter(|(key, _)| key.to_string_lossy().starts_with("AG_")) {
        command.env_remove(key);
    }
    command.stdin(Stdio::null());
    command
}

/// What a command did.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

pub fn run(command: &mut Command) -> Ran {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
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

/// A process; killed when this value is dropped. What it says goes to files.
pub struct Process {
    child: Child,
    folder: TempDir,
}

impl Process {
    pub fn start(command: &mut Command) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| std::fs::File::create(folder.path().join(name)).unwrap();
        let child = command.stdout(file("stdout")).stderr(file("stderr")).spawn().unwrap();
        Self { child, folder }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn stdout(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("stdout")).unwrap()
    }

    pub fn stderr(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("stderr")).unwrap()
    }

    pub fn ended(&mut self) -> Option<Option<i32>> {
        self.child.try_wait().unwrap().map(|status| status.code())
    }

    /// The exit code, once it has ended; `None`: by a signal.
    pub fn wait(&mut self) -> Option<i32> {
        until("the process ends", || self.ended())
    }

    /// SIGTERM; the exit code.
    pub fn stop(&mut self) -> Option<i32> {
        signal(self.pid(), "TERM");
        self.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

pub fn signal(pid: u32, name: &str) {
    let sent = Command::new("sh").args(["-c", "kill -\"$1\" \"$2\"", "sh", name, &pid.to_string()]).status().unwrap();
    assert!(sent.success(), "cannot send SIG{name} to {pid}");
}

/// Whether there is such a process; one that has ended and was not waited for counts as gone.
pub fn is_alive(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).is_some_and(|state| state != "Z")
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The first of `count` ports that are free, with those 1000 above them.
pub fn free_ports(count: u16) -> u16 {
    let start = 20_000 + (std::process::id() % 800) as u16 * 10;
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let good = |base: &u16| (0..count).all(|n| is_free(base + n) && is_free(base + n + 1_000));
    (0..500).map(|n| start + n * 10).find(good).unwrap()
}

pub fn connects(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// `ag dev` on a free port.
pub struct Dev {
    pub process: Process,
    pub port: u16,
}

impl Dev {
    pub fn start() -> Self {
        Self::with(&[])
    }

    pub fn on(data: &Path) -> Self {
        Self::with(&["--data".into(), data.into()])
    }

    fn with(args: &[PathBuf]) -> Self {
        let port = free_port();
        let mut command = ag();
        command.arg("dev").args(["--listen", &format!("127.0.0.1:{port}")]).args(args);
        let mut process = Process::start(&mut command);
        until("ag dev serves", || {
            assert_eq!(process.ended(), None, "{}", process.stderr());
            process.stderr().contains("ag dev serves").then_some(())
        });
        Self { process, port }
    }

    pub fn command(&self, mut command: Command, args: &[&str]) -> Command {
        command.env("AG_ADDR", format!("127.0.0.1:{}", self.port)).args(args);
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        run(&mut self.command(ag(), args))
    }

    /// What was put out; the command must succeed.
    pub fn text(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
        ran.stdout
    }

    pub fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.text(args)).unwrap()
    }

    /// The job id of a job that was enqueued.
    pub fn enqueue(&self, queue: &str) -> String {
        text(&self.json(&["job", "enqueue", "--queue", queue, "--payload", "x"])["jobId"])
    }

    pub fn claim(&self, queue: &str, worker: &str) -> String {
        text(&self.json(&["job", "claim", "--queue", queue, "--worker", worker])["jobId"])
    }
}

pub fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}
