//! Power cuts: the undo journal that `faults/power.c` keeps, and what it takes back.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

const HEADER_BYTES: usize = 48;
const WRITE: u64 = 1;

/// What a power cut took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// Records in the journal.
    pub records: usize,
    /// Writes that no fsync covered.
    pub writes: usize,
    /// Their bytes.
    pub bytes: u64,
}

struct Write {
    path: PathBuf,
    offset: u64,
    length_before: u64,
    old: Vec<u8>,
}

/// Undoes every write that no fsync covered, newest first. The processes must be gone.
pub fn cut(journal: &Path) -> Result<Taken> {
    let bytes = std::fs::read(journal).context("cannot read the journal")?;
    let mut pending: BTreeMap<u64, Vec<Write>> = BTreeMap::new();
    let mut taken = Taken::default();
    let mut rest = bytes.as_slice();
    while let Some((header, after)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let number = |at: usize| header[at * 8..].first_chunk::<8>().copied().map_or(0, u64::from_ne_bytes);
        let (kind, inode, offset, length_before) = (number(0), number(1), number(2), number(3));
        let (path_bytes, old_bytes) = (usize::try_from(number(4))?, usize::try_from(number(5))?);
        // A record that was being written when the process was killed belongs to a write that did not happen.
        let Some((body, next)) = after.split_at_checked(path_bytes + old_bytes) else { break };
        let path = PathBuf::from(String::from_utf8_lossy(&body[..path_bytes]).into_owned());
        taken.records += 1;
        if kind == WRITE {
            let write = Write { path, offset, length_before, old: body[path_bytes..].to_vec() };
            pending.entry(inode).or_default().push(write);
        } else {
            pending.remove(&inode);
        }
        rest = next;
    }
    for (inode, writes) in pending {
        for write in writes.into_iter().rev() {
            undo(inode, &write, &mut taken)?;
        }
    }
    Ok(taken)
}

fn undo(inode: u64, write: &Write, taken: &mut Taken) -> Result<()> {
    // A file that was replaced or removed since has nothing to take back.
    let Some(now) = std::fs::metadata(&write.path).ok().filter(|status| status.ino() == inode) else { return Ok(()) };
    let file = OpenOptions::new().write(true).open(&write.path)?;
    file.write_all_at(&write.old, write.offset)?;
    if now.len() > write.length_before {
        file.set_len(write.length_before)?;
    }
    taken.writes += 1;
    taken.bytes += now.len().saturating_sub(write.length_before).max(write.old.len() as u64);
    Ok(())
}
