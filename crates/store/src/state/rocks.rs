//! The state's tables in RocksDB, one database a generation.
//!
//! There is no write-ahead log: the replica's log is one. A batch is in the database whole or not at all, after a crash
//! too, since all tables are flushed together.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ag_core::audit::{AuditHead, AuditRecord};
use ag_core::change::{Answer, BlobKind, Change, ReplyKey};
use ag_core::digest::Digest;
use ag_core::name::{AttestationType, JobId};
use ag_core::{Meta, State};
use ag_wire::storage::AppliedMark;
use parking_lot::Mutex;
use rocksdb::{
    ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType, LogLevel, Options, WriteBatch, WriteOptions,
};

use super::rows::{self, Rows, Sink, TABLES, Visit};
use super::{LoadProgress, StateReader, StateTable, load};
use crate::seal::Table;
use crate::snapshot::install;
use crate::{Checkpoint, DataDir, Snapshot, Snapshots, StoreError, files};

const WRITE_BUFFER_BYTES: usize = 32 << 20;

/// The state of one replica. Cheap to clone; clones share their rows.
#[derive(Clone, Debug)]
pub struct RocksState {
    generation: Arc<Generation>,
}

/// One database.
#[derive(Debug)]
struct Generation {
    db: DB,
    latest: Mutex<Latest>,
    /// Removes the folder after the database is closed.
    remains: Remains,
    dir: DataDir,
}

/// What was committed last.
#[derive(Debug)]
struct Latest {
    mark: AppliedMark,
    cluster_version: u32,
    audit_head: AuditHead,
    /// For encoding.
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Remains {
    folder: PathBuf,
    is_replaced: AtomicBool,
}

impl Drop for Remains {
    fn drop(&mut self) {
        if self.is_replaced.load(Ordering::Acquire) {
            files::discard(&self.folder);
        }
    }
}

impl RocksState {
    /// Opens the current generation of a data directory's state, or makes the first.
    pub(crate) fn open(dir: &DataDir) -> Result<Self, StoreError> {
        let folder = install::current_generation(&dir.shard().join("state"), &|folder| create(folder))?;
        Self::open_generation(dir, folder)
    }

    /// Opens the database in `folder`.
    pub(crate) fn open_generation(dir: &DataDir, folder: PathBuf) -> Result<Self, StoreError> {
        let db = open_database(&folder, false)?;
        let (meta, mark) = rows::single_values(&db)?;
        let latest =
            Latest { mark, cluster_version: meta.cluster_version, audit_head: meta.audit_head, buffer: Vec::new() };
        let remains = Remains { folder, is_replaced: AtomicBool::new(false) };
        let generation = Generation { db, latest: Mutex::new(latest), remains, dir: dir.clone() };
        Ok(Self { generation: Arc::new(generation) })
    }

    /// How far the state has applied the log.
    pub fn mark(&self) -> AppliedMark {
        self.generation.latest.lock().mark.clone()
    }

    /// Begins a snapshot of what is committed now: flushes what is in memory and links the files, which takes tens of
    /// milliseconds. [`Checkpoint::finish`] does the rest, beside later commits.
    pub fn begin_checkpoint(&self, snapshots: &Snapshots) -> Result<Checkpoint, StoreError> {
        let latest = self.generation.latest.lock();
        let scratch = snapshots.scratch()?;
        let checkpoint = rocksdb::checkpoint::Checkpoint::new(&self.generation.db);
        let checkpoint = checkpoint.map_err(StoreError::rocks("begin a checkpoint of the state"))?;
        let made = checkpoint.create_checkpoint(scratch.path());
        made.map_err(StoreError::rocks("make a checkpoint of the state"))?;
        Ok(snapshots.checkpoint(scratch, latest.mark.clone(), latest.cluster_version))
    }

    /// Replaces the state by a snapshot, and loads it. After a crash at any point there is the old state or the new
    /// one. This value still shows the old one; its files are removed when its last clone and reader are dropped.
    pub fn install(
        &self,
        snapshot: &Snapshot,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(Self, State), StoreError> {
        let dir = &self.generation.dir;
        let old = &self.generation.remains;
        let installed = install::install(&old.folder, snapshot, |folder| {
            let new = Self::open_generation(dir, folder.to_path_buf())?;
            let (state, mark) = new.load(progress)?;
            match mark == snapshot.meta().mark {
                true => Ok((new, state)),
                false => Err(StoreError::corrupt("the snapshot", "its description belongs to another state")),
            }
        })?;
        old.is_replaced.store(true, Ordering::Release);
        Ok(installed)
    }
}

impl StateTable for RocksState {
    fn commit(&self, changes: &[Change], meta: &Meta, mark: &AppliedMark) -> Result<(), StoreError> {
        let generation = &*self.generation;
        let mut latest = generation.latest.lock();
        let mut batch = Batch { db: &generation.db, batch: WriteBatch::default() };
        rows::apply(changes, meta, mark, &mut latest.buffer, &mut batch);
        let batch = batch.batch;
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        generation.db.write_opt(batch, &options).map_err(StoreError::rocks("write to the state"))?;
        latest.mark = mark.clone();
        latest.cluster_version = meta.cluster_version;
        latest.audit_head = meta.audit_head;
        Ok(())
    }

