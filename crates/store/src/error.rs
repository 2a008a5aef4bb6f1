//! Why the store could not do something.

use std::path::{Path, PathBuf};

use ag_core::load::LoadError;
use ag_wire::storage::{DecodeError, EntryId};

/// Why the store could not do something. After an error of a write, nothing may be assumed about it, and the replica
/// must stop.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file operation failed.
    #[error("cannot {what} {}", path.display())]
    File {
        /// Such as `create`.
        what: &'static str,
        /// Of which file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A RocksDB operation failed.
    #[error("cannot {what}")]
    Rocks {
        /// Such as `write to the log`.
        what: &'static str,
        /// Why.
        #[source]
        source: rocksdb::Error,
    },
    /// Another process has the data directory open.
    #[error("data directory {} is in use by another process", path.display())]
    Locked {
        /// The data directory.
        path: PathBuf,
    },
    /// A newer release wrote the data directory.
    #[error(
        "data directory {} has format {found}, but this release reads formats up to {known}: install a newer release",
        path.display()
    )]
    NewerFormat {
        /// The data directory.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The highest format that this release reads.
        known: u32,
    },
    /// The data directory's `FORMAT` file is missing or damaged.
    #[error("{} is not the FORMAT file of a data directory of ag, or is damaged: use an empty folder", path.display())]
    FormatUnreadable {
        /// The file.
        path: PathBuf,
    },
    /// Stored bytes do not have their checksum, or are not all there. They are not served.
    #[error("{what} is damaged: {why}; remove this replica from its cluster and add a fresh one in its place")]
    Corrupt {
        /// Such as `log entry 17`.
        what: String,
        /// Such as `its checksum does not hold`.
        why: String,
    },
    /// Stored bytes have their checksum but cannot be understood.
    #[error("{what} cannot be understood")]
    Decode {
        /// Such as `a row of table jobs`.
        what: String,
        /// Why.
        #[source]
        source: DecodeError,
    },
    /// The rows of the state are not the ones that were stored.
    #[error("the state is damaged; remove this replica from its cluster and add a fresh one in its place")]
    Load(#[source] LoadError),
    /// The log ends before what this replica reported as durable.
    #[error(
        "the log has lost acknowledged entries: it was reported durable up to {} (write {marked_write}), but ends at \
         {} (write {found_write}). This replica must not vote any more: remove it from its cluster and add a fresh \
         one, with an empty data directory, in its place",
        Shown(marked),
        Shown(found)
    )]
    LogLostEntries {
        /// The last entry that was reported durable.
        marked: Option<EntryId>,
        /// The last entry that is there.
        found: Option<EntryId>,
        /// How many writes, votes included, were reported durable.
        marked_write: u64,
        /// How many are there.
        found_write: u64,
    },
    /// Entries were to be appended that do not follow the last one.
    #[error("log entry {found} cannot be appended: the next is {expected}")]
    NotContiguous {
        /// The index of the next entry.
        expected: u64,
        /// The index that was given.
        found: u64,
    },
    /// The data directory belongs to another replica.
    #[error(
        "the data directory is that of replica {found} of cluster {found_cluster}, not of {wanted} of {wanted_cluster}"
    )]
    OtherIdentity {
        /// Whose it is.
        found: u64,
        /// Of which cluster.
        found_cluster: String,
        /// Whose it should become.
        wanted: u64,
        /// Of which cluster.
        wanted_cluster: String,
    },
    /// The state is older than the first log entry, and no snapshot fills the gap.
    #[error(
        "the state has applied the log up to {}, and the log begins after {}: what lies between is lost; remove this \
         replica from its cluster and add a fresh one in its place",
        Shown(applied),
        Shown(purged)
    )]
    StateBehindLog {
        /// How far the state, or the snapshot if that is newer, has applied the log.
        applied: Option<EntryId>,
        /// The last entry that was purged.
        purged: Option<EntryId>,
    },
    /// A snapshot that is being received is not what its description says.
    #[error("the received snapshot is refused: {why}")]
    SnapshotRefused {
        /// Why.
        why: String,
    },
    /// An earlier sync failed; a later one could falsely succeed.
    #[error("an earlier write to the log could not be made durable; the replica must be restarted")]
    Latched,
}

impl StoreError {
    /// Whether stored bytes are damaged or lost, so that this replica must be replaced.
    pub fn is_corruption(&self) -> bool {
        match self {
            Self::Corrupt { .. }
            | Self::Decode { .. }
            | Self::Load(_)
            | Self::LogLostEntries { .. }
            | Self::StateBehindLog { .. }
            | Self::FormatUnreadable { .. } => true,
            Self::Rocks { source, .. } => source.kind() == rocksdb::ErrorKind::Corruption,
            Self::File { .. }
            | Self::Locked { .. }
            | Self::NewerFormat { .. }
            | Self::NotContiguous { .. }
            | Self::OtherIdentity { .. }
            | Self::SnapshotRefused { .. }
            | Self::Latched => false,
        }
    }

    /// A file operation on `path` failed.
    pub(crate) fn file(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::File { what, path: path.to_path_buf(), source }
    }

    /// A RocksDB operation failed.
    pub(crate) fn rocks(what: &'static str) -> impl FnOnce(rocksdb::Error) -> Self {
        move |source| Self::Rocks { what, source }
    }

    /// `what` is damaged.
    pub(crate) fn corrupt(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into(), why: why.into() }
    }

    /// `what` cannot be understood.
    pub(crate) fn decode(what: impl Into<String>) -> impl FnOnce(DecodeError) -> Self {
        move |source| Self::Decode { what: what.into(), source }
    }
}

struct Shown<'a>(&'a Option<EntryId>);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(entry_id) => write!(f, "entry {entry_id}"),
            None => f.write_str("no entry"),
        }
    }
}
