//! What a worker is told.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ag_client::Client;

use crate::event::Event;

/// Called with everything that happens to a claim, in order for each claim, from the worker's own tasks: it must not
/// block.
pub type Observer = Arc<dyn Fn(&Event) + Send + Sync>;

/// What a worker is told.
#[derive(Clone)]
pub struct WorkerConfig {
    /// The cluster.
    pub client: Client,
    /// The queues to claim from, 1–100.
    pub queues: Vec<String>,
    /// What the worker calls itself, 1–256 bytes. Two workers of one principal that run at once should differ in it.
    pub label: String,
    /// The command, run as `sh -c COMMAND` for each job.
    pub command: String,
    /// In which directory it runs; `None`: the worker's own.
    pub directory: Option<PathBuf>,
    /// How many jobs at once, 1–1,000.
    pub concurrency: usize,
    /// The lease of every claim, 500 ms–24 h.
    pub lease: Duration,
    /// How long one call waits for a job, 0–60 s.
    pub wait: Duration,
    /// Between SIGTERM and SIGKILL, for a command whose job is cancelled or given back.
    pub stop_grace: Duration,
    /// How long running commands may go on after the worker was told to stop; then their jobs are given back.
    pub drain_grace: Duration,
    /// How long the first retry of a failed job is put off; twice as long for each further one, at most 5 minutes. 0:
    /// not at all.
    pub retry_backoff: Duration,
    /// A command that runs for longer than this is stopped, and its claim reported as failed, however well its lease is
    /// kept; `None`: it may run for ever.
    pub max_runtime: Option<Duration>,
    /// Store an attestation with every completion.
    pub attest: bool,
    /// Stop by itself when no job came for this long and none is running; `None`: never.
    pub exit_when_idle: Option<Duration>,
    /// Is told what happens.
    pub observer: Option<Observer>,
}

/// A setting that does not keep its bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {bound}")]
pub struct SettingError {
    /// Which.
    pub setting: &'static str,
    /// What it must be.
    pub bound: &'static str,
}

impl WorkerConfig {
    /// A worker with one job at once, a lease of 30 s, and every other setting at its default.
    pub fn new(client: Client, queues: Vec<String>, label: String, command: String) -> Self {
        Self {
            client,
            queues,
            label,
            command,
            directory: None,
            concurrency: 1,
            lease: Duration::from_secs(30),
            wait: Duration::from_secs(20),
            stop_grace: Duration::from_secs(5),
            drain_grace: Duration::from_secs(30),
            retry_backoff: Duration::from_secs(1),
            max_runtime: None,
            attest: false,
            exit_when_idle: None,
            observer: None,
        }
    }

    pub(crate) fn check(&self) -> Result<(), SettingError> {
        let day = Duration::from_secs(86_400);
        let checks = [
            ("queues", (1..=100).contains(&self.queues.len()), "must be 1–100"),
            ("label", (1..=256).contains(&self.label.len()), "must be 1–256 bytes"),
            ("command", !self.command.is_empty() && !self.command.contains('\0'), "must not be empty or contain NUL"),
            ("concurrency", (1..=1_000).contains(&self.concurrency), "must be 1–1,000"),
            ("lease", (Duration::from_millis(500)..=day).contains(&self.lease), "must be 500 ms–24 h"),
            ("wait", self.wait <= Duration::from_secs(60), "must be 0–60 s"),
            ("stop_grace", self.stop_grace <= day, "must be at most 24 h"),
            ("drain_grace", self.drain_grace <= day, "must be at most 24 h"),
            ("retry_backoff", self.retry_backoff <= day, "must be at most 24 h"),
            ("max_runtime", self.max_runtime.is_none_or(|time| time > Duration::ZERO), "must be more than 0"),
        ];
        match checks.into_iter().find(|(_, good, _)| !good) {
            Some((setting, _, bound)) => Err(SettingError { setting, bound }),
            None => Ok(()),
        }
    }

    pub(crate) fn tell(&self, event: &Event) {
        event.log();
        if let Some(observer) = &self.observer {
            observer(event);
        }
    }
}

impl fmt::Debug for WorkerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("WorkerConfig");
        out.field("queues", &self.queues).field("label", &self.label).field("command", &self.command);
        out.field("concurrency", &self.concurrency).field("lease", &self.lease).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_hold_at_their_bounds_and_not_beyond() {
        let client = Client::builder().addrs("http://127.0.0.1:1").build().unwrap();
        let good = || WorkerConfig::new(client.clone(), vec!["q".into()], "w".into(), "true".into());
        good().check().unwrap();
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        WorkerConfig { lease: ms(500), wait: s(60), concurrency: 1_000, ..good() }.check().unwrap();
        WorkerConfig { lease: s(86_400), wait: ms(0), label: "x".repeat(256), ..good() }.check().unwrap();
        for (config, setting) in [
            (WorkerConfig { queues: vec![], ..good() }, "queues"),
            (WorkerConfig { queues: vec!["q".into(); 101], ..good() }, "queues"),
            (WorkerConfig { label: String::new(), ..good() }, "label"),
            (WorkerConfig { label: "x".repeat(257), ..good() }, "label"),
            (WorkerConfig { command: String::new(), ..good() }, "command"),
            (WorkerConfig { command: "a\0b".into(), ..good() }, "command"),
            (WorkerConfig { concurrency: 0, ..good() }, "concurrency"),
            (WorkerConfig { concurrency: 1_001, ..good() }, "concurrency"),
            (WorkerConfig { lease: ms(499), ..good() }, "lease"),
            (WorkerConfig { lease: s(86_401), ..good() }, "lease"),
            (WorkerConfig { wait: ms(60_001), ..good() }, "wait"),
            (WorkerConfig { max_runtime: Some(Duration::ZERO), ..good() }, "max_runtime"),
        ] {
            assert_eq!(config.check().unwrap_err().setting, setting);
        }
    }
}