    fn load(&self, progress: &mut dyn FnMut(LoadProgress)) -> Result<(State, AppliedMark), StoreError> {
        load(&self.generation.db, progress)
    }

    fn reader(&self) -> Arc<dyn StateReader> {
        Arc::new(self.clone())
    }
}

impl StateReader for RocksState {
    fn blob(&self, job_id: JobId, kind: BlobKind) -> Result<Option<Vec<u8>>, StoreError> {
        rows::blob(&self.generation.db, job_id, kind)
    }

    fn attestation(&self, digest: &Digest) -> Result<Option<(AttestationType, Vec<u8>)>, StoreError> {
        rows::attestation(&self.generation.db, digest)
    }

    fn answer(&self, reply_key: ReplyKey) -> Result<Option<Answer>, StoreError> {
        rows::answer(&self.generation.db, reply_key)
    }

    fn audit_after(&self, sequence: u64, records_max: usize, bytes_max: usize) -> Result<Vec<AuditRecord>, StoreError> {
        let head = self.generation.latest.lock().audit_head;
        rows::audit_after(&self.generation.db, head, sequence, records_max, bytes_max)
    }
}

/// Makes an empty database.
fn create(folder: &Path) -> Result<(), StoreError> {
    let db = open_database(folder, true)?;
    // Nothing is written yet; this makes the list of tables durable.
    db.flush().map_err(StoreError::rocks("create the state"))
}

fn open_database(folder: &Path, is_new: bool) -> Result<DB, StoreError> {
    let mut options = Options::default();
    options.create_if_missing(is_new);
    options.create_missing_column_families(is_new);
    // Without it, tables could be flushed apart from each other and from the mark.
    options.set_atomic_flush(true);
    options.set_max_background_jobs(2);
    options.set_paranoid_checks(true);
    options.set_keep_log_file_num(2);
    options.set_log_level(LogLevel::Warn);
    options.set_stats_dump_period_sec(0);
    let names = std::iter::once("default").chain(TABLES.map(Table::name));
    let tables = names.map(|name| ColumnFamilyDescriptor::new(name, table_options()));
    DB::open_cf_descriptors(&options, folder, tables).map_err(StoreError::rocks("open the state"))
}

fn table_options() -> Options {
    let mut options = Options::default();
    options.set_write_buffer_size(WRITE_BUFFER_BYTES);
    options.set_max_write_buffer_number(2);
    options.set_compression_type(DBCompressionType::Lz4);
    options
}

fn table(db: &DB, table: Table) -> &ColumnFamily {
    db.cf_handle(table.name()).expect("the database was opened with all tables, or not at all")
}

struct Batch<'a> {
    db: &'a DB,
    batch: WriteBatch,
}

impl Sink for Batch<'_> {
    fn put(&mut self, into: Table, key: &[u8], value: &[u8]) {
        self.batch.put_cf(table(self.db, into), key, value);
    }

    fn delete(&mut self, from: Table, key: &[u8]) {
        self.batch.delete_cf(table(self.db, from), key);
    }
}

impl Rows for DB {
    fn get(&self, from: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.get_cf(table(self, from), key).map_err(StoreError::rocks("read the state"))
    }

    fn scan(&self, from: Table, start: &[u8], visit: &mut Visit<'_>) -> Result<(), StoreError> {
        let mut rows = self.raw_iterator_cf(table(self, from));
        rows.seek(start);
        while let Some((key, value)) = rows.item() {
            if visit(key, value)? == ControlFlow::Break(()) {
                return Ok(());
            }
            rows.next();
        }
        // A walk that met a damaged block ends early; only its status says so.
        rows.status().map_err(StoreError::rocks("read the state"))
    }

    fn count(&self, of: Table) -> u64 {
        let estimate = self.property_int_value_cf(table(self, of), rocksdb::properties::ESTIMATE_NUM_KEYS);
        estimate.ok().flatten().unwrap_or(0)
    }
}
