//! Where things are in the repository.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The folder of the repository, found from where this package was compiled.
pub fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_path_buf()
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
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() {
                if !matches!(name, "target" | ".git" | ".venv" | "__pycache__" | "node_modules") {
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

/// `path` as it is written in messages: from the root of the repository.
pub fn shown<'a>(root: &Path, path: &'a Path) -> std::path::Display<'a> {
    path.strip_prefix(root).unwrap_or(path).display()
}
