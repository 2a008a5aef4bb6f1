//! `ag-worker` processes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};

use crate::cluster::signal;

/// A running `ag-worker`, in a process group of its own. It is killed when this value goes.
pub struct Worker {
    child: Child,
    log: PathBuf,
}

impl Worker {
    /// Starts `program` for this queue; `exec` is run for each job. Its log goes to `<folder>/<name>.txt`.
    pub fn start(program: &Path, addrs: &[String], label: &str, exec: &str, folder: &Path, name: &str) -> Result<Self> {
        let log = folder.join(format!("{name}.txt"));
        let mut command = Command::new(program);
        command
            .args(["--queue", "work", "--label", label, "--addr", &addrs.join(","), "--exec", exec])
            .args(["--lease", "2s", "--attest"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).context("cannot make the worker's log")?);
        let child = command.spawn().context("cannot start ag-worker")?;
        Ok(Self { child, log })
    }

    /// Sends a signal to its process alone, such as SIGSTOP.
    pub fn signal(&self, which: i32) -> Result<()> {
        signal(self.child.id(), which)
    }

    /// What it has logged.
    pub fn words(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.signal(libc::SIGCONT);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
