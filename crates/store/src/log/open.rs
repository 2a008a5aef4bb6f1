//! Opening the log, and noticing at that what it has lost.

use std::path::Path;

use ag_wire::storage::{DecodeError, EntryId, FORMAT, Vote, decode_entry_id, decode_vote};
use rocksdb::{ColumnFamilyDescriptor, DB, DBRecoveryMode, Direction, IteratorMode, LogLevel, Options};

use super::entry::{Head, key};
use super::mark::{Mark, MarkFile};
use super::table::Tail;
use crate::StoreError;
use crate::seal::{Table, seal, unseal};

/// The table of entries.
pub const ENTRIES: &str = "logs";
/// The table of single values.
pub const META: &str = "meta";
/// The key of the last purged entry among them.
pub const PURGED: &[u8] = b"purged";
/// The key of the first entry of a log that was never purged. Without it, the loss of the first ones would show
/// nothing.
pub const BEGIN: &[u8] = b"begin";
/// The key of the vote.
pub const VOTE: &[u8] = b"vote";
/// The key of the row that a log begins with: the format.
const CREATED: &[u8] = b"format";

const WRITE_BUFFER_BYTES: usize = 32 << 20;
const WAL_BYTES_MAX: u64 = 256 << 20;

/// Opens the database and the mark, and checks one against the other.
pub fn open(shard: &Path) -> Result<(DB, MarkFile, Tail), StoreError> {
    let (folder, mark_path) = (shard.join("log"), shard.join("mark"));
    let exists = folder.join("CURRENT").exists();
    match (mark_path.exists(), exists) {
        // The mark comes first, so a log without one has lost it.
        (false, true) => return Err(StoreError::corrupt(mark_path.display().to_string(), "it is missing")),
        (false, false) => MarkFile::create(&mark_path)?,
        (true, _) => {}
    }
    let mut mark = MarkFile::open(&mark_path)?;
    let is_new = mark.mark() == Mark::default();
    if !exists && !is_new {
        return Err(lost(mark.mark(), None, 0));
    }
    let db = open_database(&folder, is_new)?;
    let tail = find_ends(&db)?;
    check_mark(&db, &tail, mark.mark())?;
    if is_new {
        // From now on the tables exist for certain, and the mark says so: a log without them has lost them.
        let mut format = vec![FORMAT];
        seal(Table::LogMeta, CREATED, &mut format);
        db.put_cf(table(&db, META)?, CREATED, format).map_err(StoreError::rocks("write to the log"))?;
        db.flush_wal(true).map_err(StoreError::rocks("sync the log"))?;
        mark.write(Mark { write_number: db.latest_sequence_number(), last: tail.last, vote: tail.vote })?;
        mark.sync()?;
    }
    Ok((db, mark, tail))
}

fn open_database(folder: &Path, is_new: bool) -> Result<DB, StoreError> {
    let mut options = Options::default();
    options.create_if_missing(is_new);
    options.create_missing_column_families(is_new);
    options.set_manual_wal_flush(true);
    // A torn last record is what a power cut leaves, and opens. Damage further up refuses to open; the default mode
    // would silently drop all that follows it.
    options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
    options.set_track_and_verify_wals_in_manifest(true);
    options.set_max_total_wal_size(WAL_BYTES_MAX);
    options.set_max_background_jobs(2);
    options.set_paranoid_checks(true);
    options.set_keep_log_file_num(2);
    options.set_log_level(LogLevel::Warn);
    options.set_stats_dump_period_sec(0);
    let tables = ["default", META, ENTRIES].map(|name| ColumnFamilyDescriptor::new(name, table_options()));
    DB::open_cf_descriptors(&options, folder, tables).map_err(StoreError::rocks("open the log"))
}

fn table_options() -> Options {
    let mut options = Options::default();
    options.set_write_buffer_size(WRITE_BUFFER_BYTES);
    options.set_max_write_buffer_number(2);
    options
}

/// First and last entry. Seeks past what was purged, where tombstones would make a walk slow.
fn find_ends(db: &DB) -> Result<Tail, StoreError> {
    let purged = single(db, PURGED, decode_entry_id)?;
    let begin = match purged {
        Some(purged) => Some(purged.log_index() + 1),
        None => single(db, BEGIN, decode_entry_id)?.map(|begin| begin.log_index()),
    };
    let first = head_at(db, IteratorMode::From(&key(begin.unwrap_or(0)), Direction::Forward))?;
    let first_index = first.map(|first| first.entry_id.log_index());
    if first_index.is_some() && first_index != begin {
        let what = format!("log entry {}", begin.unwrap_or(0));
        return Err(StoreError::corrupt(what, "it is missing"));
    }
    let last = if first.is_some() { head_at(db, IteratorMode::End)? } else { None };
    Ok(Tail {
        first_index,
        last: last.map(|last| last.entry_id).or(purged),
        link: last.map_or(0, |last| last.checksum),
        purged,
        vote: single(db, VOTE, decode_vote)?,
    })
}

fn head_at(db: &DB, mode: IteratorMode<'_>) -> Result<Option<Head>, StoreError> {
    let Some(found) = db.iterator_cf(table(db, ENTRIES)?, mode).next() else {
        return Ok(None);
    };
    let (found_key, value) = found.map_err(StoreError::rocks("read the log"))?;
    Head::decode(index_of(&found_key)?, &value).map(Some)
}

/// Compares what is there with what was reported durable.
fn check_mark(db: &DB, tail: &Tail, mark: Mark) -> Result<(), StoreError> {
    let found_write = db.latest_sequence_number();
    let ends_before = tail.last.map(|last| last.log_index()) < mark.last.map(|last| last.log_index());
    let rank = |vote: Vote| (vote.term, vote.replica_id);
    let voted_before = tail.vote.map(rank) < mark.vote.map(rank);
    if ends_before || voted_before || found_write < mark.write_number {
        return Err(lost(mark, tail.last, found_write));
    }
    // At most the place of the mark can show an entry that a truncation, which was lost, had removed.
    if let (Some(marked), Some(first)) = (mark.last, tail.first_index)
        && marked.log_index() >= first
    {
        let found = head_at(db, IteratorMode::From(&key(marked.log_index()), Direction::Forward))?;
        let found = found.map(|found| found.entry_id);
        if found != Some(marked) {
            return Err(lost(mark, found, found_write));
        }
    }
    Ok(())
}

fn lost(mark: Mark, found: Option<EntryId>, found_write: u64) -> StoreError {
    StoreError::LogLostEntries { marked: mark.last, found, marked_write: mark.write_number, found_write }
}

/// A single value of the log.
pub fn single<T>(db: &DB, name: &[u8], decode: fn(&[u8]) -> Result<T, DecodeError>) -> Result<Option<T>, StoreError> {
    let sealed = db.get_pinned_cf(table(db, META)?, name).map_err(StoreError::rocks("read the log"))?;
    let Some(sealed) = sealed else { return Ok(None) };
    let value = unseal(Table::LogMeta, name, &sealed)?;
    decode(value).map(Some).map_err(StoreError::decode(Table::LogMeta.row(name)))
}

/// The table with this name.
pub fn table<'a>(db: &'a DB, name: &str) -> Result<&'a rocksdb::ColumnFamily, StoreError> {
    db.cf_handle(name).ok_or_else(|| StoreError::corrupt(format!("table {name} of the log"), "it is missing"))
}

/// The index that a key says.
pub fn index_of(found: &[u8]) -> Result<u64, StoreError> {
    let wrong = |_| StoreError::corrupt("the log", "a key is not 8 bytes long");
    found.try_into().map(u64::from_be_bytes).map_err(wrong)
}
