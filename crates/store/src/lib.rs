//! Tables of one replica on disk: the log of entries, the replicated state with its blobs, and snapshots of it.
//! Synchronous, and without any knowledge of Raft beyond places in a log.
//!
//! ```text
//! FORMAT  LOCK                      read first; held while the replica runs
//! shards/0/log/                     RocksDB with a WAL: votes and entries, fsynced before they are acknowledged
//! shards/0/MARK                     how far the log was reported durable
//! shards/0/state/CURRENT, gen-N/    RocksDB without a WAL: the state, rebuilt from the log after a crash
//! shards/0/snapshots/snap-…/        checkpoints of the state
//! ```
//!
//! Every value carries a CRC of its own, beside RocksDB's checksums: what is read is what was written, or an error.

mod error;
mod folder;
mod frame;
mod log;
mod mark;
mod memory;
mod rocks;
mod snapshot;
mod table;

pub use error::StoreError;
pub use folder::{DataFolder, Identity};
pub use log::{EntryId, LogBounds, LogEntry, LogTable, Payload, Vote};
pub use memory::MemoryState;
pub use rocks::RocksState;
pub use snapshot::{Checkpoint, Snapshot, SnapshotReceiver, Snapshots};
pub use table::{AppliedMark, LoadProgress, StateReader, StateTable};
