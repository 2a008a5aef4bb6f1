//! Generations of the state: which one is current, and how a snapshot becomes the next.
//!
//! A generation is built under another name, renamed, opened and loaded; then `CURRENT` is replaced, which is the step
//! that counts. After a crash at any point, all that `CURRENT` does not name is removed.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Snapshot, check_measured};
use crate::StoreError;
use crate::files::{self, Scratch};

const CURRENT: &str = "CURRENT";
const GENERATION: &str = "gen-";
const UNFINISHED: &str = "tmp-";

/// The folder of the current generation. The first one is made by `create`.
pub fn current_generation(
    folder: &Path,
    create: &dyn Fn(&Path) -> Result<(), StoreError>,
) -> Result<PathBuf, StoreError> {
    files::make_folder(folder)?;
    let current = folder.join(CURRENT);
    let names = files::names(folder)?;
    let name = match current.exists() {
        true => read_current(&current)?,
        false => make_first(folder, &names, create)?,
    };
    for other in names.iter().filter(|other| is_ours(other) && **other != name) {
        files::remove_folder(&folder.join(other))?;
    }
    let generation = folder.join(&name);
    match generation.is_dir() {
        true => Ok(generation),
        false => Err(StoreError::corrupt(generation.display().to_string(), "it is missing")),
    }
}

/// Makes a snapshot the generation after the one in `old`. `open` opens and checks it before it counts.
pub fn install<T>(
    old: &Path,
    snapshot: &Snapshot,
    open: impl FnOnce(&Path) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let folder = old.parent().unwrap_or(Path::new("."));
    let number = old.file_name().and_then(|name| name.to_str()).and_then(number_of);
    let number = number.ok_or_else(|| StoreError::corrupt(old.display().to_string(), "it is no generation"))?;
    let name = name_of(number + 1);
    let scratch = Scratch::make(folder.join(format!("{UNFINISHED}{name}")))?;
    for file in &snapshot.meta().files {
        let (from, to) = (snapshot.path(file), scratch.path().join(&file.name));
        check_measured(file, take_over(&from, &to)?)?;
    }
    files::sync_folder(scratch.path())?;
    let generation = folder.join(&name);
    files::remove_folder(&generation)?;
    scratch.keep_as(&generation)?;
    let opened = open(&generation);
    let switched = opened.and_then(|opened| {
        files::write_whole(&folder.join(CURRENT), format!("{name}\n").as_bytes())?;
        Ok(opened)
    });
    if switched.is_err() {
        files::discard(&generation);
    }
    switched
}

/// Links a file that RocksDB never changes, and copies all others; gives its length and checksum.
fn take_over(from: &Path, to: &Path) -> Result<(u64, u32), StoreError> {
    let is_constant = from.extension().is_some_and(|extension| extension == "sst");
    match is_constant && fs::hard_link(from, to).is_ok() {
        true => files::measure(to),
        false => files::copy(from, to),
    }
}

/// Makes the first generation. One that is there already was left by a crash before it counted, and is empty.
fn make_first(
    folder: &Path,
    names: &[String],
    create: &dyn Fn(&Path) -> Result<(), StoreError>,
) -> Result<String, StoreError> {
    let first = name_of(1);
    if let Some(other) = names.iter().find(|name| number_of(name).is_some_and(|number| number > 1)) {
        let current = folder.join(CURRENT).display().to_string();
        return Err(StoreError::corrupt(current, format!("it is missing, though there is {other}")));
    }
    if !names.contains(&first) {
        let scratch = Scratch::reserve(folder.join(format!("{UNFINISHED}{first}")))?;
        create(scratch.path())?;
        files::sync_folder(scratch.path())?;
        scratch.keep_as(&folder.join(&first))?;
    }
    files::write_whole(&folder.join(CURRENT), format!("{first}\n").as_bytes())?;
    Ok(first)
}

fn read_current(path: &Path) -> Result<String, StoreError> {
    let text = fs::read(path).map_err(StoreError::file("read", path))?;
    let text = String::from_utf8(text).unwrap_or_default();
    let name = text.strip_suffix('\n').filter(|name| number_of(name).is_some());
    name.map(str::to_owned).ok_or_else(|| StoreError::corrupt(path.display().to_string(), "it names no generation"))
}

fn is_ours(name: &str) -> bool {
    name.starts_with(GENERATION) || name.starts_with(UNFINISHED)
}

fn name_of(number: u64) -> String {
    format!("{GENERATION}{number:08}")
}

fn number_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(GENERATION)?;
    digits.parse().ok().filter(|number| name_of(*number) == name)
}
