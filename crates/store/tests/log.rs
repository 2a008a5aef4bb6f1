//! The log: what is appended, cut off, purged and kept, and that a loss is noticed.

// A helper of a test that unwraps fails the test with the right line.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;

use ag_core::name::{ClusterId, ReplicaId};
use ag_store::{EntryId, Identity, LogEntry, LogTable, StoreError, StoreOptions, Vote};
use bytes::Bytes;
use support::{copy, open};

fn entry(term: u64, log_index: u64) -> LogEntry {
    let payload = Bytes::from(format!("entry {term}/{log_index}").repeat(1 + (log_index % 7) as usize));
    LogEntry { entry_id: EntryId::new(term, 1, log_index), kind: (log_index % 3) as u8, payload }
}

fn entries(term: u64, indexes: std::ops::Range<u64>) -> Vec<LogEntry> {
    indexes.map(|log_index| entry(term, log_index)).collect()
}

fn read_all(log: &LogTable) -> Vec<LogEntry> {
    log.read(0..u64::MAX, usize::MAX).unwrap()
}

fn vote(term: u64) -> Vote {
    Vote { term, replica_id: ReplicaId(2), committed: term.is_multiple_of(2) }
}

#[test]
fn what_was_appended_is_read_and_survives() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path()).log().unwrap();
    assert_eq!((log.last(), log.purged(), log.vote().unwrap(), log.indexes()), (None, None, None, 0..0));
    assert_eq!(read_all(&log), []);
    log.append(&entries(1, 0..100)).unwrap();
    // Readable at once, durable after the sync.
    assert_eq!(read_all(&log), entries(1, 0..100));
    log.save_vote(&vote(4)).unwrap();
    log.save_committed(&entry(1, 50).entry_id).unwrap();
    log.sync().unwrap();
    drop(log);

    let log = open(folder.path()).log().unwrap();
    assert_eq!(read_all(&log), entries(1, 0..100));
    assert_eq!(log.read(40..43, usize::MAX).unwrap(), entries(1, 40..43));
    assert_eq!(log.indexes(), 0..100);
    assert_eq!(log.last(), Some(entry(1, 99).entry_id));
    assert_eq!(log.entry_id(17).unwrap(), Some(entry(1, 17).entry_id));
    assert_eq!(log.entry_id(100).unwrap(), None);
    assert_eq!(log.vote().unwrap(), Some(vote(4)));
    assert_eq!(log.committed().unwrap(), Some(entry(1, 50).entry_id));
}

#[test]
fn a_read_is_bounded_in_bytes_but_never_empty() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path()).log().unwrap();
    log.append(&entries(1, 0..20)).unwrap();
    assert_eq!(log.read(3..20, 1).unwrap(), entries(1, 3..4));
    let bound = entries(1, 3..8).iter().map(LogEntry::bytes).sum();
    assert_eq!(log.read(3..20, bound).unwrap(), entries(1, 3..8));
    assert_eq!(log.read(3..20, bound - 1).unwrap(), entries(1, 3..7));
    assert_eq!(log.read(20..30, 100).unwrap(), []);
}

#[test]
fn entries_follow_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path()).log().unwrap();
    log.append(&entries(1, 0..5)).unwrap();
    for wrong in [entries(1, 6..7), entries(1, 4..6), vec![entry(1, 5), entry(1, 7)]] {
        let error = log.append(&wrong).unwrap_err();
        assert!(matches!(error, StoreError::NotContiguous { .. }), "{error}");
    }
    assert_eq!(read_all(&log), entries(1, 0..5));
}

