//! Every kind of file of log and state, damaged in many ways: opening or reading it fails, or gives all that was there.
//! Never silently less.

// A helper of a test that unwraps fails the test with the right line.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ag_core::State;
use ag_core::audit::AuditRecord;
use ag_core::change::{Answer, BlobKind, Change, ReplyKey};
use ag_core::name::{JobId, ReplicaId};
use ag_store::{AppliedMark, DataDir, EntryId, LogEntry, StateTable as _, StoreError, StoreOptions, Vote};
use bytes::Bytes;
use support::{Damage, Life, copy, files, load, open};

/// What came of one damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    /// It was noticed.
    Refused,
    /// All is there: the damaged part is of no use.
    Whole,
}

/// Damages each file below `inside` of copies of `folder`, and counts what came of it by kind of file.
fn matrix(folder: &Path, inside: &str, check: impl Fn(&Path, &str) -> Found) -> BTreeMap<(String, Found), usize> {
    let mut counts = BTreeMap::new();
    for file in files(&folder.join(inside)) {
        for damage in Damage::ALL {
            let case = tempfile::tempdir().unwrap();
            copy(folder, case.path());
            if damage.inflict(&case.path().join(inside).join(&file)) {
                let found = check(case.path(), &format!("{damage:?} of {}", file.display()));
                *counts.entry((kind(&file), found)).or_insert(0) += 1;
            }
        }
        let case = tempfile::tempdir().unwrap();
        copy(folder, case.path());
        std::fs::remove_file(case.path().join(inside).join(&file)).unwrap();
        let found = check(case.path(), &format!("loss of {}", file.display()));
        *counts.entry((kind(&file), found)).or_insert(0) += 1;
    }
    counts
}

fn kind(file: &Path) -> String {
    let name = file.file_name().unwrap().to_str().unwrap();
    match file.extension().and_then(|extension| extension.to_str()) {
        Some(extension) => extension.to_owned(),
        None => name.split('-').next().unwrap().to_owned(),
    }
}

fn expect_found(counts: &BTreeMap<(String, Found), usize>, kinds: &[&str]) {
    println!("{counts:#?}");
    for kind in kinds {
        let refused = counts.get(&((*kind).to_owned(), Found::Refused)).copied().unwrap_or(0);
        assert!(refused >= 5, "damage of a {kind} file was noticed only {refused} times: {counts:?}");
    }
}

const ENTRIES: u64 = 600;

fn entries() -> Vec<LogEntry> {
    let entry = |log_index| LogEntry {
        entry_id: EntryId::new(1 + log_index / 100, 1, log_index),
        kind: 1,
        payload: Bytes::from(format!("entry {log_index} ").repeat(20)),
    };
    (0..ENTRIES).map(entry).collect()
}

fn vote() -> Vote {
    Vote { term: 9, replica_id: ReplicaId(2), committed: true }
}

#[test]
fn every_damage_to_a_log_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let entries = entries();
    // Opening a log moves what is in its write-ahead log into tables: half of it lies in each.
    for (number, half) in entries.chunks(300).enumerate() {
        let log = open(folder.path()).log().unwrap();
        if number == 0 {
            log.save_vote(&vote()).unwrap();
        }
        log.append(half).unwrap();
        log.sync().unwrap();
    }
    let check = |case: &Path, what: &str| {
        let Ok(log) = open(case).log() else {
            return Found::Refused;
        };
        let read = log.read(0..ENTRIES, usize::MAX).and_then(|read| Ok((read, log.vote()?)));
        let Ok((read, found)) = read else {
            return Found::Refused;
        };
        assert_eq!(read.len(), entries.len(), "{what}: entries are silently gone");
        assert!(read == entries, "{what}: an entry is silently another");
        assert_eq!(found, Some(vote()), "{what}: the vote is silently another");
        Found::Whole
    };
    // In a copy, since to open it would empty the write-ahead log.
    let untouched = tempfile::tempdir().unwrap();
    copy(folder.path(), untouched.path());
    assert_eq!(check(untouched.path(), "nothing"), Found::Whole);
    let mut counts = matrix(folder.path(), "shards/0/log", check);
    let mark = matrix(folder.path(), "shards/0", check);
    counts.extend(mark.into_iter().filter(|((kind, _), _)| kind == "mark"));
    expect_found(&counts, &["log", "sst", "MANIFEST", "CURRENT"]);
    let mark_refused = counts.get(&("mark".to_owned(), Found::Refused)).copied().unwrap_or(0);
    assert!(mark_refused > 0, "{counts:?}");
}

