//! The log table: votes and entries.
//!
//! `append` and the other writers leave their writes in RocksDB's WAL buffer; [`LogTable::sync`] makes everything that was
//! written before it durable. One thread calls it, so that one fsync serves all that came in while the one before ran.

use std::fmt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ag_core::name::{ClusterId, ReplicaId};
use ag_wire::storage::{StoredMessage, decode_message, encode_message, stored};
use bytes::Bytes;
use rocksdb::{
    ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType, DBRecoveryMode, Direction, IteratorMode, Options,
    WriteBatch,
};

use crate::error::StoreError;
use crate::folder::{DataFolder, Identity};
use crate::frame;
use crate::mark::MarkFile;

const META: &str = "meta";
const ENTRIES: &str = "entries";
const KEY_VOTE: &[u8] = b"vote";
const KEY_COMMITTED: &[u8] = b"committed";
const KEY_PURGED: &[u8] = b"purged";
const KEY_IDENTITY: &[u8] = b"identity";

/// A place in the log, with the leader that proposed it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryId {
    /// The leader's term.
    pub term: u64,
    /// The leader.
    pub replica_id: u64,
    /// From 0.
    pub log_index: u64,
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "term {} index {}", self.term, self.log_index)
    }
}

/// A vote, as it was last given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vote {
    /// In this term …
    pub term: u64,
    /// … for this replica.
    pub replica_id: u64,
    /// It is known to lead.
    pub committed: bool,
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Its place.
    pub entry_id: EntryId,
    /// What it holds.
    pub payload: Payload,
}

/// What an entry holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing: a new leader's first entry.
    Blank,
    /// Commands, as `wire` encodes them.
    Commands(Bytes),
    /// The members of the Raft group; opaque here.
    Membership(Bytes),
}

/// Where the log begins and ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogBounds {
    /// The last entry that was purged.
    pub purged: Option<EntryId>,
    /// The last entry; the last purged one if there is none after it.
    pub last: Option<EntryId>,
}

/// The log. All methods may be called from any thread; writers one at a time.
pub struct LogTable {
    db: DB,
    fsync: bool,
    bounds: Mutex<LogBounds>,
    durable: Mutex<Durable>,
}

