//! The replicated state on disk: one RocksDB without a WAL, since the log rebuilds what a crash takes. All column families
//! are flushed together, so that rows and mark always fit.

use std::path::Path;

use ag_core::audit::AuditRecord;
use ag_core::change::{Answer, BlobKind, Change, ReplyKey};
use ag_core::digest::Digest;
use ag_core::load::Loader;
use ag_core::name::{AttestationType, JobId};
use ag_core::{Meta, State};
use ag_wire::storage::{self, decode_message, encode_message, stored};
use rocksdb::checkpoint::Checkpoint as RocksCheckpoint;
use rocksdb::{
    ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType, Direction, FlushOptions, IteratorMode, Options,
    WriteBatch, WriteOptions,
};

use crate::error::StoreError;
use crate::frame;
use crate::log::{from_stored, to_stored};
use crate::table::{AppliedMark, LoadProgress, StateReader, StateTable};

/// The tables of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Table {
    Meta,
    Jobs,
    Queues,
    Replies,
    Answers,
    Members,
    Blobs,
    Attestations,
    Audit,
}

impl Table {
    const ALL: [Self; 9] = [
        Self::Meta,
        Self::Jobs,
        Self::Queues,
        Self::Replies,
        Self::Answers,
        Self::Members,
        Self::Blobs,
        Self::Attestations,
        Self::Audit,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Jobs => "jobs",
            Self::Queues => "queues",
            Self::Replies => "replies",
            Self::Answers => "answers",
            Self::Members => "members",
            Self::Blobs => "blobs",
            Self::Attestations => "attestations",
            Self::Audit => "audit",
        }
    }
}

/// One row of a change.
pub(crate) enum Row<'a> {
    Put(Table, &'a [u8], &'a [u8]),
    Delete(Table, &'a [u8]),
}

