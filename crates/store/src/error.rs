//! What can go wrong with storage. None of it is replicated; a replica that meets one stops.

use std::io;
use std::path::PathBuf;

use ag_core::load::LoadError;
use ag_wire::storage::DecodeError;

use crate::log::EntryId;

/// A storage operation that failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file or folder could not be used.
    #[error("{operation} {}", path.display())]
    File {
        /// Such as `open` or `sync`.
        operation: &'static str,
        /// What.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another process has the data folder open.
    #[error("data folder {} is in use by another process", path.display())]
    Locked {
        /// The data folder.
        path: PathBuf,
    },
    /// The data folder was written by a newer release.
    #[error("data folder {} has format {found}; this release reads up to {known}: run a newer release of ag", path.display())]
    Format {
        /// The data folder.
        path: PathBuf,
        /// The format of the folder.
        found: String,
        /// The newest format that is known.
        known: u32,
    },
    /// RocksDB could not do something.
    #[error("{operation}")]
    Rocks {
        /// Such as `open the log`.
        operation: &'static str,
        /// Why.
        #[source]
        source: rocksdb::Error,
    },
    /// A stored value is not what was written.
    #[error("{table} is corrupt: {what}")]
    Corrupt {
        /// Which table or file.
        table: &'static str,
        /// What about it.
        what: String,
    },
    /// A stored value can not be read by this release.
    #[error("read a value of {table}")]
    Decode {
        /// Which table.
        table: &'static str,
        /// Why not.
        #[source]
        source: DecodeError,
    },
    /// The rows of the state are not the ones that were stored.
    #[error("load the state")]
    Load(#[source] LoadError),
    /// The log ends before what it was reported to hold.
    #[error(
        "the log has lost entries that were acknowledged: it was durable up to {durable}, and now ends at {end}. This replica \
         must not vote: remove it from the cluster (`ag cluster remove`), empty its data folder, and add it anew \
         (`ag cluster add`)"
    )]
    LogLostEntries {
        /// Up to where the log was reported durable.
        durable: EntryId,
        /// Where it ends now.
        end: EntryId,
    },
    /// An entry that should be in the log is not.
    #[error("entry {log_index} is missing from the log")]
    EntryMissing {
        /// Its index.
        log_index: u64,
    },
    /// What was received is not a snapshot.
    #[error("received snapshot is refused: {0}")]
    Snapshot(String),
}

impl StoreError {
    /// For `map_err` on file operations.
    pub(crate) fn file(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { operation, path, source }
    }

    /// For `map_err` on RocksDB operations.
    pub(crate) fn rocks(operation: &'static str) -> impl FnOnce(rocksdb::Error) -> Self {
        move |source| Self::Rocks { operation, source }
    }

    /// For `map_err` on decoding.
    pub(crate) fn decode(table: &'static str) -> impl FnOnce(DecodeError) -> Self {
        move |source| Self::Decode { table, source }
    }

    /// Whether the data themselves are damaged, so that starting again does not help.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Corrupt { .. } | Self::Load(_) | Self::LogLostEntries { .. } | Self::EntryMissing { .. } => true,
            Self::Decode { source, .. } => {
                !matches!(source, DecodeError::UnknownCommand { .. } | DecodeError::Format(_))
            }
            Self::Rocks { source, .. } => source.kind() == rocksdb::ErrorKind::Corruption,
            Self::File { .. } | Self::Locked { .. } | Self::Format { .. } | Self::Snapshot(_) => false,
        }
    }
}
