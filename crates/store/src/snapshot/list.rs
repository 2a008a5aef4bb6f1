//! The snapshots of a data directory, of which only the newest is kept.

use std::path::PathBuf;
use std::sync::Arc;

use ag_wire::storage::AppliedMark;
use parking_lot::Mutex;

use super::{Checkpoint, Snapshot, SnapshotReceiver, decode_description, refused};
use crate::files::{self, Scratch};
use crate::{DataDir, StoreError};

/// Snapshots that are finished.
const FINISHED: &str = "snap-";
/// Snapshots on their way.
const UNFINISHED: &str = "tmp-";

/// The snapshots of a data directory. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Snapshots {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    listed: Mutex<Listed>,
    /// Held for its lock.
    _dir: DataDir,
}

#[derive(Debug)]
struct Listed {
    newest: Option<Snapshot>,
    /// The next folder's number, so that no name comes twice.
    serial: u64,
}

impl Snapshots {
    /// Opens the snapshots of a data directory. What was not finished, and all but the newest, is removed. Descriptions
    /// are checked, files when they are read.
    pub(crate) fn open(dir: &DataDir) -> Result<Self, StoreError> {
        let folder = dir.shard().join("snapshots");
        files::make_folder(&folder)?;
        let mut listed = Listed { newest: None, serial: 1 };
        for name in files::names(&folder)? {
            let path = folder.join(&name);
            if name.starts_with(UNFINISHED) {
                files::remove_folder(&path)?;
            } else if let Some(serial) = serial_of(&name) {
                listed.serial = listed.serial.max(serial + 1);
                listed.offer(Snapshot::read_back(path)?);
            }
        }
        Ok(Self { inner: Arc::new(Inner { folder, listed: Mutex::new(listed), _dir: dir.clone() }) })
    }

    /// The newest finished snapshot.
    pub fn newest(&self) -> Option<Snapshot> {
        self.inner.listed.lock().newest.clone()
    }

    /// Drops a snapshot that has turned out to be damaged.
    pub fn discard(&self, snapshot: &Snapshot) {
        let mut listed = self.inner.listed.lock();
        if listed.newest.as_ref().is_some_and(|newest| newest.folder() == snapshot.folder()) {
            listed.newest = None;
        }
        snapshot.set_replaced();
    }

    /// Begins to receive a snapshot with this description. It is sealed, and its names are checked.
    pub fn receive(&self, description: &[u8]) -> Result<SnapshotReceiver, StoreError> {
        // What another replica sent says nothing about this one's disk.
        let meta = decode_description(description).map_err(refused)?;
        let scratch = self.scratch()?;
        std::fs::create_dir(scratch.path()).map_err(StoreError::file("create", scratch.path()))?;
        Ok(SnapshotReceiver::new(self.clone(), scratch, meta))
    }

    /// A folder for a snapshot on its way, not yet made.
    pub(crate) fn scratch(&self) -> Result<Scratch, StoreError> {
        let serial = self.inner.listed.lock().take_serial();
        Scratch::reserve(self.inner.folder.join(format!("{UNFINISHED}{serial:08}")))
    }

    /// A checkpoint that lies in `scratch`.
    pub(crate) fn checkpoint(&self, scratch: Scratch, mark: AppliedMark, cluster_version: u32) -> Checkpoint {
        Checkpoint::new(self.clone(), scratch, mark, cluster_version)
    }

    /// Gives a folder that is durable and whole its final name.
    pub(super) fn publish(&self, scratch: Scratch, mark: &AppliedMark) -> Result<Snapshot, StoreError> {
        let mut listed = self.inner.listed.lock();
        let log_index = mark.applied.map_or(0, |applied| applied.log_index());
        let serial = listed.take_serial();
        let folder = self.inner.folder.join(format!("{FINISHED}{log_index:020}-{serial:08}"));
        scratch.keep_as(&folder)?;
        let snapshot = Snapshot::read_back(folder)?;
        listed.offer(snapshot.clone());
        Ok(snapshot)
    }
}

impl Listed {
    fn take_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial - 1
    }

    /// Keeps the newer one. Of two of the same state, the one that was finished last.
    fn offer(&mut self, offered: Snapshot) {
        let applied = |snapshot: &Snapshot| (snapshot.meta().mark.applied, snapshot.folder().to_path_buf());
        match &self.newest {
            Some(newest) if applied(newest) > applied(&offered) => offered.set_replaced(),
            Some(newest) => {
                newest.set_replaced();
                self.newest = Some(offered);
            }
            None => self.newest = Some(offered),
        }
    }
}

fn serial_of(name: &str) -> Option<u64> {
    name.strip_prefix(FINISHED)?.split_once('-')?.1.parse().ok()
}
