//! Child processes that end with the value that owns them.

use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

/// A child process; killed when this value is dropped.
pub struct Process {
    name: String,
    child: Child,
}

impl Process {
    pub fn start(name: &str, command: &mut Command) -> Result<Self> {
        let child = command.stdin(Stdio::null()).spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name: name.into(), child })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Whether it has ended by itself.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Asks it to stop, and waits for its end. Anything but a clean end is an error.
    pub async fn stop(mut self, patience: Duration) -> Result<()> {
        signal(self.pid(), "TERM")?;
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.ended() {
                ensure!(status.success(), "{} ended with {status}", self.name);
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{} has not stopped after {} s", self.name, patience.as_secs());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended().is_none() {
            // It may be stopped by a signal: SIGKILL ends it all the same.
            if let Err(error) = self.child.kill().and_then(|()| self.child.wait().map(drop)) {
                eprintln!("demo: cannot end {} (process {}): {error}", self.name, self.child.id());
            }
        }
    }
}

/// Sends a signal, such as `KILL` or `STOP`, to one process.
pub fn signal(pid: u32, name: &str) -> Result<()> {
    let sent = Command::new("sh").args(["-c", "kill -\"$1\" \"$2\"", "sh", name, &pid.to_string()]).status();
    let sent = sent.context("cannot run sh")?;
    ensure!(sent.success(), "cannot send SIG{name} to process {pid}");
    Ok(())
}

/// A binary of this workspace: the one that the environment variable names, else the one beside this program.
pub fn binary(variable: &str, name: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        return Ok(path.into());
    }
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let beside = own.parent().map(|folder| folder.join(name)).filter(|path| path.exists());
    beside.with_context(|| format!("{name} is not beside {}; build it, or name it in {variable}", own.display()))
}
