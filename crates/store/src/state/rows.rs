//! Changes as rows, and rows as values, for every kind of state table.

use std::ops::ControlFlow;

use ag_core::Meta;
use ag_core::audit::{AuditHead, AuditRecord};
use ag_core::change::{Answer, BlobKind, Change, ReplyKey};
use ag_core::digest::Digest;
use ag_core::name::{AttestationType, JobId};
use ag_wire::storage::{
    self, AppliedMark, DecodeError, decode_answer, decode_applied_mark, decode_attestation, decode_audit, decode_blob,
    decode_meta,
};

use crate::StoreError;
use crate::seal::{Table, seal, unseal};

/// The tables of a state.
pub const TABLES: [Table; 9] = [
    Table::Meta,
    Table::Jobs,
    Table::Blobs,
    Table::Queues,
    Table::Replies,
    Table::Answers,
    Table::Members,
    Table::Audit,
    Table::Attestations,
];
/// Keys of the table of single values.
const META: &[u8] = b"meta";
const MARK: &[u8] = b"applied";
const BLOB_KINDS: [BlobKind; 3] = [BlobKind::Payload, BlobKind::Progress, BlobKind::Result];

/// Where rows go.
pub trait Sink {
    /// Stores a row.
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]);
    /// Removes a row; it need not exist.
    fn delete(&mut self, table: Table, key: &[u8]);
}

/// Where rows come from.
pub trait Rows {
    /// The value of a row, sealed as it was stored.
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// Visits the rows of a table from `start` on, in order, until told to stop.
    fn scan(&self, table: Table, start: &[u8], visit: &mut Visit<'_>) -> Result<(), StoreError>;

    /// About how many rows there are.
    fn count(&self, table: Table) -> u64;
}

/// Takes key and sealed value of a row.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, StoreError> + 'a;

/// Turns changes, single values and mark into rows. `buffer` is for encoding.
pub fn apply(changes: &[Change], meta: &Meta, mark: &AppliedMark, buffer: &mut Vec<u8>, sink: &mut impl Sink) {
    let mut writer = Writer { buffer, sink };
    for change in changes {
        writer.change(change);
    }
    writer.put(Table::Meta, META, |out| storage::encode_meta(meta, out));
    writer.put(Table::Meta, MARK, |out| storage::encode_applied_mark(mark, out));
}

struct Writer<'a, S> {
    buffer: &'a mut Vec<u8>,
    sink: &'a mut S,
}

impl<S: Sink> Writer<'_, S> {
    fn put(&mut self, table: Table, key: &[u8], encode: impl FnOnce(&mut Vec<u8>)) {
        self.buffer.clear();
        encode(self.buffer);
        seal(table, key, self.buffer);
        self.sink.put(table, key, self.buffer);
    }

    fn change(&mut self, change: &Change) {
        match change {
            Change::PutJob(job) => {
                self.put(Table::Jobs, &job_key(job.job_id), |out| storage::encode_job(job, out));
            }
            Change::DropJob(job_id) => {
                self.sink.delete(Table::Jobs, &job_key(*job_id));
                for kind in BLOB_KINDS {
                    self.sink.delete(Table::Blobs, &blob_key(*job_id, kind));
                }
            }
            Change::PutQueue { queue, policy } => {
                let key = queue.as_str().as_bytes();
                self.put(Table::Queues, key, |out| storage::encode_queue(queue, policy, out));
            }
            Change::PutBlob { job_id, kind, bytes } => {
                self.put(Table::Blobs, &blob_key(*job_id, *kind), |out| storage::encode_blob(bytes, out));
            }
            Change::PutAttestation { digest, attestation_type, bytes } => {
                let encode = |out: &mut Vec<u8>| storage::encode_attestation(attestation_type, bytes, out);
                self.put(Table::Attestations, &digest.0, encode);
            }
            Change::PutReply { reply, answer } => {
                let key = reply.reply_key.0;
                self.put(Table::Replies, &key, |out| storage::encode_reply(reply, out));
                self.put(Table::Answers, &key, |out| storage::encode_answer(answer, out));
            }
            Change::DropReply(reply_key) => {
                self.sink.delete(Table::Replies, &reply_key.0);
                self.sink.delete(Table::Answers, &reply_key.0);
            }
            Change::Audit(record) => {
                let key = record.sequence.to_be_bytes();
                self.put(Table::Audit, &key, |out| storage::encode_audit(record, out));
            }
            Change::PutMember(member) => {
                let key = member.replica_id.0.to_be_bytes();
                self.put(Table::Members, &key, |out| storage::encode_member(member, out));
            }
            Change::DropMember(replica_id) => self.sink.delete(Table::Members, &replica_id.0.to_be_bytes()),
            // These are in the single values, which are stored each time.
            Change::Clocks { .. }
            | Change::NextReplicaId(_)
            | Change::ClusterId(_)
            | Change::ClusterVersion(_)
            | Change::VersionHeld(_) => {}
        }
    }
}

