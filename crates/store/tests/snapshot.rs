//! Snapshots: made, sent, received and installed; and what is left after a crash at any step.

// A helper of a test that unwraps fails the test with the right line.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::Read as _;
use std::path::Path;

use ag_store::{RocksState, Snapshot, Snapshots, StateTable as _, StoreError};
use support::{Damage, Life, copy, files, load, open};

/// Sends a snapshot as the replicas do.
fn send(from: &Snapshot, to: &Snapshots, part_bytes: usize) -> Result<Snapshot, StoreError> {
    let mut receiver = to.receive(&from.description())?;
    for file in &from.meta().files {
        let mut bytes = Vec::new();
        let read = from.read(file)?.read_to_end(&mut bytes);
        read.map_err(|error| StoreError::SnapshotRefused { why: error.to_string() })?;
        for part in bytes.chunks(part_bytes) {
            receiver.write(&file.name, part)?;
        }
    }
    receiver.finish()
}

/// A data directory with a state and a snapshot of it.
fn with_snapshot(folder: &Path, steps: u64) -> (Life, Snapshot) {
    let dir = open(folder);
    let (table, snapshots) = (dir.state().unwrap(), dir.snapshots().unwrap());
    let mut life = Life::default();
    life.run(&table, steps);
    let snapshot = table.begin_checkpoint(&snapshots).unwrap().finish().unwrap();
    (life, snapshot)
}

fn install(table: &RocksState, snapshot: &Snapshot) -> Result<(RocksState, ag_core::State), StoreError> {
    table.install(snapshot, &mut |_| {})
}

#[test]
fn a_snapshot_is_the_state_at_the_checkpoint() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dir = open(folder.path());
    let (table, snapshots) = (dir.state().unwrap(), dir.snapshots().unwrap());
    let mut life = Life::default();
    life.run(&table, 120);
    let then = life.clone();
    let checkpoint = table.begin_checkpoint(&snapshots).unwrap();
    assert_eq!(checkpoint.mark(), &then.mark);
    assert!(snapshots.newest().is_none());
    // Commits go on before the checkpoint is finished, and after.
    life.run(&table, 40);
    let snapshot = checkpoint.finish().unwrap();
    life.run(&table, 40);
    snapshot.verify().unwrap();
    assert_eq!(snapshot.meta().mark, then.mark);
    assert_eq!(snapshot.meta().cluster_version, 1);
    assert!(snapshot.bytes() > 1_000);
    assert_eq!(load(&table).unwrap().0, life.state);

    let dir = open(other.path());
    let received = send(&snapshot, &dir.snapshots().unwrap(), 1_000).unwrap();
    assert_eq!(received.meta(), snapshot.meta());
    let table = dir.state().unwrap();
    Life::default().run(&table, 3);
    let reader_of_old = table.reader();
    let (installed, state) = install(&table, &received).unwrap();
    assert_eq!(state, then.state);
    assert_eq!(installed.mark(), then.mark);
    // Readers of the old generation go on, and its files go with them.
    assert!(!reader_of_old.audit_after(0, 10, 10_000).unwrap().is_empty());
    let old = other.path().join("shards/0/state/gen-00000001");
    drop(table);
    assert!(old.exists());
    drop(reader_of_old);
    assert!(!old.exists());
    // The tail of the log brings it up to date.
    let mut replica = then;
    replica.run(&installed, 80);
    assert_eq!(replica.state, life.state);
    drop((installed, dir, received));
    assert_eq!(load(&open(other.path()).state().unwrap()).unwrap(), (life.state, life.mark));
}

#[test]
fn only_the_newest_snapshot_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let dir = open(folder.path());
    let (table, snapshots) = (dir.state().unwrap(), dir.snapshots().unwrap());
    let folders = || std::fs::read_dir(folder.path().join("shards/0/snapshots")).unwrap().count();
    let mut life = Life::default();
    life.run(&table, 20);
    let older = table.begin_checkpoint(&snapshots).unwrap().finish().unwrap();
    life.run(&table, 20);
    let newer = table.begin_checkpoint(&snapshots).unwrap().finish().unwrap();
    assert_eq!(snapshots.newest().unwrap().meta(), newer.meta());
    // It is still being sent: its files stay until then.
    older.verify().unwrap();
    assert_eq!(folders(), 2);
    drop(older);
    assert_eq!(folders(), 1);
    // One of the same state replaces it.
    let again = table.begin_checkpoint(&snapshots).unwrap().finish().unwrap();
    drop(newer);
    assert_eq!(folders(), 1);
    assert_eq!(again.meta().mark, life.mark);
    // One that is not finished leaves nothing.
    drop(table.begin_checkpoint(&snapshots).unwrap());
    assert_eq!(folders(), 1);
    drop((table, snapshots, dir, again));
    let snapshots = open(folder.path()).snapshots().unwrap();
    assert_eq!(snapshots.newest().unwrap().meta().mark, life.mark);
    snapshots.discard(&snapshots.newest().unwrap());
    assert!(snapshots.newest().is_none());
    assert_eq!(folders(), 0);
}

