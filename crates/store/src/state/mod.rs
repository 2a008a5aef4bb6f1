//! The state's tables: what `ag-core` keeps in memory, row by row, and the blobs that it never reads.

mod load;
mod memory;
mod rocks;
mod rows;

use std::sync::Arc;

use ag_core::audit::AuditRecord;
use ag_core::change::{Answer, BlobKind, Change, ReplyKey};
use ag_core::digest::Digest;
use ag_core::name::{AttestationType, JobId};
use ag_core::{Meta, State};
use ag_wire::storage::AppliedMark;

use crate::StoreError;

pub use memory::{MemorySnapshot, MemoryState};
pub use rocks::RocksState;

pub(crate) use load::load;

/// How far loading has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Rows that are loaded.
    pub rows: u64,
    /// About how many there are.
    pub rows_total: u64,
}

/// Where the replicated state is kept. One thread commits; loading comes before that.
pub trait StateTable: Send + Sync {
    /// Stores what applying came to: changes, single values and mark in one atomic batch. What is stored survives the
    /// process only from the next flush on; until then the log has it.
    fn commit(&self, changes: &[Change], meta: &Meta, mark: &AppliedMark) -> Result<(), StoreError>;

    /// The whole state, and how far it has applied the log. Rows that are not the ones that were stored are an error.
    fn load(&self, progress: &mut dyn FnMut(LoadProgress)) -> Result<(State, AppliedMark), StoreError>;

    /// For reading what the state in memory does not hold.
    fn reader(&self) -> Arc<dyn StateReader>;
}

/// Reads what the state in memory does not hold, from any thread, while another commits.
pub trait StateReader: Send + Sync {
    /// A blob of a job; `None`: it has none, or is gone. Its length is in the job: a stored blob of another length is
    /// one that has been replaced since.
    fn blob(&self, job_id: JobId, kind: BlobKind) -> Result<Option<Vec<u8>>, StoreError>;

    /// The attestation whose bytes have this digest.
    fn attestation(&self, digest: &Digest) -> Result<Option<(AttestationType, Vec<u8>)>, StoreError>;

    /// The kept answer to a call with a request id.
    fn answer(&self, reply_key: ReplyKey) -> Result<Option<Answer>, StoreError>;

    /// The records of the audit log after `sequence`, in order, up to both bounds, but at least one if there is one.
    /// The chain is checked as far as they reach.
    fn audit_after(&self, sequence: u64, records_max: usize, bytes_max: usize) -> Result<Vec<AuditRecord>, StoreError>;
}
