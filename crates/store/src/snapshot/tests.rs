//! What a description may not say.

use ag_wire::storage::AppliedMark;

use super::*;

fn description(names: &[&str], data_format: u32) -> Vec<u8> {
    let file = |name: &&str| SnapshotFile { name: (*name).to_owned(), bytes: 1, crc32: 0 };
    let files = names.iter().map(file).collect();
    encode_description(&SnapshotMeta { mark: AppliedMark::default(), cluster_version: 1, data_format, files })
}

#[test]
fn plain_names_in_order_are_taken() {
    let meta = decode_description(&description(&["000012.sst", "CURRENT", "MANIFEST-000005"], DATA_FORMAT)).unwrap();
    assert_eq!(meta.files.len(), 3);
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let long = "x".repeat(129);
    for name in ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", "a\0b", ".hidden", "META", "ä", &long] {
        let error = decode_description(&description(&[name], DATA_FORMAT)).unwrap_err();
        assert!(matches!(error, StoreError::SnapshotRefused { .. }), "{name:?}: {error}");
    }
}

#[test]
fn names_that_come_twice_or_out_of_order_are_refused() {
    for names in [["a", "a"], ["b", "a"]] {
        assert!(decode_description(&description(&names, DATA_FORMAT)).is_err());
    }
}

#[test]
fn another_format_is_refused() {
    let error = decode_description(&description(&["a"], DATA_FORMAT + 1)).unwrap_err();
    assert!(error.to_string().contains("format 2"), "{error}");
}

#[test]
fn too_many_files_are_refused() {
    let names: Vec<String> = (0..=FILES_MAX).map(|number| format!("{number:08}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert!(decode_description(&description(&names[1..], DATA_FORMAT)).is_ok());
    assert!(decode_description(&description(&names, DATA_FORMAT)).is_err());
}
