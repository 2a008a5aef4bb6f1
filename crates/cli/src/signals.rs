//! SIGTERM and SIGINT, both of which ask the program to stop.

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// From when it is made, both signals are only noted; before, they end the process at once.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Watches for both.
    pub fn watch() -> Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("cannot watch for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot watch for SIGINT")?;
        Ok(Self { terminate, interrupt })
    }

    /// The next of either. Nothing is lost when this is dropped before.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