#[test]
fn a_truncated_log_goes_on_with_other_entries() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path()).log().unwrap();
    log.append(&entries(1, 0..10)).unwrap();
    log.sync().unwrap();
    log.truncate_after(Some(20)).unwrap();
    assert_eq!(read_all(&log), entries(1, 0..10));
    log.truncate_after(Some(3)).unwrap();
    assert_eq!(log.last(), Some(entry(1, 3).entry_id));
    log.append(&entries(2, 4..6)).unwrap();
    log.sync().unwrap();
    let expected = [entries(1, 0..4), entries(2, 4..6)].concat();
    assert_eq!(read_all(&log), expected);
    drop(log);
    let log = open(folder.path()).log().unwrap();
    assert_eq!(read_all(&log), expected);
    log.truncate_after(None).unwrap();
    log.sync().unwrap();
    assert_eq!((log.last(), log.indexes()), (None, 0..0));
    drop(log);
    assert_eq!(open(folder.path()).log().unwrap().last(), None);
}

#[test]
fn the_mark_goes_down_before_the_log_is_truncated() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path()).log().unwrap();
    log.append(&entries(1, 0..10)).unwrap();
    log.sync().unwrap();
    let before = folder.path().join("before");
    copy(&folder.path().join("shards"), &before);
    log.truncate_after(Some(3)).unwrap();
    // No sync follows. A crash may find the truncation in the log or not, but always the lowered mark.
    let lowered = folder.path().join("shards/0/mark");
    std::fs::copy(lowered, before.join("0/mark")).unwrap();
    drop(log);
    assert_eq!(read_all(&open(folder.path()).log().unwrap()), entries(1, 0..4));

    let crashed = tempfile::tempdir().unwrap();
    drop(open(crashed.path()));
    copy(&before, &crashed.path().join("shards"));
    assert_eq!(read_all(&open(crashed.path()).log().unwrap()), entries(1, 0..10));
}

#[test]
fn a_purged_log_begins_later() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path()).log().unwrap();
    log.append(&entries(1, 0..30)).unwrap();
    log.purge(entry(1, 9).entry_id).unwrap();
    log.purge(entry(1, 4).entry_id).unwrap();
    assert_eq!(read_all(&log), entries(1, 10..30));
    assert_eq!(log.purged(), Some(entry(1, 9).entry_id));
    assert_eq!(log.entry_id(9).unwrap(), Some(entry(1, 9).entry_id));
    assert_eq!(log.entry_id(8).unwrap(), None);
    log.sync().unwrap();
    drop(log);

    let log = open(folder.path()).log().unwrap();
    assert_eq!(read_all(&log), entries(1, 10..30));
    // A snapshot may lie ahead of the log.
    log.purge(entry(3, 99).entry_id).unwrap();
    assert_eq!((log.last(), log.indexes()), (Some(entry(3, 99).entry_id), 0..0));
    log.append(&entries(3, 100..102)).unwrap();
    log.sync().unwrap();
    drop(log);
    let log = open(folder.path()).log().unwrap();
    assert_eq!(read_all(&log), entries(3, 100..102));
    assert_eq!(log.indexes(), 100..102);
}

#[test]
fn a_state_must_reach_the_begin_of_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path()).log().unwrap();
    log.check_replayable(None, None).unwrap();
    log.append(&entries(1, 0..30)).unwrap();
    log.purge(entry(1, 9).entry_id).unwrap();
    let at = |log_index| Some(entry(1, log_index).entry_id);
    for (applied, snapshot) in [(at(9), None), (at(12), None), (None, at(9)), (at(3), at(10))] {
        log.check_replayable(applied, snapshot).unwrap();
    }
    for (applied, snapshot) in [(None, None), (at(8), None), (at(3), at(8))] {
        let error = log.check_replayable(applied, snapshot).unwrap_err();
        assert!(matches!(error, StoreError::StateBehindLog { .. }), "{error}");
    }
}

#[test]
fn a_data_directory_belongs_to_one_replica() {
    let folder = tempfile::tempdir().unwrap();
    let identity = Identity { replica_id: ReplicaId(3), cluster_id: ClusterId([7; 16]) };
    let log = open(folder.path()).log().unwrap();
    assert_eq!(log.identity().unwrap(), None);
    log.set_identity(&identity).unwrap();
    drop(log);
    let log = open(folder.path()).log().unwrap();
    assert_eq!(log.identity().unwrap(), Some(identity));
    log.set_identity(&identity).unwrap();
    for other in
        [Identity { replica_id: ReplicaId(4), ..identity }, Identity { cluster_id: ClusterId([8; 16]), ..identity }]
    {
        let error = log.set_identity(&other).unwrap_err();
        assert!(matches!(error, StoreError::OtherIdentity { .. }), "{error}");
    }
}

