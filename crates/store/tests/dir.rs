//! The data directory: one process at a time, of a format that is known.

// A helper of a test that unwraps fails the test with the right line.
#![allow(clippy::unwrap_used)]

mod support;

use ag_store::{DataDir, StoreError, StoreOptions};
use support::open;

fn refused(path: &std::path::Path) -> StoreError {
    DataDir::open(path, StoreOptions::default()).unwrap_err()
}

#[test]
fn only_one_opener_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let dir = open(folder.path());
    assert!(matches!(refused(folder.path()), StoreError::Locked { .. }));
    // A table keeps the lock as well.
    let log = dir.log().unwrap();
    drop(dir);
    let error = refused(folder.path());
    assert!(error.to_string().contains("in use by another process"), "{error}");
    drop(log);
    open(folder.path());
}

#[test]
fn a_newer_format_is_refused_with_a_message() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()));
    let file = folder.path().join("FORMAT");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "ag data directory, format 1\n");
    std::fs::write(&file, "ag data directory, format 2\n").unwrap();
    let error = refused(folder.path());
    assert!(matches!(error, StoreError::NewerFormat { found: 2, known: 1, .. }), "{error}");
    assert!(error.to_string().contains("install a newer release"), "{error}");
}

#[test]
fn a_damaged_or_missing_format_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()));
    let file = folder.path().join("FORMAT");
    let whole = std::fs::read(&file).unwrap();
    for text in ["", "ag data directory, format 0\n", "ag data directory, format 1", "ag data directory, format x\n"] {
        std::fs::write(&file, text).unwrap();
        assert!(matches!(refused(folder.path()), StoreError::FormatUnreadable { .. }), "{text:?}");
    }
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 2;
        std::fs::write(&file, damaged).unwrap();
        refused(folder.path());
    }
    std::fs::remove_file(&file).unwrap();
    assert!(matches!(refused(folder.path()), StoreError::FormatUnreadable { .. }));
    std::fs::write(&file, whole).unwrap();
    open(folder.path());
}