/// The key of a job.
pub fn job_key(job_id: JobId) -> [u8; 8] {
    job_id.0.to_be_bytes()
}

/// The key of a blob: the job's, then one byte. The bytes are fixed for ever.
fn blob_key(job_id: JobId, kind: BlobKind) -> [u8; 9] {
    let mut key = [0; 9];
    key[..8].copy_from_slice(&job_key(job_id));
    key[8] = match kind {
        BlobKind::Payload => 1,
        BlobKind::Progress => 2,
        BlobKind::Result => 3,
    };
    key
}

/// The single values and the mark; those of an empty state if there are none.
pub fn single_values(rows: &(impl Rows + ?Sized)) -> Result<(Meta, AppliedMark), StoreError> {
    let meta = row(rows, Table::Meta, META, decode_meta)?;
    let mark = row(rows, Table::Meta, MARK, decode_applied_mark)?;
    match (meta, mark) {
        (Some(meta), Some(mark)) => Ok((meta, mark)),
        (None, None) => Ok((Meta::default(), AppliedMark::default())),
        _ => Err(StoreError::corrupt("the state", "one of its single values is missing")),
    }
}

/// See [`crate::StateReader::blob`].
pub fn blob(rows: &impl Rows, job_id: JobId, kind: BlobKind) -> Result<Option<Vec<u8>>, StoreError> {
    row(rows, Table::Blobs, &blob_key(job_id, kind), |value| decode_blob(value).map(<[u8]>::to_vec))
}

/// See [`crate::StateReader::attestation`].
pub fn attestation(rows: &impl Rows, digest: &Digest) -> Result<Option<(AttestationType, Vec<u8>)>, StoreError> {
    row(rows, Table::Attestations, &digest.0, decode_attestation)
}

/// See [`crate::StateReader::answer`].
pub fn answer(rows: &impl Rows, reply_key: ReplyKey) -> Result<Option<Answer>, StoreError> {
    row(rows, Table::Answers, &reply_key.0, decode_answer)
}

/// See [`crate::StateReader::audit_after`]. `head` is one that was stored before this call.
pub fn audit_after(
    rows: &impl Rows,
    head: AuditHead,
    sequence: u64,
    records_max: usize,
    bytes_max: usize,
) -> Result<Vec<AuditRecord>, StoreError> {
    let mut records: Vec<AuditRecord> = Vec::new();
    let Some(start) = sequence.checked_add(1).filter(|start| *start <= head.sequence && records_max > 0) else {
        return Ok(records);
    };
    let mut bytes = 0;
    let mut is_full = false;
    rows.scan(Table::Audit, &start.to_be_bytes(), &mut |key, sealed| {
        let expected = start + records.len() as u64;
        let value = unseal(Table::Audit, key, sealed)?;
        let record = decode_audit(value).map_err(StoreError::decode(Table::Audit.row(key)))?;
        if key != expected.to_be_bytes() || record.sequence != expected {
            return Err(StoreError::corrupt(format!("audit record {expected}"), "it is missing"));
        }
        let follows = records.last().is_none_or(|before| before.hash == record.previous_hash);
        if !follows || (expected == head.sequence && record.hash != head.hash) {
            return Err(StoreError::corrupt(format!("audit record {expected}"), "the chain of hashes does not hold"));
        }
        bytes += sealed.len();
        if bytes > bytes_max && !records.is_empty() {
            is_full = true;
            return Ok(ControlFlow::Break(()));
        }
        records.push(record);
        is_full = records.len() >= records_max || expected == head.sequence;
        Ok(if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    match is_full {
        true => Ok(records),
        false => {
            let missing = start + records.len() as u64;
            Err(StoreError::corrupt(format!("audit record {missing}"), "it is missing"))
        }
    }
}

fn row<T>(
    rows: &(impl Rows + ?Sized),
    table: Table,
    key: &[u8],
    decode: impl FnOnce(&[u8]) -> Result<T, DecodeError>,
) -> Result<Option<T>, StoreError> {
    let Some(sealed) = rows.get(table, key)? else {
        return Ok(None);
    };
    decode(unseal(table, key, &sealed)?).map(Some).map_err(StoreError::decode(table.row(key)))
}
