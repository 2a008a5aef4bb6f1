//! What a table of the replicated state can do. One law for all of them: what was committed is what is read, or an error.

use ag_core::audit::AuditRecord;
use ag_core::change::{Answer, BlobKind, Change, ReplyKey};
use ag_core::digest::Digest;
use ag_core::name::{AttestationType, JobId};
use ag_core::{Meta, State};

use crate::error::StoreError;
use crate::log::EntryId;

/// How far a table has applied the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppliedMark {
    /// The last applied entry.
    pub applied: Option<EntryId>,
    /// The members of the Raft group as of then; opaque here.
    pub membership: Vec<u8>,
}

/// How far loading is.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadProgress {
    /// Rows so far.
    pub rows: u64,
}

/// Reading what the state machine does not keep in memory. From any thread, also while a commit runs.
pub trait StateReader: Send + Sync {
    /// Bytes of a job; `None` if it has none of this kind.
    fn blob(&self, job_id: JobId, kind: BlobKind) -> Result<Option<Vec<u8>>, StoreError>;

    /// An attestation, by the SHA-256 of its bytes.
    fn attestation(&self, digest: &Digest) -> Result<Option<(AttestationType, Vec<u8>)>, StoreError>;

    /// The kept answer to a call with a request id.
    fn answer(&self, reply_key: ReplyKey) -> Result<Option<Answer>, StoreError>;

    /// Audit records with a greater sequence than `after`, in order: at most `records_max`, and no more after `bytes_max`
    /// canonical bytes.
    fn audit_after(&self, after: u64, records_max: usize, bytes_max: usize) -> Result<Vec<AuditRecord>, StoreError>;
}

/// The replicated state, stored.
pub trait StateTable: StateReader {
    /// Stores the changes of one or more entries, the single values and the mark, all or nothing.
    fn commit(&self, changes: &[Change], meta: &Meta, mark: &AppliedMark) -> Result<(), StoreError>;

    /// Loads the state, and checks that it is the one that was stored.
    fn load(&self, progress: &mut dyn FnMut(LoadProgress)) -> Result<(State, AppliedMark), StoreError>;
}