struct Durable {
    mark: MarkFile,
    /// How often the log was truncated. A sync that began before a truncation says nothing of the entries it saw.
    truncations: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LogTable {
    /// Opens the log of a data folder. With `fsync` false nothing is made durable: only for showing that this matters.
    pub fn open(folder: &DataFolder, fsync: bool) -> Result<Self, StoreError> {
        let db = open_db(&folder.log())?;
        let mark = MarkFile::open(&folder.mark())?;
        let durable = Mutex::new(Durable { mark, truncations: 0 });
        let table = Self { db, fsync, bounds: Mutex::default(), durable };
        let bounds = table.find_bounds()?;
        *lock(&table.bounds) = bounds;
        table.check_mark(bounds)?;
        Ok(table)
    }

    fn cf(&self, name: &str) -> &ColumnFamily {
        self.db.cf_handle(name).expect("the log is opened with all of its column families")
    }

    fn find_bounds(&self) -> Result<LogBounds, StoreError> {
        let purged = self.entry_id_at(KEY_PURGED)?;
        let mut last = purged;
        let newest = self.db.iterator_cf(self.cf(ENTRIES), IteratorMode::From(&[0xff; 9], Direction::Reverse)).next();
        if let Some(item) = newest {
            let (key, value) = item.map_err(StoreError::rocks("read the end of the log"))?;
            let entry = decode_entry(&key, &value)?;
            last = last.max(Some(entry.entry_id));
        }
        Ok(LogBounds { purged, last })
    }

    /// The log must reach the mark, and hold there what it held then.
    fn check_mark(&self, bounds: LogBounds) -> Result<(), StoreError> {
        let Some(durable) = lock(&self.durable).mark.get() else { return Ok(()) };
        let end = bounds.last.unwrap_or_default();
        if bounds.purged.is_some_and(|purged| purged.log_index >= durable.log_index) {
            return Ok(());
        }
        if bounds.last.is_none_or(|last| last.log_index < durable.log_index) {
            return Err(StoreError::LogLostEntries { durable, end });
        }
        match self.read(durable.log_index, durable.log_index + 1, u64::MAX)?.first() {
            Some(entry) if entry.entry_id == durable => Ok(()),
            _ => Err(StoreError::LogLostEntries { durable, end }),
        }
    }

    /// Where the log begins and ends.
    pub fn bounds(&self) -> LogBounds {
        *lock(&self.bounds)
    }

    /// Writes entries that follow the last one. Readable at once; durable after the next sync.
    pub fn append(&self, entries: &[LogEntry]) -> Result<(), StoreError> {
        let Some(newest) = entries.last() else { return Ok(()) };
        let mut batch = WriteBatch::default();
        for entry in entries {
            let key = entry.entry_id.log_index.to_be_bytes();
            batch.put_cf(self.cf(ENTRIES), key, encode_entry(&key, entry));
        }
        self.db.write(batch).map_err(StoreError::rocks("append to the log"))?;
        lock(&self.bounds).last = Some(newest.entry_id);
        Ok(())
    }

    /// Makes everything durable that was written before.
    pub fn sync(&self) -> Result<(), StoreError> {
        let (last, truncations) = {
            let durable = lock(&self.durable);
            (self.bounds().last, durable.truncations)
        };
        if !self.fsync {
            return self.db.flush_wal(false).map_err(StoreError::rocks("write the log"));
        }
        self.db.flush_wal(true).map_err(StoreError::rocks("sync the log"))?;
        let mut durable = lock(&self.durable);
        if durable.truncations == truncations {
            durable.mark.set(last)?;
        }
        Ok(())
    }

    /// Removes all entries after this index; all entries for `None`. Durable after the next sync.
    pub fn truncate_after(&self, log_index: Option<u64>) -> Result<(), StoreError> {
        let keep = match log_index {
            None => self.bounds().purged,
            Some(log_index) => match self.bounds().purged {
                Some(purged) if purged.log_index >= log_index => Some(purged),
                _ => self.read(log_index, log_index + 1, u64::MAX)?.first().map(|entry| entry.entry_id),
            },
        };
        {
            let mut durable = lock(&self.durable);
            durable.truncations += 1;
            if durable.mark.get() > keep || durable.mark.get().is_some_and(|mark| Some(mark.log_index) > log_index) {
                durable.mark.set(keep)?;
                durable.mark.sync()?;
            }
        }
        let first = keep.map_or(0, |keep| keep.log_index + 1);
        let mut batch = WriteBatch::default();
        batch.delete_range_cf(self.cf(ENTRIES), first.to_be_bytes(), u64::MAX.to_be_bytes());
        self.db.write(batch).map_err(StoreError::rocks("truncate the log"))?;
        lock(&self.bounds).last = keep;
        Ok(())
    }

    /// Removes all entries up to and including this one. A purge that is lost in a crash only leaves entries behind.
    pub fn purge(&self, upto: EntryId) -> Result<(), StoreError> {
        let bounds = self.bounds();
        if bounds.purged.is_some_and(|purged| purged.log_index >= upto.log_index) {
            return Ok(());
        }
        let first = bounds.purged.map_or(0, |purged| purged.log_index + 1);
        let mut batch = WriteBatch::default();
        batch.put_cf(self.cf(META), KEY_PURGED, seal_message(KEY_PURGED, &to_stored(upto)));
        batch.delete_range_cf(self.cf(ENTRIES), first.to_be_bytes(), (upto.log_index + 1).to_be_bytes());
        self.db.write(batch).map_err(StoreError::rocks("purge the log"))?;
        let mut bounds = lock(&self.bounds);
        bounds.purged = Some(upto);
        if bounds.last.is_none_or(|last| last.log_index < upto.log_index) {
            bounds.last = Some(upto);
        }
        Ok(())
    }

    /// Entries from `from` up to, without, `to`: as many as fit in `bytes_max`, at least one. Stops at the end of the log; an
    /// entry that is missing before it is an error.
    pub fn read(&self, from: u64, to: u64, bytes_max: u64) -> Result<Vec<LogEntry>, StoreError> {
        let bounds = self.bounds();
        let first = bounds.purged.map_or(0, |purged| purged.log_index + 1);
        let mut entries = Vec::new();
        let mut bytes = 0;
        let mut expected = from.max(first);
        let start = expected.to_be_bytes();
        for item in self.db.iterator_cf(self.cf(ENTRIES), IteratorMode::From(&start, Direction::Forward)) {
            let (key, value) = item.map_err(StoreError::rocks("read the log"))?;
            if *key >= *to.to_be_bytes().as_slice() {
                break;
            }
            let entry = decode_entry(&key, &value)?;
            if entry.entry_id.log_index != expected {
                return Err(StoreError::EntryMissing { log_index: expected });
            }
            bytes += value.len() as u64;
            if bytes > bytes_max && !entries.is_empty() {
                return Ok(entries);
            }
            expected += 1;
            entries.push(entry);
        }
        let end = bounds.last.map_or(0, |last| last.log_index + 1).min(to);
        if expected < end {
            return Err(StoreError::EntryMissing { log_index: expected });
        }
        Ok(entries)
    }

    /// Writes the vote. It must be synced before anyone is told.
    pub fn save_vote(&self, vote: Vote) -> Result<(), StoreError> {
        let Vote { term, replica_id, committed } = vote;
        self.put_meta(KEY_VOTE, &stored::VoteRow { term, replica_id, committed })
    }

    /// The last vote.
    pub fn vote(&self) -> Result<Option<Vote>, StoreError> {
        let row: Option<stored::VoteRow> = self.get_meta(KEY_VOTE)?;
        Ok(row.map(|row| Vote { term: row.term, replica_id: row.replica_id, committed: row.committed }))
    }

    /// Writes how far the log is known to be committed. It rides on the next sync.
    pub fn save_committed(&self, committed: EntryId) -> Result<(), StoreError> {
        self.put_meta(KEY_COMMITTED, &to_stored(committed))
    }

    /// How far the log was known to be committed.
    pub fn committed(&self) -> Result<Option<EntryId>, StoreError> {
        self.entry_id_at(KEY_COMMITTED)
    }

    /// Writes whose data folder this is. To be synced.
    pub fn save_identity(&self, identity: Identity) -> Result<(), StoreError> {
        let cluster_id = identity.cluster_id.0.to_vec().into();
        self.put_meta(KEY_IDENTITY, &stored::IdentityRow { cluster_id, replica_id: identity.replica_id.0 })
    }

    /// Whose data folder this is; `None`: nobody's yet.
    pub fn identity(&self) -> Result<Option<Identity>, StoreError> {
        let Some(row) = self.get_meta::<stored::IdentityRow>(KEY_IDENTITY)? else { return Ok(None) };
        let bytes = <[u8; 16]>::try_from(&*row.cluster_id);
        let bytes =
            bytes.map_err(|_| StoreError::Corrupt { table: META, what: "cluster_id has not 16 bytes".into() })?;
        Ok(Some(Identity { cluster_id: ClusterId(bytes), replica_id: ReplicaId(row.replica_id) }))
    }

    fn entry_id_at(&self, key: &[u8]) -> Result<Option<EntryId>, StoreError> {
        Ok(self.get_meta::<stored::EntryId>(key)?.map(from_stored))
    }

    fn put_meta(&self, key: &[u8], message: &impl StoredMessage) -> Result<(), StoreError> {
        let sealed = seal_message(key, message);
        self.db.put_cf(self.cf(META), key, sealed).map_err(StoreError::rocks("write to the log's meta table"))
    }

    fn get_meta<M: StoredMessage + Default>(&self, key: &[u8]) -> Result<Option<M>, StoreError> {
        let value = self.db.get_pinned_cf(self.cf(META), key);
        let Some(sealed) = value.map_err(StoreError::rocks("read the log's meta table"))? else { return Ok(None) };
        decode_message(frame::open(META, key, &sealed)?).map(Some).map_err(StoreError::decode(META))
    }
}

fn open_db(path: &Path) -> Result<DB, StoreError> {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_manual_wal_flush(true);
    // A torn tail was never acknowledged; damage before it refuses. A tail that is missing altogether, the mark finds.
    options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
    options.set_max_total_wal_size(256 << 20);
    options.set_max_background_jobs(2);
    options.set_keep_log_file_num(4);
    options.set_paranoid_checks(true);
    let mut entries = Options::default();
    entries.set_write_buffer_size(64 << 20);
    entries.set_compression_type(DBCompressionType::Lz4);
    let families = [
        ColumnFamilyDescriptor::new(META, Options::default()),
        ColumnFamilyDescriptor::new(ENTRIES, entries),
        ColumnFamilyDescriptor::new("default", Options::default()),
    ];
    DB::open_cf_descriptors(&options, path, families).map_err(StoreError::rocks("open the log"))
}

fn seal_message(key: &[u8], message: &impl StoredMessage) -> Vec<u8> {
    frame::seal(key, &encode_message(message))
}

pub(crate) fn to_stored(place: EntryId) -> stored::EntryId {
    stored::EntryId { term: place.term, replica_id: place.replica_id, log_index: place.log_index }
}

pub(crate) fn from_stored(row: stored::EntryId) -> EntryId {
    EntryId { term: row.term, replica_id: row.replica_id, log_index: row.log_index }
}

const ENTRY_FORMAT: u8 = 1;
const ENTRY_HEAD_BYTES: usize = 1 + 8 + 8 + 1;

/// CRC, then: format, term, leader, kind, bytes.
fn encode_entry(key: &[u8], entry: &LogEntry) -> Vec<u8> {
    let (kind, bytes): (u8, &[u8]) = match &entry.payload {
        Payload::Blank => (0, &[]),
        Payload::Commands(bytes) => (1, bytes),
        Payload::Membership(bytes) => (2, bytes),
    };
    let mut value = Vec::with_capacity(ENTRY_HEAD_BYTES + bytes.len());
    value.push(ENTRY_FORMAT);
    value.extend_from_slice(&entry.entry_id.term.to_be_bytes());
    value.extend_from_slice(&entry.entry_id.replica_id.to_be_bytes());
    value.push(kind);
    value.extend_from_slice(bytes);
    frame::seal(key, &value)
}

fn decode_entry(key: &[u8], sealed: &[u8]) -> Result<LogEntry, StoreError> {
    let corrupt = |what: &str| StoreError::Corrupt { table: ENTRIES, what: what.into() };
    let log_index = <[u8; 8]>::try_from(key).map(u64::from_be_bytes).map_err(|_| corrupt("a key has not 8 bytes"))?;
    let value = frame::open(ENTRIES, key, sealed)?;
    let (head, bytes) =
        value.split_first_chunk::<ENTRY_HEAD_BYTES>().ok_or_else(|| corrupt("an entry is too short"))?;
    let number = |at: usize| head[at..].first_chunk::<8>().copied().map_or(0, u64::from_be_bytes);
    if head[0] != ENTRY_FORMAT {
        return Err(corrupt(&format!("entry {log_index} has format {}", head[0])));
    }
    let bytes = Bytes::copy_from_slice(bytes);
    let payload = match head[ENTRY_HEAD_BYTES - 1] {
        0 => Payload::Blank,
        1 => Payload::Commands(bytes),
        2 => Payload::Membership(bytes),
        kind => return Err(corrupt(&format!("entry {log_index} has kind {kind}"))),
    };
    Ok(LogEntry { entry_id: EntryId { term: number(1), replica_id: number(9), log_index }, payload })
}