/// The rows that a change writes and deletes.
pub(crate) fn rows_of(change: &Change, row: &mut dyn FnMut(Row<'_>)) {
    match change {
        Change::PutJob(job) => row(Row::Put(Table::Jobs, &job.job_id.0.to_be_bytes(), &storage::encode_job(job))),
        Change::DropJob(job_id) => {
            row(Row::Delete(Table::Jobs, &job_id.0.to_be_bytes()));
            for kind in [BlobKind::Payload, BlobKind::Progress, BlobKind::Result] {
                row(Row::Delete(Table::Blobs, &blob_key(*job_id, kind)));
            }
        }
        Change::PutQueue { queue, policy } => {
            row(Row::Put(Table::Queues, queue.as_str().as_bytes(), &storage::encode_queue(queue, policy)));
        }
        Change::PutBlob { job_id, kind, bytes } => row(Row::Put(Table::Blobs, &blob_key(*job_id, *kind), bytes)),
        Change::PutAttestation { digest, attestation_type, bytes } => {
            row(Row::Put(Table::Attestations, &digest.0, &storage::encode_attestation(attestation_type, bytes)));
        }
        Change::PutReply { reply, answer } => {
            row(Row::Put(Table::Replies, &reply.reply_key.0, &storage::encode_reply(reply)));
            row(Row::Put(Table::Answers, &reply.reply_key.0, &storage::encode_answer(answer)));
        }
        Change::DropReply(reply_key) => {
            row(Row::Delete(Table::Replies, &reply_key.0));
            row(Row::Delete(Table::Answers, &reply_key.0));
        }
        Change::Audit(record) => {
            row(Row::Put(Table::Audit, &record.sequence.to_be_bytes(), &storage::encode_audit(record)));
        }
        Change::PutMember(member) => {
            row(Row::Put(Table::Members, &member.replica_id.0.to_be_bytes(), &storage::encode_member(member)));
        }
        Change::DropMember(replica_id) => row(Row::Delete(Table::Members, &replica_id.0.to_be_bytes())),
        // These are single values, and stand in the row of `Meta`.
        Change::Clocks { .. }
        | Change::NextReplicaId(_)
        | Change::ClusterId(_)
        | Change::ClusterVersion(_)
        | Change::VersionHeld(_) => {}
    }
}

pub(crate) fn blob_key(job_id: JobId, kind: BlobKind) -> [u8; 9] {
    let mut key = [0; 9];
    key[..8].copy_from_slice(&job_id.0.to_be_bytes());
    key[8] = match kind {
        BlobKind::Payload => 1,
        BlobKind::Progress => 2,
        BlobKind::Result => 3,
    };
    key
}

pub(crate) fn encode_mark(mark: &AppliedMark) -> Vec<u8> {
    encode_message(&applied_row(mark))
}

pub(crate) fn applied_row(mark: &AppliedMark) -> stored::AppliedRow {
    stored::AppliedRow { applied: mark.applied.map(to_stored), membership: mark.membership.clone().into() }
}

pub(crate) fn decode_mark(value: &[u8]) -> Result<AppliedMark, StoreError> {
    decode_message(value).map(mark_of).map_err(StoreError::decode("mark"))
}

pub(crate) fn mark_of(row: stored::AppliedRow) -> AppliedMark {
    AppliedMark { applied: row.applied.map(from_stored), membership: row.membership.into() }
}

pub(crate) fn decode_attestation(value: &[u8]) -> Result<(AttestationType, Vec<u8>), StoreError> {
    storage::decode_attestation(value).map_err(StoreError::decode("attestations"))
}

/// Builds the state from the rows that `rows` gives for a table, and checks it against the stored sum.
pub(crate) fn load_rows(
    meta: Option<Meta>,
    progress: &mut dyn FnMut(LoadProgress),
    rows: impl Fn(Table, &mut dyn FnMut(&[u8]) -> Result<(), StoreError>) -> Result<(), StoreError>,
) -> Result<State, StoreError> {
    let mut loader = Loader::default();
    let mut count = LoadProgress::default();
    for table in [Table::Queues, Table::Jobs, Table::Replies, Table::Members] {
        let decode = StoreError::decode(table.name());
        let mut failed = None;
        let outcome = rows(table, &mut |value| {
            count.rows += 1;
            if count.rows.is_multiple_of(100_000) {
                progress(count);
            }
            let loaded = match table {
                Table::Queues => storage::decode_queue(value).map(|(queue, policy)| loader.queue(queue, policy)),
                Table::Jobs => storage::decode_job(value).map(|job| loader.job(job)),
                Table::Replies => storage::decode_reply(value).map(|reply| loader.reply(reply)),
                _ => storage::decode_member(value).map(|member| loader.member(member)),
            };
            if let Err(error) = loaded {
                failed.get_or_insert(error);
            }
            Ok(())
        });
        outcome?;
        if let Some(error) = failed {
            return Err(decode(error));
        }
    }
    progress(count);
    loader.finish(meta.unwrap_or_default()).map_err(StoreError::Load)
}

/// The state on disk.
pub struct RocksState {
    db: DB,
}

impl RocksState {
    /// Opens the state in this folder, and makes it if there is none.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        options.set_atomic_flush(true);
        options.set_db_write_buffer_size(64 << 20);
        options.set_max_background_jobs(2);
        options.set_keep_log_file_num(4);
        options.set_paranoid_checks(true);
        let mut table_options = Options::default();
        table_options.set_write_buffer_size(32 << 20);
        table_options.set_compression_type(DBCompressionType::Lz4);
        let mut families: Vec<_> =
            Table::ALL.iter().map(|table| ColumnFamilyDescriptor::new(table.name(), table_options.clone())).collect();
        families.push(ColumnFamilyDescriptor::new("default", Options::default()));
        let db = DB::open_cf_descriptors(&options, path, families).map_err(StoreError::rocks("open the state"))?;
        Ok(Self { db })
    }

    fn cf(&self, table: Table) -> &ColumnFamily {
        self.db.cf_handle(table.name()).expect("the state is opened with all of its column families")
    }

    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let value = self.db.get_pinned_cf(self.cf(table), key).map_err(StoreError::rocks("read the state"))?;
        value.map(|sealed| frame::open(table.name(), key, &sealed).map(<[u8]>::to_vec)).transpose()
    }

    /// Puts a copy of the state as it is now into a new folder: a flush and hard links.
    pub(crate) fn checkpoint(&self, folder: &Path) -> Result<(), StoreError> {
        let checkpoint = RocksCheckpoint::new(&self.db).map_err(StoreError::rocks("begin a checkpoint"))?;
        checkpoint.create_checkpoint(folder).map_err(StoreError::rocks("make a checkpoint"))
    }

    /// Writes everything that is only in memory to disk, so that a restart need not apply the log again.
    pub fn flush(&self) -> Result<(), StoreError> {
        let families: Vec<_> = Table::ALL.iter().map(|table| self.cf(*table)).collect();
        self.db.flush_cfs_opt(&families, &FlushOptions::default()).map_err(StoreError::rocks("flush the state"))
    }
}

