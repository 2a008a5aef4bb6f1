//! A snapshot of another replica on its way.

use std::fs::File;
use std::io::Write as _;

use ag_wire::storage::SnapshotMeta;

use super::publish::publish;
use super::{Snapshot, Snapshots, check_measured, refused};
use crate::StoreError;
use crate::files::Scratch;

/// Takes the files of a snapshot, in the order of its description, each in any number of parts. Dropped, it is gone.
#[derive(Debug)]
pub struct SnapshotReceiver {
    snapshots: Snapshots,
    scratch: Scratch,
    meta: SnapshotMeta,
    /// The file that is being received.
    at: usize,
    open: Option<Receiving>,
}

#[derive(Debug)]
struct Receiving {
    file: File,
    bytes: u64,
    crc32: crc32fast::Hasher,
}

impl SnapshotReceiver {
    pub(super) fn new(snapshots: Snapshots, scratch: Scratch, meta: SnapshotMeta) -> Self {
        Self { snapshots, scratch, meta, at: 0, open: None }
    }

    /// What the snapshot will hold.
    pub fn meta(&self) -> &SnapshotMeta {
        &self.meta
    }

    /// The next part of the file `name`. A file ends when it has its length; an empty one needs no part.
    pub fn write(&mut self, name: &str, part: &[u8]) -> Result<(), StoreError> {
        self.skip_empty()?;
        let expected = self.meta.files.get(self.at).filter(|file| file.name == name);
        let expected =
            expected.ok_or_else(|| StoreError::SnapshotRefused { why: format!("{name:?} is not the next file") })?;
        let path = self.scratch.path().join(&expected.name);
        let receiving = match self.open.take() {
            Some(receiving) => self.open.insert(receiving),
            None => {
                let file = File::create_new(&path).map_err(StoreError::file("create", &path))?;
                self.open.insert(Receiving { file, bytes: 0, crc32: crc32fast::Hasher::new() })
            }
        };
        receiving.bytes += part.len() as u64;
        if receiving.bytes > expected.bytes {
            return Err(StoreError::SnapshotRefused { why: format!("{name:?} is longer than described") });
        }
        receiving.file.write_all(part).map_err(StoreError::file("write", &path))?;
        receiving.crc32.update(part);
        if receiving.bytes == expected.bytes {
            check_measured(expected, (receiving.bytes, receiving.crc32.clone().finalize())).map_err(refused)?;
            self.open = None;
            self.at += 1;
        }
        Ok(())
    }

    /// All parts have been written: makes the files durable, and a snapshot of them.
    pub fn finish(mut self) -> Result<Snapshot, StoreError> {
        self.skip_empty()?;
        if let Some(missing) = self.meta.files.get(self.at) {
            return Err(StoreError::SnapshotRefused { why: format!("{:?} is not all there", missing.name) });
        }
        publish(&self.snapshots, self.scratch, &self.meta)
    }

    fn skip_empty(&mut self) -> Result<(), StoreError> {
        while let (None, Some(file)) = (&self.open, self.meta.files.get(self.at)) {
            if file.bytes > 0 {
                break;
            }
            check_measured(file, (0, crc32fast::hash(&[]))).map_err(refused)?;
            let path = self.scratch.path().join(&file.name);
            File::create_new(&path).map_err(StoreError::file("create", &path))?;
            self.at += 1;
        }
        Ok(())
    }
}
