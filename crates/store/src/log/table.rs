//! The log table.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use ag_wire::storage::{
    EntryId, Identity, Vote, decode_entry_id, decode_identity, decode_vote, encode_entry_id, encode_identity,
    encode_vote,
};
use parking_lot::Mutex;
use rocksdb::{DB, Direction, IteratorMode, ReadOptions, WriteBatch, WriteOptions};

use super::LogEntry;
use super::entry::{Head, key};
use super::mark::{Mark, MarkFile};
use super::open::{BEGIN, ENTRIES, META, PURGED, VOTE, index_of, open, single, table};
use crate::seal::{Table, seal};
use crate::{DataDir, StoreError};

const COMMITTED: &[u8] = b"committed";
const IDENTITY: &[u8] = b"identity";

/// The log and what belongs to it.
///
/// Writes are readable at once, but durable, and to be acknowledged, only after the next [`LogTable::sync`]. All go
/// through one write-ahead log, so they become durable in the order in which they were made. Writes come from one
/// thread at a time, `sync` and reads from any.
#[derive(Debug)]
pub struct LogTable {
    db: DB,
    ends: Mutex<Ends>,
    mark: Mutex<MarkFile>,
    /// A sync has failed.
    latched: AtomicBool,
    dir: DataDir,
}

/// Both ends of the log.
#[derive(Clone, Copy, Debug)]
pub struct Tail {
    /// The index of the first entry; `None`: there is no entry.
    pub first_index: Option<u64>,
    /// The last entry, or the last purged one if there is none.
    pub last: Option<EntryId>,
    /// The checksum of the last entry, which the next one is linked to; 0 if there is none.
    pub link: u32,
    /// The last purged entry.
    pub purged: Option<EntryId>,
    /// The vote that was kept last.
    pub vote: Option<Vote>,
}

#[derive(Debug)]
struct Ends {
    tail: Tail,
    /// How often the log was truncated: a sync that was under way then must not lift the mark again.
    truncations: u64,
    /// For encoding.
    buffer: Vec<u8>,
}

impl LogTable {
    /// Opens the log of a data directory. [`StoreError::LogLostEntries`]: the replica must not vote any more.
    pub(crate) fn open(dir: &DataDir) -> Result<Self, StoreError> {
        let (db, mark, tail) = open(&dir.shard())?;
        let ends = Ends { tail, truncations: 0, buffer: Vec::new() };
        let latched = AtomicBool::new(false);
        Ok(Self { db, ends: Mutex::new(ends), mark: Mutex::new(mark), latched, dir: dir.clone() })
    }

    /// The last entry, or the last purged one if there is none.
    pub fn last(&self) -> Option<EntryId> {
        self.ends.lock().tail.last
    }

    /// The last purged entry.
    pub fn purged(&self) -> Option<EntryId> {
        self.ends.lock().tail.purged
    }

    /// The indexes of the entries that there are.
    pub fn indexes(&self) -> Range<u64> {
        let tail = self.ends.lock().tail;
        match (tail.first_index, tail.last) {
            (Some(first), Some(last)) => first..last.log_index() + 1,
            _ => 0..0,
        }
    }

    /// Whether the log can bring a state up to date that has applied it up to `applied`, or a snapshot up to
    /// `snapshot`.
    pub fn check_replayable(&self, applied: Option<EntryId>, snapshot: Option<EntryId>) -> Result<(), StoreError> {
        let (applied, purged) = (applied.max(snapshot), self.purged());
        match applied.map(|applied| applied.log_index()) >= purged.map(|purged| purged.log_index()) {
            true => Ok(()),
            false => Err(StoreError::StateBehindLog { applied, purged }),
        }
    }

