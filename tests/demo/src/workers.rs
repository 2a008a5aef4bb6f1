//! Real `ag-worker` processes.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Result;

use crate::process::{self, Process};

/// How long a worker may take to end once it was told to stop.
const STOP_MAX: Duration = Duration::from_secs(20);

pub struct Worker {
    process: Process,
}

impl Worker {
    pub fn start(addrs: &str, queue: &str, label: &str, command: &str, lease: &str) -> Result<Self> {
        let mut worker = Command::new(process::binary("AG_WORKER_BIN", "ag-worker")?);
        worker.args(["--addr", addrs, "--queue", queue, "--label", label, "--lease", lease, "--attest"]);
        worker.args(["--exec", command]).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self { process: Process::start(&format!("ag-worker {label}"), &mut worker)? })
    }

    /// Sends it a signal.
    pub fn signal(&self, name: &str) -> Result<()> {
        process::signal(self.process.pid(), name)
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.process.ended().is_none()
    }

    /// SIGTERM, then waits for its clean end.
    pub async fn stop(self) -> Result<()> {
        self.process.stop(STOP_MAX).await
    }
}