#[test]
fn a_received_snapshot_is_what_its_description_says() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_, snapshot) = with_snapshot(folder.path(), 50);
    let snapshots = open(other.path()).snapshots().unwrap();
    let files = &snapshot.meta().files;
    let first = files.iter().find(|file| file.bytes > 0).unwrap();
    let last = files.iter().rfind(|file| file.bytes > 0).unwrap();
    let mut bytes = Vec::new();
    snapshot.read(first).unwrap().read_to_end(&mut bytes).unwrap();

    let refused = |write: &dyn Fn(&mut ag_store::SnapshotReceiver) -> Result<(), StoreError>| {
        let mut receiver = snapshots.receive(&snapshot.description()).unwrap();
        let written = write(&mut receiver);
        let error = written.and_then(|()| receiver.finish().map(drop)).unwrap_err();
        assert!(matches!(error, StoreError::SnapshotRefused { .. }), "{error}");
        assert!(!error.is_corruption(), "{error}");
    };
    refused(&|_| Ok(()));
    refused(&|receiver| receiver.write(&first.name, &bytes[..bytes.len() - 1]));
    refused(&|receiver| receiver.write(&first.name, &[&bytes[..], b"x"].concat()));
    refused(&|receiver| receiver.write("../../escaped", b"x"));
    refused(&|receiver| receiver.write(&last.name, b"x"));
    refused(&|receiver| {
        let mut flipped = bytes.clone();
        flipped[0] ^= 1;
        receiver.write(&first.name, &flipped)
    });
    let mut description = snapshot.description().to_vec();
    for at in 0..description.len() {
        description[at] ^= 4;
        assert!(snapshots.receive(&description).is_err(), "byte {at}");
        description[at] ^= 4;
    }
    // Nothing is left of all that.
    assert_eq!(std::fs::read_dir(other.path().join("shards/0/snapshots")).unwrap().count(), 0);
    send(&snapshot, &snapshots, 77).unwrap().verify().unwrap();
}

#[test]
fn every_damage_to_a_snapshot_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let (life, snapshot) = with_snapshot(folder.path(), 150);
    drop(snapshot);
    let inside = Path::new("shards/0/snapshots");
    let mut damaged = 0;
    for file in files(&folder.path().join(inside)) {
        for damage in Damage::ALL {
            let case = tempfile::tempdir().unwrap();
            copy(folder.path(), case.path());
            if !damage.inflict(&case.path().join(inside).join(&file)) {
                continue;
            }
            damaged += 1;
            let what = format!("{damage:?} of {}", file.display());
            let dir = open(case.path());
            let snapshots = match dir.snapshots() {
                Ok(snapshots) => snapshots,
                Err(error) => {
                    assert!(error.is_corruption(), "{what}: {error}");
                    assert!(file.ends_with("META"), "{what}");
                    continue;
                }
            };
            let snapshot = snapshots.newest().unwrap();
            assert!(snapshot.verify().unwrap_err().is_corruption(), "{what}");
            let table = dir.state().unwrap();
            let error = install(&table, &snapshot).unwrap_err();
            assert!(error.is_corruption(), "{what}: {error}");
            assert!(send(&snapshot, &snapshots, 4_096).is_err(), "{what}");
            // The old state is as it was.
            assert_eq!(load(&table).unwrap().0, life.state, "{what}");
            drop((table, snapshots, snapshot, dir));
            assert_eq!(load(&open(case.path()).state().unwrap()).unwrap().0, life.state, "{what}");
        }
    }
    assert!(damaged > 50, "only {damaged} cases");
}

