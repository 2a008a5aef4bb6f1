//! What is encoded is decoded again, whatever it is; and what is not understood is an error, never a guess.

// A helper of a test that unwraps fails the test with the right line.
#![allow(clippy::unwrap_used)]

mod support;

use ag_core::command::Entry;
use ag_core::time::{LeaseTime, WallTime};
use ag_proto::storage_v1 as pb;
use ag_wire::storage::*;
use ag_wire::version::CLUSTER_VERSION_MAX;
use bytes::Bytes;
use proptest::prelude::*;
use prost::Message as _;

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

fn entry_id() -> impl Strategy<Value = EntryId> {
    any::<[u64; 3]>().prop_map(|[term, leader, log_index]| EntryId::new(term, leader, log_index))
}

fn mark() -> impl Strategy<Value = AppliedMark> {
    (prop::option::of(entry_id()), support::bytes(), prop::option::of(entry_id())).prop_map(
        |(applied, membership, membership_at)| AppliedMark { applied, membership: membership.into(), membership_at },
    )
}

proptest! {
    #[test]
    fn entries(entry in support::entry()) {
        let bytes = encode_entry(&entry);
        prop_assert_eq!(bytes.len(), encoded_entry_len(&entry));
        prop_assert_eq!(decode_entry(&bytes).unwrap(), entry.clone());
        // What is written by hand is what the generated code writes.
        let message = pb::Entry::decode(&bytes[1..]).unwrap();
        prop_assert_eq!(&message.encode_to_vec(), &bytes[1..]);
    }

    #[test]
    fn jobs(job in support::job()) {
        prop_assert_eq!(decode_job(&encoded(|out| encode_job(&job, out))).unwrap(), job);
    }

    #[test]
    fn queues(queue in support::queue_name(), policy in support::policy()) {
        let bytes = encoded(|out| encode_queue(&queue, &policy, out));
        prop_assert_eq!(decode_queue(&bytes).unwrap(), (queue, policy));
    }

    #[test]
    fn replies(reply in support::reply(), answer in support::answer()) {
        prop_assert_eq!(decode_reply(&encoded(|out| encode_reply(&reply, out))).unwrap(), reply);
        prop_assert_eq!(decode_answer(&encoded(|out| encode_answer(&answer, out))).unwrap(), answer);
    }

    #[test]
    fn members_and_meta(member in support::member(), meta in support::meta()) {
        prop_assert_eq!(decode_member(&encoded(|out| encode_member(&member, out))).unwrap(), member);
        prop_assert_eq!(decode_meta(&encoded(|out| encode_meta(&meta, out))).unwrap(), meta);
    }

    #[test]
    fn bulk(attestation_type in support::attestation_type(), bytes in support::bytes()) {
        let row = encoded(|out| encode_attestation(&attestation_type, &bytes, out));
        prop_assert_eq!(decode_attestation(&row).unwrap(), (attestation_type, bytes.clone()));
        let message = pb::Attestation::decode(&row[1..]).unwrap();
        prop_assert_eq!(&message.encode_to_vec(), &row[1..]);
        let row = encoded(|out| encode_blob(&bytes, out));
        prop_assert_eq!(decode_blob(&row).unwrap(), &bytes);
    }

    #[test]
    fn audit_records(record in support::audit_record()) {
        prop_assert_eq!(decode_audit(&encoded(|out| encode_audit(&record, out))).unwrap(), record);
    }

    #[test]
    fn marks(mark in mark(), entry_id in entry_id(), term: u64, replica: u64, committed: bool) {
        prop_assert_eq!(decode_applied_mark(&encoded(|out| encode_applied_mark(&mark, out))).unwrap(), mark.clone());
        prop_assert_eq!(decode_entry_id(&encoded(|out| encode_entry_id(&entry_id, out))).unwrap(), entry_id);
        let vote = Vote { term, replica_id: ag_core::name::ReplicaId(replica), committed };
        prop_assert_eq!(decode_vote(&encoded(|out| encode_vote(&vote, out))).unwrap(), vote);
        let files = vec![SnapshotFile { name: "a".into(), bytes: term, crc32: replica as u32 }];
        let meta = SnapshotMeta { mark, cluster_version: 1, data_format: 1, files };
        prop_assert_eq!(decode_snapshot_meta(&encoded(|out| encode_snapshot_meta(&meta, out))).unwrap(), meta);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let framed = [&[FORMAT], &bytes[..]].concat();
        let _ = (decode_entry(&framed), decode_job(&framed), decode_queue(&framed), decode_reply(&framed));
        let _ = (decode_answer(&framed), decode_member(&framed), decode_meta(&framed), decode_attestation(&framed));
        let _ = (decode_audit(&framed), decode_applied_mark(&framed), decode_snapshot_meta(&framed));
    }
}

fn with_command(command: pb::Command) -> Vec<u8> {
    let entry = pb::Entry { lease_now_ms: 1, wall_now_ms: 2, commands: vec![command] };
    [&[FORMAT], &entry.encode_to_vec()[..]].concat()
}

fn command(kind: u32, min_version: u32) -> pb::Command {
    pb::Command { kind, min_version, principal: String::new(), body: Bytes::new() }
}

#[test]
fn an_unknown_command_is_an_error_that_says_what_to_do() {
    assert!(decode_entry(&with_command(command(13, 1))).is_ok());
    let unknown = [command(17, 1), command(0, 0), command(u32::MAX, 1), command(13, CLUSTER_VERSION_MAX + 1)];
    for command in unknown {
        let error = decode_entry(&with_command(command.clone())).unwrap_err();
        let expected = (command.kind, command.min_version);
        assert!(
            matches!(error, DecodeError::UnknownCommand { kind, min_version } if (kind, min_version) == expected),
            "{error:?}"
        );
        assert!(error.to_string().contains("install a newer release"), "{error}");
    }
}

#[test]
fn another_format_is_an_error() {
    let mut bytes = encode_entry(&Entry { lease_now: LeaseTime(1), wall_now: WallTime(2), commands: Vec::new() });
    assert!(matches!(decode_entry(&[]), Err(DecodeError::Empty { .. })));
    for found in [0, 2, 255] {
        bytes[0] = found;
        assert!(matches!(decode_entry(&bytes), Err(DecodeError::Format { found: byte, .. }) if byte == found));
    }
}

#[test]
fn names_that_can_not_be_are_errors() {
    let mut bad_principal = command(13, 1);
    bad_principal.principal = "a|b".into();
    assert!(matches!(decode_entry(&with_command(bad_principal)), Err(DecodeError::Field { .. })));
    let job = pb::Job { job_id: 1, queue: "/".into(), state: 2, ..Default::default() };
    let row = |job: &pb::Job| [&[FORMAT], &job.encode_to_vec()[..]].concat();
    assert!(matches!(decode_job(&row(&job)), Err(DecodeError::Field { .. })));
    for state in [0, 7] {
        let job = pb::Job { queue: "q".into(), state, ..job.clone() };
        assert!(matches!(decode_job(&row(&job)), Err(DecodeError::Field { .. })));
    }
}
