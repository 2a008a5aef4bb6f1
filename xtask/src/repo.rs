//! Where things are in the repository, and how checks report.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Folders that hold nothing of ours.
const FOREIGN_FOLDERS: [&str; 6] = ["target", ".git", ".venv", "__pycache__", ".pytest_cache", "node_modules"];

/// The folder of the repository: cargo says where this package is. Where it was compiled may be another checkout, if
/// several share their build products.
pub fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from("xtask"), PathBuf::from);
    package.parent().unwrap_or(&package).to_path_buf()
}

/// All files below `folder` whose name ends with one of `endings`, in the order of their paths. A folder that does not
/// exist has none.
pub fn files_below(folder: &Path, endings: &[&str]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        if !folder.is_dir() {
            continue;
        }
        for entry in std::fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
            let path = entry.with_context(|| format!("list {}", folder.display()))?.path();
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            if path.is_dir() {
                if !FOREIGN_FOLDERS.contains(&name) {
                    folders.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The text of a file.
pub fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

/// `path` as it is written in messages: from the root of the repository.
pub fn shown(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

/// What a command printed; an error when it failed.
pub fn output_of(root: &Path, program: &str, arguments: &[&str]) -> Result<String> {
    let output =
        Command::new(program).args(arguments).current_dir(root).output().with_context(|| format!("start {program}"))?;
    if !output.status.success() {
        bail!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// `cargo metadata`, with `arguments`.
pub fn cargo_metadata(root: &Path, arguments: &[&str]) -> Result<Value> {
    let all = [&["metadata", "--format-version", "1", "--locked"], arguments].concat();
    let text = output_of(root, &cargo(), &all)?;
    serde_json::from_str(&text).context("parse the output of cargo metadata")
}

/// The cargo that runs this.
fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// The cargo that runs this, without what `cargo run` says of this package: build scripts look at it, and would compile
/// their crates anew.
pub fn cargo_command() -> Command {
    let mut command = Command::new(cargo());
    for (key, _) in std::env::vars_os() {
        let text = key.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"].iter().any(|start| text.starts_with(start)) {
            command.env_remove(&key);
        }
    }
    command
}

/// Prints the problems, and fails if there is one.
pub fn report(problems: Vec<String>) -> Result<()> {
    for problem in &problems {
        eprintln!("{problem}");
    }
    match problems.len() {
        0 => Ok(()),
        1 => bail!("1 problem"),
        many => bail!("{many} problems"),
    }
}
