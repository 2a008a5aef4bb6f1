//! The high-water mark: how far the log was reported durable.
//!
//! RocksDB cannot notice that its write-ahead log was cut off at the end of a record, and in some modes not that it is
//! damaged further up. The mark can: it holds the number of the last write that was synced, and the last entry then. It
//! is written after each sync, without a sync of its own, so it is never ahead of the log, and at most a power cut sets
//! it back. Two slots are written in turn, so that a torn write leaves the other.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use ag_core::name::ReplicaId;
use ag_wire::storage::{EntryId, Vote};

use crate::{StoreError, files};

const MAGIC: [u8; 8] = *b"agmark\0\x01";
/// A slot's distance from the other: they never share a sector.
const SLOT_BYTES: usize = 4096;
const USED_BYTES: usize = 71;

/// What was reported durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The number of the last write to the log's database: entries, votes, truncations and all.
    pub write_number: u64,
    /// The last entry, or the last purged one if there is none.
    pub last: Option<EntryId>,
    /// The vote.
    pub vote: Option<Vote>,
}

/// The file.
#[derive(Debug)]
pub struct MarkFile {
    file: File,
    path: PathBuf,
    /// How often it was written.
    serial: u64,
    mark: Mark,
}

impl MarkFile {
    /// Makes the file, durably, with a mark that says nothing.
    pub fn create(path: &Path) -> Result<(), StoreError> {
        let mut bytes = vec![0; 2 * SLOT_BYTES];
        for serial in 0..2 {
            let at = slot(serial);
            bytes[at..at + USED_BYTES].copy_from_slice(&encode(serial, &Mark::default()));
        }
        files::write_whole(path, &bytes)
    }

    /// Opens the file, and takes the newer of its whole slots.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let file = File::options().read(true).write(true).open(path).map_err(StoreError::file("open", path))?;
        let bytes = std::fs::read(path).map_err(StoreError::file("read", path))?;
        let slots = [0, 1].into_iter().filter_map(|serial| {
            let at = slot(serial);
            bytes.get(at..at + USED_BYTES).and_then(decode)
        });
        let newest = slots.max_by_key(|(serial, _)| *serial);
        let damaged = || StoreError::corrupt(format!("{}", path.display()), "neither of its slots is whole");
        let (serial, mark) = newest.ok_or_else(damaged)?;
        Ok(Self { file, path: path.to_path_buf(), serial, mark })
    }

    /// The mark.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// Writes a new mark.
    pub fn write(&mut self, mark: Mark) -> Result<(), StoreError> {
        let serial = self.serial + 1;
        let bytes = encode(serial, &mark);
        self.file.write_all_at(&bytes, slot(serial) as u64).map_err(StoreError::file("write", &self.path))?;
        self.serial = serial;
        self.mark = mark;
        Ok(())
    }

    /// Makes the last written mark durable.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.file.sync_data().map_err(StoreError::file("sync", &self.path))
    }
}

fn slot(serial: u64) -> usize {
    (serial % 2) as usize * SLOT_BYTES
}

fn encode(serial: u64, mark: &Mark) -> [u8; USED_BYTES] {
    let mut bytes = [0; USED_BYTES];
    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    put(&MAGIC);
    put(&serial.to_be_bytes());
    put(&mark.write_number.to_be_bytes());
    put(&[mark.last.is_some().into()]);
    let last = mark.last.unwrap_or(EntryId::new(0, 0, 0));
    for number in [last.position.term, last.leader.0, last.position.log_index] {
        put(&number.to_be_bytes());
    }
    put(&[mark.vote.is_some().into()]);
    let vote = mark.vote.unwrap_or(Vote { term: 0, replica_id: ReplicaId(0), committed: false });
    put(&vote.term.to_be_bytes());
    put(&vote.replica_id.0.to_be_bytes());
    put(&[vote.committed.into()]);
    let crc32 = crc32fast::hash(&bytes[..USED_BYTES - 4]);
    bytes[USED_BYTES - 4..].copy_from_slice(&crc32.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<(u64, Mark)> {
    let (body, crc32) = bytes.split_last_chunk::<4>()?;
    let body = body.strip_prefix(&MAGIC)?;
    let number = |at: usize| body.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes);
    if u32::from_le_bytes(*crc32) != crc32fast::hash(&bytes[..bytes.len() - 4]) {
        return None;
    }
    let last = match body.get(16)? {
        0 => None,
        1 => Some(EntryId::new(number(17)?, number(25)?, number(33)?)),
        _ => return None,
    };
    let vote = match body.get(41)? {
        0 => None,
        1 => {
            let replica_id = ReplicaId(number(50)?);
            Some(Vote { term: number(42)?, replica_id, committed: *body.get(58)? == 1 })
        }
        _ => return None,
    };
    Some((number(0)?, Mark { write_number: number(8)?, last, vote }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mark");
        MarkFile::create(&path).unwrap();
        (folder, path)
    }

    #[test]
    fn the_last_written_mark_is_read() {
        let (_folder, path) = fresh();
        assert_eq!(MarkFile::open(&path).unwrap().mark(), Mark::default());
        for number in 1..5 {
            let vote = Some(Vote { term: number, replica_id: ReplicaId(9), committed: number == 2 });
            let mark = Mark { write_number: number, last: Some(EntryId::new(2, 3, number)), vote };
            MarkFile::open(&path).unwrap().write(mark).unwrap();
            assert_eq!(MarkFile::open(&path).unwrap().mark(), mark);
        }
    }

    #[test]
    fn the_stored_form_is_as_it_was() {
        let vote = Some(Vote { term: 6, replica_id: ReplicaId(2), committed: true });
        let mark = Mark { write_number: 4, last: Some(EntryId::new(5, 3, 77)), vote };
        let bytes = encode(9, &mark);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let frozen = concat!(
            "61676d61726b00010000000000000009000000000000000401000000000000000500000000000000",
            "03000000000000004d0100000000000000060000000000000002015048e685"
        );
        assert_eq!(hex, frozen);
        assert_eq!(decode(&bytes), Some((9, mark)));
    }

    #[test]
    fn a_torn_write_leaves_the_mark_before() {
        let (_folder, path) = fresh();
        let mut file = MarkFile::open(&path).unwrap();
        let [older, newer] = [5, 6].map(|write_number| Mark { write_number, ..Mark::default() });
        file.write(older).unwrap();
        file.write(newer).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for at in 0..USED_BYTES {
            let mut torn = whole.clone();
            torn[slot(file.serial) + at] ^= 1;
            std::fs::write(&path, torn).unwrap();
            assert_eq!(MarkFile::open(&path).unwrap().mark(), older, "byte {at}");
        }
    }

    #[test]
    fn a_mark_without_a_whole_slot_is_an_error() {
        let (_folder, path) = fresh();
        for bytes in [Vec::new(), vec![0; 2 * SLOT_BYTES], vec![1; 10]] {
            std::fs::write(&path, bytes).unwrap();
            assert!(MarkFile::open(&path).unwrap_err().is_corruption());
        }
    }
}