#[test]
fn every_damage_to_the_synced_end_of_a_log_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path()).log().unwrap();
    log.append(&entries()).unwrap();
    log.sync().unwrap();
    drop(log);
    let inside = folder.path().join("shards/0/log");
    let wal = files(&inside).into_iter().filter(|file| kind(file) == "log");
    let wal = wal.max_by_key(|file| std::fs::metadata(inside.join(file)).unwrap().len()).unwrap();
    let length = std::fs::metadata(inside.join(&wal)).unwrap().len();
    for cut in (1..40).chain((40..length).step_by(997)) {
        let case = tempfile::tempdir().unwrap();
        copy(folder.path(), case.path());
        let file = std::fs::File::options().write(true).open(case.path().join("shards/0/log").join(&wal)).unwrap();
        file.set_len(length - cut).unwrap();
        let error = open(case.path()).log().unwrap_err();
        assert!(error.is_corruption(), "{cut} bytes less: {error}");
    }
}

/// All that a state table holds.
#[derive(Default)]
struct Contents {
    blobs: BTreeMap<(JobId, BlobKind), Vec<u8>>,
    answers: BTreeMap<ReplyKey, Answer>,
    audit: Vec<AuditRecord>,
}

impl Contents {
    fn take(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::PutBlob { job_id, kind, bytes } => drop(self.blobs.insert((job_id, kind), bytes)),
                Change::DropJob(job_id) => self.blobs.retain(|(of, _), _| *of != job_id),
                Change::PutReply { reply, answer } => drop(self.answers.insert(reply.reply_key, answer)),
                Change::DropReply(reply_key) => drop(self.answers.remove(&reply_key)),
                Change::Audit(record) => self.audit.push(*record),
                _ => {}
            }
        }
    }

    fn read(&self, dir: &DataDir) -> Result<(State, AppliedMark, Self), StoreError> {
        let table = dir.state()?;
        let (state, mark) = load(&table)?;
        let reader = table.reader();
        let mut found = Self { audit: reader.audit_after(0, usize::MAX, usize::MAX)?, ..Self::default() };
        for (job_id, kind) in self.blobs.keys() {
            if let Some(bytes) = reader.blob(*job_id, *kind)? {
                found.blobs.insert((*job_id, *kind), bytes);
            }
        }
        for reply_key in self.answers.keys() {
            if let Some(answer) = reader.answer(*reply_key)? {
                found.answers.insert(*reply_key, answer);
            }
        }
        Ok((state, mark, found))
    }
}

#[test]
fn every_damage_to_a_state_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let (mut life, mut contents) = (Life::default(), Contents::default());
    for _ in 0..3 {
        let dir = open(folder.path());
        let (table, snapshots) = (dir.state().unwrap(), dir.snapshots().unwrap());
        for _ in 0..80 {
            let changes = life.step();
            table.commit(&changes, life.state.meta(), &life.mark).unwrap();
            contents.take(changes);
        }
        // Flushes.
        drop(table.begin_checkpoint(&snapshots).unwrap());
    }
    // The log has been purged as far as the state has applied it.
    let log = open(folder.path()).log().unwrap();
    log.purge(life.mark.applied.unwrap()).unwrap();
    log.sync().unwrap();
    drop(log);
    let check = |case: &Path, what: &str| {
        let dir = DataDir::open(case, StoreOptions::default()).unwrap();
        let Ok((state, mark, found)) = contents.read(&dir) else {
            return Found::Refused;
        };
        if mark != life.mark {
            // An older state that says so: the log cannot bring it up to date, and that is noticed.
            let error = dir.log().unwrap().check_replayable(mark.applied, None).unwrap_err();
            assert!(matches!(error, StoreError::StateBehindLog { .. }), "{what}: {error}");
            return Found::Refused;
        }
        assert!(state == life.state, "{what}: the state is silently another");
        assert!(found.audit == contents.audit, "{what}: the audit log is silently another");
        assert!(found.blobs == contents.blobs, "{what}: blobs are silently gone or others");
        assert!(found.answers == contents.answers, "{what}: answers are silently gone or others");
        Found::Whole
    };
    assert_eq!(check(folder.path(), "nothing"), Found::Whole);
    let counts = matrix(folder.path(), "shards/0/state", check);
    expect_found(&counts, &["sst", "MANIFEST", "CURRENT"]);
}

#[test]
fn damage_of_each_single_byte_of_the_mark_is_found_or_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path()).log().unwrap();
    log.append(&entries()).unwrap();
    log.sync().unwrap();
    drop(log);
    let path: PathBuf = folder.path().join("shards/0/mark");
    let whole = std::fs::read(&path).unwrap();
    for at in (0..64).chain(4_096..4_160) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x80;
        std::fs::write(&path, damaged).unwrap();
        // One whole slot is left, and the log reaches beyond both.
        assert_eq!(open(folder.path()).log().unwrap().last(), entries().last().map(|entry| entry.entry_id));
    }
}
