//! Binaries of earlier releases, built from their commits by `build-release.sh`.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};

/// The binary `name` of `release`: in the folder that AG_RELEASES names, else in the target folder.
pub fn binary(release: &str, name: &str) -> Result<PathBuf> {
    let releases = match std::env::var_os("AG_RELEASES") {
        Some(folder) => PathBuf::from(folder),
        None => crate::binaries()?.parent().context("the target folder")?.join("releases"),
    };
    let path = releases.join(release).join(name);
    ensure!(path.exists(), "there is no {}: ./dev releases builds it", path.display());
    Ok(path)
}
