//! Making a snapshot's folder durable, and giving it its description.

use std::fs::File;

use ag_wire::storage::SnapshotMeta;

use super::{META_FILE, Snapshot, Snapshots, encode_description};
use crate::StoreError;
use crate::files::{self, Scratch};

/// Syncs all files and the folder, then publishes it. A crash before the last step leaves nothing.
pub fn publish(snapshots: &Snapshots, scratch: Scratch, meta: &SnapshotMeta) -> Result<Snapshot, StoreError> {
    for file in &meta.files {
        let path = scratch.path().join(&file.name);
        File::open(&path).and_then(|file| file.sync_all()).map_err(StoreError::file("sync", &path))?;
    }
    files::write_whole(&scratch.path().join(META_FILE), &encode_description(meta))?;
    snapshots.publish(scratch, &meta.mark)
}
