//! Faults that are preloaded into a replica's process, built from `faults/` by the tests themselves.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Builds `faults/<name>.c` into `folder`; gives the library's path.
pub fn build(name: &str, folder: &Path) -> Result<PathBuf> {
    let source = Path::new("faults").join(name).with_extension("c");
    let library = folder.join(name).with_extension("so");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-pthread", "-o"]).arg(&library).arg(&source);
    let output = compiler.arg("-ldl").output().context("cannot run cc")?;
    ensure!(output.status.success(), "cannot build {name}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(library)
}

/// A path as an environment takes it.
pub fn text(path: &Path) -> Result<String> {
    path.to_str().map(ToOwned::to_owned).with_context(|| format!("{} is no text", path.display()))
}
