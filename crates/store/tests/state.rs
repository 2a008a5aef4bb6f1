//! Both kinds of state table: what is committed is loaded and read, to the letter.

// A helper of a test that unwraps fails the test with the right line.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;

use ag_core::State;
use ag_core::audit::{AuditHead, AuditRecord, verify_chain};
use ag_core::change::{Answer, BlobKind, Change, ReplyKey};
use ag_core::digest::Digest;
use ag_core::name::{AttestationType, JobId};
use ag_store::{AppliedMark, MemoryState, RocksState, StateReader, StateTable, StoreError};
use support::{Life, load, open};

/// What a table should hold besides the state, worked out from the changes.
#[derive(Default)]
struct Model {
    blobs: BTreeMap<(JobId, BlobKind), Vec<u8>>,
    gone: Vec<JobId>,
    attestations: BTreeMap<Digest, (AttestationType, Vec<u8>)>,
    answers: BTreeMap<ReplyKey, Answer>,
    audit: Vec<AuditRecord>,
}

impl Model {
    fn take(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::PutBlob { job_id, kind, bytes } => drop(self.blobs.insert((job_id, kind), bytes)),
                Change::DropJob(job_id) => {
                    self.blobs.retain(|(of, _), _| *of != job_id);
                    self.gone.push(job_id);
                }
                Change::PutAttestation { digest, attestation_type, bytes } => {
                    self.attestations.insert(digest, (attestation_type, bytes));
                }
                Change::PutReply { reply, answer } => drop(self.answers.insert(reply.reply_key, answer)),
                Change::DropReply(reply_key) => drop(self.answers.remove(&reply_key)),
                Change::Audit(record) => self.audit.push(*record),
                Change::Clocks { .. }
                | Change::PutJob(_)
                | Change::PutQueue { .. }
                | Change::PutMember(_)
                | Change::DropMember(_)
                | Change::NextReplicaId(_)
                | Change::ClusterId(_)
                | Change::ClusterVersion(_)
                | Change::VersionHeld(_) => {}
            }
        }
    }

    fn compare(&self, reader: &dyn StateReader) {
        for ((job_id, kind), bytes) in &self.blobs {
            assert_eq!(reader.blob(*job_id, *kind).unwrap().as_ref(), Some(bytes));
        }
        for job_id in &self.gone {
            for kind in [BlobKind::Payload, BlobKind::Progress, BlobKind::Result] {
                assert_eq!(reader.blob(*job_id, kind).unwrap(), None);
            }
        }
        for (digest, attestation) in &self.attestations {
            assert_eq!(reader.attestation(digest).unwrap().as_ref(), Some(attestation));
        }
        assert_eq!(reader.attestation(&Digest::of(b"no such")).unwrap(), None);
        for (reply_key, answer) in &self.answers {
            assert_eq!(reader.answer(*reply_key).unwrap().as_ref(), Some(answer));
        }
        assert_eq!(reader.answer(ReplyKey([0; 16])).unwrap(), None);
        let audit = reader.audit_after(0, usize::MAX, usize::MAX).unwrap();
        assert_eq!(audit, self.audit);
        verify_chain(AuditHead::default(), &audit).unwrap();
    }
}

/// What every kind of table must do. `reopen` gives it back as it is after a restart.
fn conformance<T: StateTable>(table: T, reopen: impl Fn(T) -> T) {
    assert_eq!(load(&table).unwrap(), (State::default(), AppliedMark::default()));
    assert_eq!(table.reader().audit_after(0, 10, 1_000).unwrap(), []);
    let (mut life, mut model) = (Life::default(), Model::default());
    let mut table = table;
    for round in 0..6 {
        for _ in 0..60 {
            let changes = life.step();
            table.commit(&changes, life.state.meta(), &life.mark).unwrap();
            model.take(changes);
        }
        model.compare(&*table.reader());
        if round % 2 == 1 {
            table = reopen(table);
        }
        let (state, mark) = load(&table).unwrap();
        assert_eq!((&state, &mark), (&life.state, &life.mark));
        assert_eq!(state.state_hash(), life.state.state_hash());
        model.compare(&*table.reader());
    }
    // The life did what it is there for.
    for (what, count) in [
        ("blobs", model.blobs.len()),
        ("dropped jobs", model.gone.len()),
        ("attestations", model.attestations.len()),
        ("answers", model.answers.len()),
        ("audit records", model.audit.len()),
        ("jobs", life.state.job_count()),
        ("members", life.state.members().count()),
    ] {
        assert!(count > 2, "only {count} {what}");
    }
    pages_of_the_audit_log(&*table.reader(), &model.audit);
}