impl StateReader for RocksState {
    fn blob(&self, job_id: JobId, kind: BlobKind) -> Result<Option<Vec<u8>>, StoreError> {
        self.get(Table::Blobs, &blob_key(job_id, kind))
    }

    fn attestation(&self, digest: &Digest) -> Result<Option<(AttestationType, Vec<u8>)>, StoreError> {
        self.get(Table::Attestations, &digest.0)?.map(|value| decode_attestation(&value)).transpose()
    }

    fn answer(&self, reply_key: ReplyKey) -> Result<Option<Answer>, StoreError> {
        let value = self.get(Table::Answers, &reply_key.0)?;
        value.map(|value| storage::decode_answer(&value).map_err(StoreError::decode("answers"))).transpose()
    }

    fn audit_after(&self, after: u64, records_max: usize, bytes_max: usize) -> Result<Vec<AuditRecord>, StoreError> {
        let start = after.saturating_add(1).to_be_bytes();
        let mut bytes = 0;
        let mut records = Vec::new();
        let rows = self.db.iterator_cf(self.cf(Table::Audit), IteratorMode::From(&start, Direction::Forward));
        for item in rows {
            if records.len() >= records_max || bytes >= bytes_max {
                break;
            }
            let (key, sealed) = item.map_err(StoreError::rocks("read the audit log"))?;
            let value = frame::open(Table::Audit.name(), &key, &sealed)?;
            bytes += value.len();
            let record = storage::decode_audit(value).map_err(StoreError::decode(Table::Audit.name()))?;
            let expected = after.saturating_add(1 + records.len() as u64);
            if record.sequence != expected {
                let what = format!("record {} stands where record {expected} should", record.sequence);
                return Err(StoreError::Corrupt { table: "audit", what });
            }
            records.push(record);
        }
        Ok(records)
    }
}

impl StateTable for RocksState {
    fn commit(&self, changes: &[Change], meta: &Meta, mark: &AppliedMark) -> Result<(), StoreError> {
        let mut batch = WriteBatch::default();
        for change in changes {
            rows_of(change, &mut |row| match row {
                Row::Put(table, key, value) => batch.put_cf(self.cf(table), key, frame::seal(key, value)),
                Row::Delete(table, key) => batch.delete_cf(self.cf(table), key),
            });
        }
        let singles = self.cf(Table::Meta);
        batch.put_cf(singles, b"meta", frame::seal(b"meta", &storage::encode_meta(meta)));
        batch.put_cf(singles, b"mark", frame::seal(b"mark", &encode_mark(mark)));
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        self.db.write_opt(batch, &options).map_err(StoreError::rocks("commit to the state"))
    }

    fn load(&self, progress: &mut dyn FnMut(LoadProgress)) -> Result<(State, AppliedMark), StoreError> {
        let mark = match self.get(Table::Meta, b"mark")? {
            Some(value) => decode_mark(&value)?,
            None => AppliedMark::default(),
        };
        let meta = self.get(Table::Meta, b"meta")?;
        let meta = meta.map(|value| storage::decode_meta(&value).map_err(StoreError::decode("meta"))).transpose()?;
        let state = load_rows(meta, progress, |table, row| {
            for item in self.db.iterator_cf(self.cf(table), IteratorMode::Start) {
                let (key, sealed) = item.map_err(StoreError::rocks("load the state"))?;
                row(frame::open(table.name(), &key, &sealed)?)?;
            }
            Ok(())
        })?;
        Ok((state, mark))
    }
}
