//! Tables on disk: the log, the state and snapshots of one replica. Knows nothing of Raft, and is synchronous.
//!
//! # A data directory
//!
//! | path | holds |
//! | --- | --- |
//! | `FORMAT` | the format of all that follows; read before anything else |
//! | `LOCK` | locked by the process that has the directory open |
//! | `shards/0/log/` | the log and the vote: RocksDB with a write-ahead log that is synced before anything is acknowledged |
//! | `shards/0/mark` | how far the log was reported durable, see [`LogTable`] |
//! | `shards/0/state/CURRENT` | the name of the state's generation |
//! | `shards/0/state/gen-…/` | the state: RocksDB without a write-ahead log, since the log can rebuild it |
//! | `shards/0/snapshots/snap-…/` | a checkpoint of a state, with a file `META` that names and checks all others |
//!
//! Every value has a checksum of its own, over its table, its key and its bytes, beside those of RocksDB. What does not
//! have its checksum is an error ([`StoreError::is_corruption`]) and is never served.

mod dir;
mod error;
mod files;
mod log;
mod seal;
mod snapshot;
mod state;

pub use dir::{DataDir, StoreOptions};
pub use error::StoreError;
pub use log::{LogEntry, LogTable};
pub use snapshot::{Checkpoint, Snapshot, SnapshotReader, SnapshotReceiver, Snapshots};
pub use state::{LoadProgress, MemorySnapshot, MemoryState, RocksState, StateReader, StateTable};

pub use ag_wire::storage::{AppliedMark, EntryId, Identity, SnapshotFile, SnapshotMeta, Vote};
