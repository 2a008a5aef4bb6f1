//! A snapshot of this replica's own state on its way.

use ag_wire::storage::{AppliedMark, SnapshotFile, SnapshotMeta};
use ag_wire::version::DATA_FORMAT;

use super::publish::publish;
use super::{Snapshot, Snapshots};
use crate::StoreError;
use crate::files::{self, Scratch};

/// A checkpoint of the state that is not a snapshot yet. Dropped, it is gone.
#[derive(Debug)]
pub struct Checkpoint {
    snapshots: Snapshots,
    scratch: Scratch,
    mark: AppliedMark,
    cluster_version: u32,
}

impl Checkpoint {
    pub(super) fn new(snapshots: Snapshots, scratch: Scratch, mark: AppliedMark, cluster_version: u32) -> Self {
        Self { snapshots, scratch, mark, cluster_version }
    }

    /// The state that it holds.
    pub fn mark(&self) -> &AppliedMark {
        &self.mark
    }

    /// Reads all files for their checksums, makes them durable, and makes a snapshot of them. Takes as long as reading
    /// the whole state.
    pub fn finish(self) -> Result<Snapshot, StoreError> {
        let mut measured = Vec::new();
        for name in files::names(self.scratch.path())? {
            let (bytes, crc32) = files::measure(&self.scratch.path().join(&name))?;
            measured.push(SnapshotFile { name, bytes, crc32 });
        }
        let meta = SnapshotMeta {
            mark: self.mark,
            cluster_version: self.cluster_version,
            data_format: DATA_FORMAT,
            files: measured,
        };
        publish(&self.snapshots, self.scratch, &meta)
    }
}
