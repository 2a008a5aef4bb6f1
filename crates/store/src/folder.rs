//! The data folder: its format, its lock, and its parts.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use ag_core::name::{ClusterId, ReplicaId};
use ag_wire::version::DATA_FORMAT;

use crate::error::StoreError;

/// An open data folder. While it lives, no other process can open the folder.
#[derive(Debug)]
pub struct DataFolder {
    path: PathBuf,
    _lock: File,
}

/// Whose data folder it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// The replica.
    pub replica_id: ReplicaId,
}

impl DataFolder {
    /// Opens the folder, and makes it if it does not exist.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let shard = path.join("shards/0");
        fs::create_dir_all(&shard).map_err(StoreError::file("make", &shard))?;
        let lock_path = path.join("LOCK");
        let lock = File::create(&lock_path).map_err(StoreError::file("open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(StoreError::Locked { path: path.into() }),
            Err(fs::TryLockError::Error(source)) => return Err(StoreError::file("lock", &lock_path)(source)),
        }
        let folder = Self { path: path.into(), _lock: lock };
        folder.check_format()?;
        Ok(folder)
    }

    fn check_format(&self) -> Result<(), StoreError> {
        let path = self.path.join("FORMAT");
        if !path.exists() {
            return write_atomic(&path, format!("{DATA_FORMAT}\n").as_bytes());
        }
        let text = fs::read_to_string(&path).map_err(StoreError::file("read", &path))?;
        match text.trim().parse::<u32>() {
            Ok(format) if (1..=DATA_FORMAT).contains(&format) => Ok(()),
            _ => Err(StoreError::Format { path: self.path.clone(), found: text.trim().into(), known: DATA_FORMAT }),
        }
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the log is.
    pub fn log(&self) -> PathBuf {
        self.path.join("shards/0/log")
    }

    /// Where the high-water mark of the log is.
    pub fn mark(&self) -> PathBuf {
        self.path.join("shards/0/MARK")
    }

    /// Where the generations of the state are.
    pub fn state(&self) -> PathBuf {
        self.path.join("shards/0/state")
    }

    /// Where the snapshots are.
    pub fn snapshots(&self) -> PathBuf {
        self.path.join("shards/0/snapshots")
    }
}

/// Writes a file such that after a crash there is the old one or the new one, whole.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let new = path.with_extension("new");
    let mut file = File::create(&new).map_err(StoreError::file("make", &new))?;
    file.write_all(bytes).map_err(StoreError::file("write", &new))?;
    file.sync_all().map_err(StoreError::file("sync", &new))?;
    fs::rename(&new, path).map_err(StoreError::file("rename to", path))?;
    sync_folder(path.parent().unwrap_or(Path::new("/")))
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(path: &Path) -> Result<(), StoreError> {
    let folder = File::open(path).map_err(StoreError::file("open", path))?;
    folder.sync_all().map_err(StoreError::file("sync", path))
}

/// Removes a folder if it is there.
pub(crate) fn remove_folder(path: &Path) -> Result<(), StoreError> {
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(StoreError::file("remove", path)(error)),
    }
}