#[test]
fn a_crash_at_any_step_of_an_install_leaves_the_old_state_or_the_new() {
    let (source, base) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (new, snapshot) = with_snapshot(source.path(), 100);
    let dir = open(base.path());
    let table = dir.state().unwrap();
    let mut old = Life::default();
    old.run(&table, 30);
    drop((table, dir));
    // The same folder after a whole install.
    let after = tempfile::tempdir().unwrap();
    copy(base.path(), after.path());
    let dir = open(after.path());
    let received = send(&snapshot, &dir.snapshots().unwrap(), 10_000).unwrap();
    let (installed, _) = install(&dir.state().unwrap(), &received).unwrap();
    drop((installed, received, dir));

    let state = Path::new("shards/0/state");
    let (first, second) = (state.join("gen-00000001"), state.join("gen-00000002"));
    let check = |name: &str, crash: &dyn Fn(&Path), expected: &Life| {
        let case = tempfile::tempdir().unwrap();
        copy(base.path(), case.path());
        crash(case.path());
        for _ in 0..2 {
            let table = open(case.path()).state().unwrap();
            assert_eq!(load(&table).unwrap(), (expected.state.clone(), expected.mark.clone()), "{name}");
        }
        let left = std::fs::read_dir(case.path().join(state)).unwrap().map(|found| found.unwrap().file_name());
        let folders = left.filter(|found| !found.to_str().unwrap().starts_with("CURRENT")).count();
        assert_eq!(folders, 1, "{name}");
    };
    let put_new = |case: &Path, name: &str| copy(&after.path().join(&second), &case.join(state).join(name));
    check("nothing done", &|_| {}, &old);
    check(
        "half of the files",
        &|case| {
            put_new(case, "tmp-gen-00000002");
            std::fs::remove_file(case.join(state).join("tmp-gen-00000002/CURRENT")).unwrap();
        },
        &old,
    );
    check("all files", &|case| put_new(case, "tmp-gen-00000002"), &old);
    check("renamed", &|case| put_new(case, "gen-00000002"), &old);
    check(
        "CURRENT half written",
        &|case| {
            put_new(case, "gen-00000002");
            std::fs::write(case.join(state).join("CURRENT.tmp"), "gen-0").unwrap();
        },
        &old,
    );
    let switch = |case: &Path| std::fs::write(case.join(state).join("CURRENT"), "gen-00000002\n").unwrap();
    check(
        "CURRENT switched",
        &|case| {
            put_new(case, "gen-00000002");
            switch(case);
        },
        &new,
    );
    check(
        "old one half removed",
        &|case| {
            put_new(case, "gen-00000002");
            switch(case);
            std::fs::remove_file(case.join(&first).join("CURRENT")).unwrap();
        },
        &new,
    );
}

#[test]
fn a_crash_while_the_first_generation_is_made_leaves_an_empty_state() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()).state().unwrap());
    let state = Path::new("shards/0/state");
    let check = |crash: &dyn Fn(&Path)| {
        let case = tempfile::tempdir().unwrap();
        copy(folder.path(), case.path());
        crash(&case.path().join(state));
        let table = open(case.path()).state().unwrap();
        assert_eq!(load(&table).unwrap(), Default::default());
        let mut life = Life::default();
        life.run(&table, 5);
    };
    check(&|state| std::fs::remove_file(state.join("CURRENT")).unwrap());
    check(&|state| {
        std::fs::remove_file(state.join("CURRENT")).unwrap();
        std::fs::rename(state.join("gen-00000001"), state.join("tmp-gen-00000001")).unwrap();
    });
    check(&|state| std::fs::remove_dir_all(state).unwrap());
}

#[test]
fn a_state_without_its_generation_or_its_pointer_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let (_, snapshot) = with_snapshot(folder.path(), 40);
    let dir = open(folder.path());
    let (installed, _) = install(&dir.state().unwrap(), &snapshot).unwrap();
    drop((installed, dir, snapshot));
    let state = folder.path().join("shards/0/state");
    let expect_damaged = || {
        let error = open(folder.path()).state().unwrap_err();
        assert!(error.is_corruption(), "{error}");
    };
    for text in ["", "gen-00000002", "gen-2\n", "gen-00000003\n", "../x\n"] {
        std::fs::write(state.join("CURRENT"), text).unwrap();
        let kept = tempfile::tempdir().unwrap();
        copy(&state, kept.path());
        expect_damaged();
        std::fs::remove_dir_all(&state).unwrap();
        copy(kept.path(), &state);
    }
    std::fs::remove_file(state.join("CURRENT")).unwrap();
    expect_damaged();
}

#[test]
fn a_crash_while_a_snapshot_is_made_leaves_the_one_before() {
    let folder = tempfile::tempdir().unwrap();
    let (life, snapshot) = with_snapshot(folder.path(), 60);
    drop(snapshot);
    let inside = folder.path().join("shards/0/snapshots");
    let finished = std::fs::read_dir(&inside).unwrap().next().unwrap().unwrap().path();
    copy(&finished, &inside.join("tmp-00000077"));
    let snapshots = open(folder.path()).snapshots().unwrap();
    assert_eq!(snapshots.newest().unwrap().meta().mark, life.mark);
    assert_eq!(std::fs::read_dir(&inside).unwrap().count(), 1);
    drop(snapshots);
    // The newer one is whole, and the older not yet removed.
    copy(&finished, &inside.join("snap-00000000000000000001-00000000"));
    let snapshots = open(folder.path()).snapshots().unwrap();
    assert_eq!(snapshots.newest().unwrap().meta().mark, life.mark);
    assert_eq!(std::fs::read_dir(&inside).unwrap().count(), 1);
}