    /// Appends entries, whose indexes follow the last one's. Durable after the next sync.
    pub fn append(&self, entries: &[LogEntry]) -> Result<(), StoreError> {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            return Ok(());
        };
        let mut ends = self.ends.lock();
        let next = ends.tail.last.map_or(first.entry_id.log_index(), |last| last.log_index() + 1);
        let logs = table(&self.db, ENTRIES)?;
        let mut batch = WriteBatch::default();
        let mut link = ends.tail.link;
        for (expected, entry) in (next..).zip(entries) {
            let found = entry.entry_id.log_index();
            if found != expected {
                return Err(StoreError::NotContiguous { expected, found });
            }
            link = entry.encode(link, &mut ends.buffer);
            batch.put_cf(logs, key(found), &ends.buffer);
        }
        if ends.tail.first_index.is_none() && ends.tail.purged.is_none() {
            batch.put_cf(table(&self.db, META)?, BEGIN, sealed(BEGIN, |value| encode_entry_id(&first.entry_id, value)));
        }
        self.write(batch)?;
        ends.tail.first_index.get_or_insert(first.entry_id.log_index());
        ends.tail.last = Some(last.entry_id);
        ends.tail.link = link;
        Ok(())
    }

    /// Makes all writes so far durable, then lifts the mark. After an error it always fails: a second sync could
    /// falsely succeed.
    pub fn sync(&self) -> Result<(), StoreError> {
        if self.latched.load(Ordering::Acquire) {
            return Err(StoreError::Latched);
        }
        let synced = self.sync_and_mark();
        if synced.is_err() {
            self.latched.store(true, Ordering::Release);
        }
        synced
    }

    fn sync_and_mark(&self) -> Result<(), StoreError> {
        let (truncations, mark) = {
            let ends = self.ends.lock();
            let Tail { last, vote, .. } = ends.tail;
            (ends.truncations, Mark { write_number: self.db.latest_sequence_number(), last, vote })
        };
        let fsync = self.dir.options().fsync;
        self.db.flush_wal(fsync).map_err(StoreError::rocks("sync the log"))?;
        if !fsync {
            // Nothing is durable, so nothing is said to be.
            return Ok(());
        }
        let mut file = self.mark.lock();
        let is_current = self.ends.lock().truncations == truncations;
        if is_current && file.mark() != mark && mark.write_number >= file.mark().write_number {
            file.write(mark)?;
        }
        Ok(())
    }

    /// Removes all entries after `log_index`, or all. Durable after the next sync, which the caller waits for.
    pub fn truncate_after(&self, log_index: Option<u64>) -> Result<(), StoreError> {
        let start = log_index.map_or(0, |log_index| log_index + 1);
        let indexes = self.indexes();
        if start >= indexes.end {
            return Ok(());
        }
        let start = start.max(indexes.start);
        let head = if start > indexes.start { Some(self.head(start - 1)?) } else { None };
        let remaining = head.map_or(self.purged(), |head| Some(head.entry_id));
        // The mark goes down first: a crash in between must not look like a loss. It is held until the end, so that no
        // sync lifts it again by what it saw before.
        let mut file = self.mark.lock();
        let mark = file.mark();
        if mark.last.map(|last| last.log_index()) > remaining.map(|last| last.log_index()) {
            file.write(Mark { last: remaining, ..mark })?;
            file.sync()?;
        }
        let mut batch = WriteBatch::default();
        batch.delete_range_cf(table(&self.db, ENTRIES)?, key(start), key(indexes.end));
        self.write(batch)?;
        let mut ends = self.ends.lock();
        ends.truncations += 1;
        ends.tail.last = remaining;
        ends.tail.link = head.map_or(0, |head| head.checksum);
        if start == indexes.start {
            ends.tail.first_index = None;
        }
        Ok(())
    }

    /// Removes all entries up to `upto`, which may lie after the last one. Needs no sync: at worst they come back.
    pub fn purge(&self, upto: EntryId) -> Result<(), StoreError> {
        let mut ends = self.ends.lock();
        if ends.tail.purged.is_some_and(|purged| purged.log_index() >= upto.log_index()) {
            return Ok(());
        }
        let end = upto.log_index() + 1;
        let mut batch = WriteBatch::default();
        batch.put_cf(table(&self.db, META)?, PURGED, sealed(PURGED, |value| encode_entry_id(&upto, value)));
        if let Some(first) = ends.tail.first_index.filter(|first| *first < end) {
            batch.delete_range_cf(table(&self.db, ENTRIES)?, key(first), key(end));
        }
        self.write(batch)?;
        let tail = &mut ends.tail;
        tail.purged = Some(upto);
        if tail.last.is_none_or(|last| last.log_index() <= upto.log_index()) {
            tail.last = Some(upto);
            tail.link = 0;
            tail.first_index = None;
        } else if tail.first_index.is_some_and(|first| first < end) {
            tail.first_index = Some(end);
        }
        Ok(())
    }

    /// The entries of `range` that there are, in order, up to `bytes_max`, but at least one. One that is damaged or
    /// missing, or does not follow the one before it, is an error.
    pub fn read(&self, range: Range<u64>, bytes_max: usize) -> Result<Vec<LogEntry>, StoreError> {
        let indexes = self.indexes();
        let range = range.start.max(indexes.start)..range.end.min(indexes.end);
        let mut entries = Vec::new();
        if range.is_empty() {
            return Ok(entries);
        }
        // The one before is read too, if it is there, for the link of the first.
        let begin = range.start.saturating_sub(1).max(indexes.start);
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(key(range.end).to_vec());
        let start = key(begin);
        let from = IteratorMode::From(&start, Direction::Forward);
        let mut rows = self.db.iterator_cf_opt(table(&self.db, ENTRIES)?, options, from);
        let (mut bytes, mut link) = (0, None);
        for log_index in begin..range.end {
            let row = rows.next().ok_or_else(|| missing(log_index))?;
            let (found, value) = row.map_err(StoreError::rocks("read the log"))?;
            if index_of(&found)? != log_index {
                return Err(missing(log_index));
            }
            let head = Head::decode(log_index, &value)?;
            if link.is_some_and(|link| head.link != link) {
                let what = format!("log entry {log_index}");
                return Err(StoreError::corrupt(what, "it does not follow the entry before it"));
            }
            link = Some(head.checksum);
            if log_index < range.start {
                continue;
            }
            let entry = head.with_payload(value);
            bytes += entry.bytes();
            if bytes > bytes_max && !entries.is_empty() {
                break;
            }
            entries.push(entry);
        }
        Ok(entries)
    }

    /// Which entry stands at `log_index`; `None` if there is none, the last purged one aside.
    pub fn entry_id(&self, log_index: u64) -> Result<Option<EntryId>, StoreError> {
        let tail = self.ends.lock().tail;
        let known = [tail.last, tail.purged].into_iter().flatten().find(|known| known.log_index() == log_index);
        if known.is_some() || !self.indexes().contains(&log_index) {
            return Ok(known);
        }
        self.head(log_index).map(|head| Some(head.entry_id))
    }

    fn head(&self, log_index: u64) -> Result<Head, StoreError> {
        let value = self.db.get_pinned_cf(table(&self.db, ENTRIES)?, key(log_index));
        let value = value.map_err(StoreError::rocks("read the log"))?;
        Head::decode(log_index, &value.ok_or_else(|| missing(log_index))?)
    }

    /// Keeps a vote. It counts only after the next sync, which the caller waits for.
    pub fn save_vote(&self, vote: &Vote) -> Result<(), StoreError> {
        let mut ends = self.ends.lock();
        self.put(VOTE, |value| encode_vote(vote, value))?;
        ends.tail.vote = Some(*vote);
        Ok(())
    }

    /// The vote that was kept last.
    pub fn vote(&self) -> Result<Option<Vote>, StoreError> {
        single(&self.db, VOTE, decode_vote)
    }

    /// Keeps how far the log is known to be committed. Needs no sync.
    pub fn save_committed(&self, committed: &EntryId) -> Result<(), StoreError> {
        self.put(COMMITTED, |value| encode_entry_id(committed, value))
    }

    /// How far the log was last known to be committed.
    pub fn committed(&self) -> Result<Option<EntryId>, StoreError> {
        single(&self.db, COMMITTED, decode_entry_id)
    }

    /// Gives the data directory to a replica, durably and for good.
    pub fn set_identity(&self, wanted: &Identity) -> Result<(), StoreError> {
        match self.identity()? {
            Some(found) if found == *wanted => Ok(()),
            Some(found) => Err(StoreError::OtherIdentity {
                found: found.replica_id.0,
                found_cluster: found.cluster_id.to_string(),
                wanted: wanted.replica_id.0,
                wanted_cluster: wanted.cluster_id.to_string(),
            }),
            None => {
                self.put(IDENTITY, |value| encode_identity(wanted, value))?;
                self.sync()
            }
        }
    }

    /// Whose data directory this is; `None`: nobody's yet.
    pub fn identity(&self) -> Result<Option<Identity>, StoreError> {
        single(&self.db, IDENTITY, decode_identity)
    }

    fn put(&self, name: &[u8], encode: impl FnOnce(&mut Vec<u8>)) -> Result<(), StoreError> {
        let mut batch = WriteBatch::default();
        batch.put_cf(table(&self.db, META)?, name, sealed(name, encode));
        self.write(batch)
    }

    fn write(&self, batch: WriteBatch) -> Result<(), StoreError> {
        if self.latched.load(Ordering::Acquire) {
            return Err(StoreError::Latched);
        }
        self.db.write_opt(batch, &WriteOptions::default()).map_err(StoreError::rocks("write to the log"))
    }
}

/// A single value as it is stored.
fn sealed(name: &[u8], encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut value = Vec::new();
    encode(&mut value);
    seal(Table::LogMeta, name, &mut value);
    value
}

fn missing(log_index: u64) -> StoreError {
    StoreError::corrupt(format!("log entry {log_index}"), "it is missing")
}
