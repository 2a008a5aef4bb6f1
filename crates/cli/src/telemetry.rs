//! Log lines, to stderr.

use std::io::IsTerminal as _;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Sets logging up. `AG_LOG` chooses what is logged, such as `debug` or `ag_replica=debug`.
pub fn start(format: LogFormat, default: &str) {
    let filter = EnvFilter::try_from_env("AG_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let colours = std::io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr);
    // Set up twice only in tests, where the first counts.
    let _ = match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}
