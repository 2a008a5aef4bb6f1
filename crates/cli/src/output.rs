//! What commands print: data to stdout, everything else to stderr.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};
use clap::Args;

/// Prints a message as JSON.
pub fn json(full_name: &str, message: &impl prost::Message) -> Result<()> {
    let descriptor = ag_api::json::message(full_name).with_context(|| format!("{full_name} is no message"))?;
    let value = ag_api::json::to_json(&descriptor, &message.encode_to_vec()).map_err(|error| anyhow!(error))?;
    line(&serde_json::to_string_pretty(&value)?)
}

/// Prints a line. A reader that has gone away is no error.
pub fn line(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to stdout"),
    }
}

/// Prints a table: a row of titles, then rows of as many cells.
pub fn table(titles: &[&str], rows: &[Vec<String>]) -> Result<()> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([titles[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..titles.len()).map(width).collect();
    let print = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<_> = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        line(padded.join("  ").trim_end())
    };
    print(&mut titles.iter().copied())?;
    rows.iter().try_for_each(|row| print(&mut row.iter().map(String::as_str)))
}

/// Bytes that can be given as text, from a file, or from standard input.
#[derive(Args, Clone, Debug, Default)]
#[group(multiple = false)]
pub struct Payload {
    /// The bytes, as text.
    #[arg(long, value_name = "TEXT")]
    pub payload: Option<String>,
    /// A file with the bytes; `-`: standard input.
    #[arg(long, value_name = "FILE")]
    pub payload_file: Option<PathBuf>,
}

impl Payload {
    /// The bytes; none without an option.
    pub fn read(self) -> Result<Vec<u8>> {
        match (self.payload, self.payload_file) {
            (Some(text), _) => Ok(text.into_bytes()),
            (None, Some(path)) => read_file(&path),
            (None, None) => Ok(Vec::new()),
        }
    }
}

/// The bytes of a file; `-`: standard input.
pub fn read_file(path: &std::path::Path) -> Result<Vec<u8>> {
    if path.as_os_str() == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
        return Ok(bytes);
    }
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
