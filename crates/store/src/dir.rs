//! The data directory of one replica.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ag_wire::version::DATA_FORMAT;

use crate::{LogTable, RocksState, Snapshots, StoreError, files};

const FORMAT_FILE: &str = "FORMAT";
const FORMAT_HEAD: &str = "ag data directory, format ";
const LOCK_FILE: &str = "LOCK";

/// How a data directory is used.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// Make acknowledged writes durable. `false` loses them in a power cut: it is there only for the control run of the
    /// test that cuts the power, which must lose something to show anything.
    pub fsync: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { fsync: true }
    }
}

/// An open data directory. Cheap to clone; it is locked until the last clone, and the last table, is dropped.
#[derive(Clone, Debug)]
pub struct DataDir {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    options: StoreOptions,
    /// Held for its lock.
    _lock: File,
}

impl DataDir {
    /// Opens a data directory, or makes one of an empty folder or of none.
    pub fn open(path: &Path, options: StoreOptions) -> Result<Self, StoreError> {
        files::make_folder(path)?;
        let format = path.join(FORMAT_FILE);
        check_format(path, &format)?;
        let lock = lock(path)?;
        if !format.exists() {
            if path.join("shards").exists() {
                return Err(StoreError::FormatUnreadable { path: format });
            }
            files::write_whole(&format, format!("{FORMAT_HEAD}{DATA_FORMAT}\n").as_bytes())?;
        }
        let dir = Self { inner: Arc::new(Inner { path: path.to_path_buf(), options, _lock: lock }) };
        files::make_folder(&dir.shard())?;
        Ok(dir)
    }

    /// Opens the log. At most once at a time.
    pub fn log(&self) -> Result<LogTable, StoreError> {
        LogTable::open(self)
    }

    /// Opens the state. At most once at a time.
    pub fn state(&self) -> Result<RocksState, StoreError> {
        RocksState::open(self)
    }

    /// Opens the snapshots. At most once at a time.
    pub fn snapshots(&self) -> Result<Snapshots, StoreError> {
        Snapshots::open(self)
    }

    /// The folder of the data directory.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// How it is used.
    pub fn options(&self) -> StoreOptions {
        self.inner.options
    }

    /// The folder of the one shard that there is so far.
    pub(crate) fn shard(&self) -> PathBuf {
        self.inner.path.join("shards").join("0")
    }
}

fn check_format(path: &Path, file: &Path) -> Result<(), StoreError> {
    let text = match std::fs::read(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        read => read.map_err(StoreError::file("read", file))?,
    };
    let unreadable = || StoreError::FormatUnreadable { path: file.to_path_buf() };
    let text = String::from_utf8(text).map_err(|_| unreadable())?;
    let number = text.strip_prefix(FORMAT_HEAD).and_then(|rest| rest.strip_suffix('\n')).ok_or_else(unreadable)?;
    let found: u32 = number.parse().map_err(|_| unreadable())?;
    match found {
        0 => Err(unreadable()),
        1..=DATA_FORMAT => Ok(()),
        _ => Err(StoreError::NewerFormat { path: path.to_path_buf(), found, known: DATA_FORMAT }),
    }
}

fn lock(path: &Path) -> Result<File, StoreError> {
    let name = path.join(LOCK_FILE);
    let mut options = File::options();
    let file = options.create(true).truncate(false).write(true).open(&name);
    let file = file.map_err(StoreError::file("create", &name))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked { path: path.to_path_buf() }),
        Err(TryLockError::Error(source)) => Err(StoreError::file("lock", &name)(source)),
    }
}