/// A copy of `folder` whose log is as it is after all of `write`, but with its mark.
fn copy_without_last_writes(write: impl Fn(&LogTable)) -> (tempfile::TempDir, tempfile::TempDir) {
    let (folder, stale) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let log = open(folder.path()).log().unwrap();
    log.append(&entries(1, 0..10)).unwrap();
    log.save_vote(&vote(1)).unwrap();
    log.sync().unwrap();
    copy(folder.path(), stale.path());
    write(&log);
    log.sync().unwrap();
    std::fs::copy(folder.path().join("shards/0/mark"), stale.path().join("shards/0/mark")).unwrap();
    (folder, stale)
}

fn expect_loss(path: &Path) {
    let error = open(path).log().unwrap_err();
    assert!(matches!(error, StoreError::LogLostEntries { .. }), "{error}");
    assert!(error.is_corruption());
    assert!(error.to_string().contains("must not vote"), "{error}");
}

#[test]
fn a_log_that_lost_acknowledged_entries_is_noticed() {
    let (folder, stale) = copy_without_last_writes(|log| log.append(&entries(1, 10..12)).unwrap());
    expect_loss(stale.path());
    drop(folder);
}

#[test]
fn a_log_that_lost_an_acknowledged_vote_is_noticed() {
    let (_folder, stale) = copy_without_last_writes(|log| log.save_vote(&vote(2)).unwrap());
    expect_loss(stale.path());
}

#[test]
fn an_older_vote_is_noticed_however_many_writes_there_are() {
    let (folder, stale) = copy_without_last_writes(|log| log.save_vote(&vote(2)).unwrap());
    let log = open(folder.path()).log().unwrap();
    let mark = std::fs::read(folder.path().join("shards/0/mark")).unwrap();
    drop(log);
    std::fs::remove_file(stale.path().join("shards/0/mark")).unwrap();
    let fresh = tempfile::tempdir().unwrap();
    drop(open(fresh.path()).log().unwrap());
    std::fs::copy(fresh.path().join("shards/0/mark"), stale.path().join("shards/0/mark")).unwrap();
    let log = open(stale.path()).log().unwrap();
    for _ in 0..50 {
        log.save_committed(&entry(1, 0).entry_id).unwrap();
    }
    log.sync().unwrap();
    drop(log);
    std::fs::write(stale.path().join("shards/0/mark"), mark).unwrap();
    expect_loss(stale.path());
}

#[test]
fn a_log_that_is_gone_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path()).log().unwrap();
    log.append(&entries(1, 0..10)).unwrap();
    log.sync().unwrap();
    drop(log);
    let shard = folder.path().join("shards/0");
    std::fs::rename(shard.join("log"), shard.join("elsewhere")).unwrap();
    expect_loss(folder.path());
    std::fs::rename(shard.join("elsewhere"), shard.join("log")).unwrap();
    std::fs::remove_file(shard.join("mark")).unwrap();
    assert!(open(folder.path()).log().unwrap_err().is_corruption());
}

/// Two logs, the second of which still has entries that were replaced in the first.
fn replaced_and_stale() -> [tempfile::TempDir; 2] {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for folder in &folders {
        let log = open(folder.path()).log().unwrap();
        log.append(&entries(1, 0..8)).unwrap();
        log.sync().unwrap();
    }
    let log = open(folders[0].path()).log().unwrap();
    log.truncate_after(Some(3)).unwrap();
    log.append(&entries(2, 4..8)).unwrap();
    log.sync().unwrap();
    folders
}