fn pages_of_the_audit_log(reader: &dyn StateReader, expected: &[AuditRecord]) {
    let end = expected.len() as u64;
    assert_eq!(reader.audit_after(5, 3, usize::MAX).unwrap(), expected[5..8]);
    assert_eq!(reader.audit_after(5, 3, 1).unwrap(), expected[5..6]);
    assert_eq!(reader.audit_after(end - 2, 10, usize::MAX).unwrap(), expected[expected.len() - 2..]);
    for (after, records_max) in [(end, 10), (end + 1, 10), (u64::MAX, 10), (0, 0)] {
        assert_eq!(reader.audit_after(after, records_max, usize::MAX).unwrap(), []);
    }
}

#[test]
fn rocks_state_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let reopen = |table: RocksState| {
        drop(table);
        open(folder.path()).state().unwrap()
    };
    let table = open(folder.path()).state().unwrap();
    conformance(table, reopen);
}

#[test]
fn memory_state_conforms() {
    let reopen = |table: MemoryState| MemoryState::from_snapshot(&table.snapshot().unwrap().bytes).unwrap().0;
    conformance(MemoryState::default(), reopen);
}

#[test]
fn a_snapshot_and_the_rest_of_the_log_give_the_live_state() {
    let table = MemoryState::default();
    let mut life = Life::default();
    for _ in 0..10 {
        life.run(&table, 17);
        let snapshot = table.snapshot().unwrap();
        assert_eq!(snapshot.meta.mark, life.mark);
        let (copied, received) = MemoryState::from_snapshot(&snapshot.bytes).unwrap();
        assert_eq!(received, snapshot);
        let (state, mark) = load(&copied).unwrap();
        let mut replica = life.clone();
        (replica.state, replica.mark) = (state, mark);
        life.run(&table, 23);
        replica.run(&copied, 23);
        assert_eq!(replica.state, life.state);
        assert_eq!(load(&copied).unwrap(), load(&table).unwrap());
    }
}

#[test]
fn every_damaged_row_of_a_memory_state_is_found() {
    let table = MemoryState::default();
    let (mut life, mut model) = (Life::default(), Model::default());
    for _ in 0..60 {
        let changes = life.step();
        table.commit(&changes, life.state.meta(), &life.mark).unwrap();
        model.take(changes);
    }
    let bytes = table.snapshot().unwrap().bytes;
    let mut row = 0;
    loop {
        let (damaged, _) = MemoryState::from_snapshot(&bytes).unwrap();
        if !damaged.damage(row, row * 7) {
            break;
        }
        assert!(read_everything(&damaged, &life.state, &model).is_err(), "row {row}");
        row += 1;
    }
    assert!(row > 100, "{row}");
    for cut in [0, 1, bytes.len() / 2, bytes.len() - 1] {
        assert!(MemoryState::from_snapshot(&bytes[..cut]).is_err());
    }
}

/// Loads, and reads all that the state says there is.
fn read_everything(table: &dyn StateTable, expected: &State, model: &Model) -> Result<(), StoreError> {
    let (state, _) = load(table)?;
    let reader = table.reader();
    for (job_id, kind) in model.blobs.keys() {
        reader.blob(*job_id, *kind)?;
    }
    for digest in model.attestations.keys() {
        reader.attestation(digest)?;
    }
    for reply_key in model.answers.keys() {
        reader.answer(*reply_key)?;
    }
    reader.audit_after(0, usize::MAX, usize::MAX)?;
    assert_eq!(&state, expected);
    Ok(())
}

#[test]
fn readers_go_on_while_another_thread_commits() {
    let folder = tempfile::tempdir().unwrap();
    let table = open(folder.path()).state().unwrap();
    let mut life = Life::default();
    life.run(&table, 30);
    let reader = table.reader();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let (mut reads, mut longest) = (0, 0);
            while !is_done.load(std::sync::atomic::Ordering::Acquire) || reads == 0 {
                let records = reader.audit_after(0, usize::MAX, usize::MAX).unwrap();
                assert!(records.len() >= longest, "the audit log has become shorter");
                verify_chain(AuditHead::default(), &records).unwrap();
                longest = records.len();
                reads += 1;
            }
            reads
        });
        life.run(&table, 300);
        is_done.store(true, std::sync::atomic::Ordering::Release);
        assert!(reads.join().unwrap() > 0);
    });
    assert_eq!(load(&table).unwrap().0, life.state);
}

#[test]
fn what_was_not_flushed_is_redone_from_the_mark() {
    let (folder, crashed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dir = open(folder.path());
    let (table, snapshots) = (dir.state().unwrap(), dir.snapshots().unwrap());
    let mut life = Life::default();
    life.run(&table, 100);
    // A checkpoint flushes; what comes after is only in memory when the process is killed.
    drop(table.begin_checkpoint(&snapshots).unwrap());
    let flushed = life.clone();
    life.run(&table, 50);
    support::copy(folder.path(), crashed.path());
    let table = open(crashed.path()).state().unwrap();
    let (state, mark) = load(&table).unwrap();
    assert_eq!((&state, &mark), (&flushed.state, &flushed.mark));
    let mut replayed = flushed;
    replayed.run(&table, 50);
    assert_eq!(load(&table).unwrap(), (life.state, life.mark));
}
