//! The programs `ag` and `ag-worker`: glue around the libraries.

pub mod args;
pub mod commands;
pub mod config;
pub mod connect;
pub mod exit;
pub mod notify;
pub mod output;
pub mod progress;
pub mod signals;
pub mod telemetry;
pub mod worker_args;

/// How many threads run tasks: one on small machines, where replicas share the cores with each other and with workers.
pub fn threads(configured: Option<usize>) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    configured.unwrap_or(cores / 2).clamp(1, 64)
}

/// Prints an error with its causes.
pub fn complain(error: &anyhow::Error) {
    eprintln!("error: {error}");
    let mut shown = error.to_string();
    for cause in error.chain().skip(1) {
        let text = cause.to_string();
        if text != shown {
            eprintln!("  because: {text}");
        }
        shown = text;
    }
}