#[test]
fn an_older_entry_at_the_place_of_the_mark_is_noticed() {
    let folders = replaced_and_stale();
    // As many writes as the mark says: only the entry itself is another.
    let log = open(folders[1].path()).log().unwrap();
    for _ in 0..50 {
        log.save_committed(&entry(1, 0).entry_id).unwrap();
    }
    log.sync().unwrap();
    drop(log);
    let mark = |number: usize| folders[number].path().join("shards/0/mark");
    std::fs::copy(mark(0), mark(1)).unwrap();
    expect_loss(folders[1].path());
}

#[test]
fn an_older_entry_between_newer_ones_is_never_served() {
    // What a database shows that has lost its newest files, but not its write-ahead log: each entry is whole.
    let folders = replaced_and_stale();
    let open_raw = |number: usize| {
        let tables = ["default", "meta", "logs"];
        rocksdb::DB::open_cf(&rocksdb::Options::default(), folders[number].path().join("shards/0/log"), tables).unwrap()
    };
    let (replaced, stale) = (open_raw(0), open_raw(1));
    let key = 5_u64.to_be_bytes();
    let older = stale.get_cf(stale.cf_handle("logs").unwrap(), key).unwrap().unwrap();
    replaced.put_cf(replaced.cf_handle("logs").unwrap(), key, older).unwrap();
    drop(replaced);
    let log = open(folders[0].path()).log().unwrap();
    for range in [0..8, 5..6, 6..7] {
        let error = log.read(range.clone(), usize::MAX).unwrap_err();
        assert!(error.to_string().contains("does not follow"), "{range:?}: {error}");
    }
    assert_eq!(log.read(0..5, usize::MAX).unwrap(), [entries(1, 0..4), entries(2, 4..5)].concat());
    assert_eq!(log.read(7..8, usize::MAX).unwrap(), entries(2, 7..8));
}

#[test]
fn entries_that_nobody_acknowledged_may_be_lost() {
    let (folder, crashed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let log = open(folder.path()).log().unwrap();
    log.append(&entries(1, 0..10)).unwrap();
    log.sync().unwrap();
    log.append(&entries(1, 10..20)).unwrap();
    copy(folder.path(), crashed.path());
    let found = read_all(&open(crashed.path()).log().unwrap());
    assert_eq!(found[..10], entries(1, 0..10));
    assert_eq!(found, entries(1, 0..found.len() as u64));
}

#[test]
fn without_fsync_nothing_is_claimed_to_be_durable() {
    let folder = tempfile::tempdir().unwrap();
    let dir = ag_store::DataDir::open(folder.path(), StoreOptions { fsync: false }).unwrap();
    let log = dir.log().unwrap();
    let mark = || std::fs::read(folder.path().join("shards/0/mark")).unwrap();
    let before = mark();
    log.append(&entries(1, 0..10)).unwrap();
    log.sync().unwrap();
    assert_eq!(mark(), before);
    drop((log, dir));
    let log = open(folder.path()).log().unwrap();
    log.append(&entries(1, 10..11)).unwrap();
    log.sync().unwrap();
    assert_ne!(mark(), before);
}

/// The index of the last entry that the mark says is durable.
fn marked_index(folder: &Path) -> Option<u64> {
    let bytes = std::fs::read(folder.join("shards/0/mark")).unwrap();
    let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
    let newest = [0, 4_096].into_iter().max_by_key(|slot| number(slot + 8)).unwrap();
    (bytes[newest + 24] == 1).then(|| number(newest + 41))
}

#[test]
fn a_sync_beside_a_truncation_does_not_lift_the_mark_again() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path()).log().unwrap();
    log.append(&entries(1, 0..4)).unwrap();
    for round in 0..300 {
        log.append(&entries(2, 4..40)).unwrap();
        let start = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                log.sync().unwrap();
            });
            start.wait();
            log.truncate_after(Some(3)).unwrap();
        });
        assert!(marked_index(folder.path()) <= Some(3), "round {round}");
    }
    log.sync().unwrap();
    assert_eq!(marked_index(folder.path()), Some(3));
    drop(log);
    assert_eq!(read_all(&open(folder.path()).log().unwrap()), entries(1, 0..4));
}
