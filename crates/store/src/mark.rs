//! The high-water mark: up to where the log was reported durable. It is what finds a log that lost acknowledged entries
//! in a way that no checksum notices, such as a WAL that was cut at a record's end.
//!
//! It is written, without a sync of its own, after each sync of the log: after a power cut it may be older than the log,
//! never ahead of it. Before the log is truncated it is lowered, and synced.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::StoreError;
use crate::log::EntryId;

/// Counter, present, term, replica id, log index, CRC.
const SLOT_BYTES: usize = 8 + 8 + 8 + 8 + 8 + 4;

/// The mark file: two slots, written in turn, so that a torn write leaves the other.
#[derive(Debug)]
pub(crate) struct MarkFile {
    path: PathBuf,
    file: File,
    counter: u64,
    mark: Option<EntryId>,
}

impl MarkFile {
    /// Opens the file, and makes it if it does not exist.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(StoreError::file("open", path))?;
        let length = file.metadata().map_err(StoreError::file("read", path))?.len();
        let mut newest: Option<(u64, Option<EntryId>)> = None;
        for slot in 0..2 {
            let mut bytes = [0; SLOT_BYTES];
            if file.read_exact_at(&mut bytes, slot * SLOT_BYTES as u64).is_ok()
                && let Some(found) = parse(&bytes)
                && newest.is_none_or(|(counter, _)| counter < found.0)
            {
                newest = Some(found);
            }
        }
        let (counter, mark) = match newest {
            Some(found) => found,
            None if length == 0 => (0, None),
            None => return Err(StoreError::Corrupt { table: "MARK", what: "neither slot passes its checksum".into() }),
        };
        Ok(Self { path: path.into(), file, counter, mark })
    }

    /// The mark.
    pub fn get(&self) -> Option<EntryId> {
        self.mark
    }

    /// Moves the mark, without a sync.
    pub fn set(&mut self, mark: Option<EntryId>) -> Result<(), StoreError> {
        if mark == self.mark {
            return Ok(());
        }
        let counter = self.counter + 1;
        let bytes = format(counter, mark);
        let at = (counter % 2) * SLOT_BYTES as u64;
        self.file.write_all_at(&bytes, at).map_err(StoreError::file("write", &self.path))?;
        (self.counter, self.mark) = (counter, mark);
        Ok(())
    }

    /// Makes the mark durable.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.file.sync_data().map_err(StoreError::file("sync", &self.path))
    }
}

fn format(counter: u64, mark: Option<EntryId>) -> [u8; SLOT_BYTES] {
    let place = mark.unwrap_or_default();
    let mut bytes = [0; SLOT_BYTES];
    let numbers = [counter, u64::from(mark.is_some()), place.term, place.replica_id, place.log_index];
    for (chunk, number) in bytes.chunks_exact_mut(8).zip(numbers) {
        chunk.copy_from_slice(&number.to_be_bytes());
    }
    let crc = crc32fast::hash(&bytes[..SLOT_BYTES - 4]);
    bytes[SLOT_BYTES - 4..].copy_from_slice(&crc.to_be_bytes());
    bytes
}

fn parse(bytes: &[u8; SLOT_BYTES]) -> Option<(u64, Option<EntryId>)> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    if crc32fast::hash(body) != u32::from_be_bytes(*crc) {
        return None;
    }
    let number = |at: usize| body.get(at * 8..)?.first_chunk::<8>().copied().map(u64::from_be_bytes);
    let place = EntryId { term: number(2)?, replica_id: number(3)?, log_index: number(4)? };
    Some((number(0)?, if number(1)? == 1 { Some(place) } else { None }))
}
