//! The audit log: what is recorded, that the chain shows what was done to it, and the frozen bytes.

use ag_core::audit::{AuditEvent, AuditHead, AuditRecord, ChainError, verify_chain, verify_chain_through};
use ag_core::command::Actor;
use ag_core::digest::Digest;
use ag_core::name::{JobId, LogPosition};
use ag_core::queue::QueuePolicyPatch;
use ag_core::rejection::Rejection;
use ag_core::time::WallTime;
use proptest::prelude::*;

use crate::common::{LEASE_MS, World, actor};

/// A few claims of three jobs.
fn some_records() -> Vec<AuditRecord> {
    let mut world = World::new();
    for _ in 0..3 {
        let job_id = world.enqueue("q");
        world.claim("q", "w");
        world.complete(job_id, "w", b"result").unwrap();
        _ = world.complete(job_id, "other", b"late");
    }
    world.audit
}

#[test]
fn an_untouched_chain_verifies_from_its_beginning_and_from_any_head_in_it() {
    let records = some_records();
    let head = records.last().unwrap().head();
    assert_eq!(records.len(), 12);
    assert_eq!(verify_chain(AuditHead::default(), &records), Ok(head));
    for (place, record) in records.iter().enumerate() {
        assert_eq!(verify_chain(record.head(), &records[place + 1..]), Ok(head));
        assert_eq!(verify_chain_through(AuditHead::default(), &records, record.head()), Ok(head));
    }
    assert_eq!(verify_chain(head, []), Ok(head));
}

/// Field report T74.
#[test]
fn a_cut_off_tail_is_found_with_an_earlier_head() {
    let records = some_records();
    let earlier = records.last().unwrap().head();
    for kept in 0..records.len() {
        assert!(verify_chain(AuditHead::default(), &records[..kept]).is_ok(), "by itself it looks whole");
        let found = verify_chain_through(AuditHead::default(), &records[..kept], earlier);
        assert_eq!(found, Err(ChainError::EarlierHead(earlier.sequence)));
    }
}

/// Whoever holds the log can write the whole chain anew; a head that somebody else has kept shows it.
#[test]
fn a_chain_that_was_written_anew_is_found_with_an_earlier_head() {
    let records = some_records();
    let earlier = records[7].head();
    let mut head = AuditHead::default();
    let mut forged = Vec::new();
    for record in &records {
        let event = AuditEvent { worker: "somebody".into(), ..record.event.clone() };
        let record = AuditRecord::after(head, record.applied_at, record.wall_now, event);
        head = record.head();
        forged.push(record);
    }
    assert_eq!(verify_chain(AuditHead::default(), &forged), Ok(head));
    let found = verify_chain_through(AuditHead::default(), &forged, earlier);
    assert_eq!(found, Err(ChainError::EarlierHead(8)));
}

#[test]
fn a_rewritten_record_is_found_whatever_of_it_was_changed() {
    let records = some_records();
    let changes: [fn(&mut AuditRecord); 13] = [
        |record| record.applied_at.term += 1,
        |record| record.applied_at.log_index += 1,
        |record| record.wall_now.0 += 1,
        |record| record.event.actor = actor("zeta"),
        |record| record.event.verb.push('x'),
        |record| record.event.outcome = "done".into(),
        |record| record.event.job_id = Some(JobId(9)),
        |record| record.event.queue = "other".into(),
        |record| record.event.attempts += 1,
        |record| record.event.worker.clear(),
        |record| record.event.request_id = "r".into(),
        |record| _ = record.event.details.insert("a".into(), "b".into()),
        |record| record.previous_hash = Digest::of(b"other"),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut rewritten = records.clone();
        change(&mut rewritten[7]);
        assert_eq!(verify_chain(AuditHead::default(), &rewritten), Err(ChainError::Hash(8)), "change {number}");
        // With the record's own hash made to fit, the next record shows it.
        let head = records[6].head();
        let fitted =
            AuditRecord::after(head, rewritten[7].applied_at, rewritten[7].wall_now, rewritten[7].event.clone());
        if fitted != records[7] {
            rewritten[7] = fitted;
            assert_eq!(verify_chain(AuditHead::default(), &rewritten), Err(ChainError::Hash(9)), "change {number}");
        }
    }
    let mut rewritten = records.clone();
    rewritten[7].hash = Digest::of(b"other");
    assert_eq!(verify_chain(AuditHead::default(), &rewritten), Err(ChainError::Hash(8)));
}

#[test]
fn a_removed_added_or_moved_record_is_found() {
    let records = some_records();
    let sequence = |expected, found| Err(ChainError::Sequence { expected, found });
    let mut removed = records.clone();
    removed.remove(4);
    assert_eq!(verify_chain(AuditHead::default(), &removed), sequence(5, 6));
    assert_eq!(verify_chain(AuditHead::default(), &records[1..]), sequence(1, 2), "the oldest ones");
    let mut repeated = records.clone();
    repeated.insert(4, records[4].clone());
    assert_eq!(verify_chain(AuditHead::default(), &repeated), sequence(6, 5));
    let mut moved = records.clone();
    moved.swap(4, 5);
    assert_eq!(verify_chain(AuditHead::default(), &moved), sequence(5, 6));
    // With numbers made to fit, the hashes show it.
    (moved[4].sequence, moved[5].sequence) = (5, 6);
    assert_eq!(verify_chain(AuditHead::default(), &moved), Err(ChainError::Hash(5)));
}

type Step = fn(&mut World);
/// Verb, outcome, and `attempts`.
type Expected = &'static [(&'static str, &'static str, u32)];

/// What is done, and the records that it leaves.
const STEPS: [(&str, Step, Expected); 27] = [
    ("a queue", |world| update(world, 1_000), &[("update_queue", "done", 0)]),
    ("the same again", |world| update(world, 1_000), &[]),
    ("job 1", |world| _ = world.enqueue_job(crate::common::keyed_job("q", "k")), &[("enqueue", "done", 0)]),
    ("the same key", |world| _ = world.enqueue_job(crate::common::keyed_job("q", "k")), &[("enqueue", "done", 0)]),
    ("claim", |world| _ = world.claim("q", "w"), &[("claim", "done", 1)]),
    ("nothing to claim", |world| assert!(world.try_claim("q", "w").is_none()), &[]),
    ("heartbeat", |world| _ = world.heartbeat_with(JobId(1), "w", None, b"half").unwrap(), &[]),
    ("lost heartbeat", |world| lost(world.heartbeat(JobId(1), "v")), &[("heartbeat", "CLAIM_LOST", 0)]),
    ("lost complete", |world| lost(world.complete(JobId(1), "v", b"")), &[("complete", "CLAIM_LOST", 0)]),
    ("lost fail", |world| lost(world.fail(JobId(1), "v", "boom")), &[("fail", "CLAIM_LOST", 0)]),
    ("lost release", |world| lost(world.release(JobId(1), "v")), &[("release", "CLAIM_LOST", 0)]),
    ("fail", |world| _ = world.fail(JobId(1), "w", "boom").unwrap(), &[("fail", "done", 1)]),
    ("claim", |world| _ = world.claim("q", "w"), &[("claim", "done", 2)]),
    ("release", |world| _ = world.release(JobId(1), "w").unwrap(), &[("release", "done", 2)]),
    ("claim", |world| _ = world.claim("q", "w"), &[("claim", "done", 3)]),
    ("lapse", |world| world.lease_passes(LEASE_MS), &[]),
    ("claim", |world| _ = world.claim("q", "v"), &[("claim", "done", 4)]),
    ("undelivered", |world| world.undelivered(JobId(1), 4), &[("release", "done", 4)]),
    ("claim", |world| _ = world.claim("q", "v"), &[("claim", "done", 5)]),
    ("cancel", |world| _ = world.cancel(JobId(1)).unwrap(), &[("cancel", "done", 5)]),
    ("cancel again", |world| _ = world.cancel(JobId(1)).unwrap(), &[]),
    ("lapse", |world| world.lease_passes(LEASE_MS), &[("expire", "done", 5)]),
    ("retry", |world| _ = world.retry(JobId(1)).unwrap(), &[("retry", "done", 5)]),
    ("retry again", |world| assert!(world.retry(JobId(1)).is_err()), &[]),
    ("claim", |world| _ = world.claim("q", "w"), &[("claim", "done", 6)]),
    ("complete", |world| _ = world.complete(JobId(1), "w", b"").unwrap(), &[("complete", "done", 6)]),
    ("retention", |world| world.wall_jumps(1_000), &[("drop", "done", 6)]),
];

fn update(world: &mut World, retention_ms: u64) {
    world.update_queue("q", QueuePolicyPatch { retention_ms: Some(retention_ms), ..QueuePolicyPatch::default() });
}

fn lost<T: std::fmt::Debug>(result: Result<T, Rejection>) {
    assert_eq!(result.unwrap_err(), Rejection::ClaimLost);
}

#[test]
fn every_accepted_change_and_every_refused_action_on_a_claim_is_one_record_and_a_heartbeat_is_none() {
    let mut world = World::new();
    for (what, step, expected) in STEPS {
        let before = world.audit.len();
        step(&mut world);
        let events = world.audit[before..].iter().map(|record| &record.event);
        let found: Vec<_> = events.map(|event| (event.verb.as_str(), event.outcome.as_str(), event.attempts)).collect();
        assert_eq!(found, expected, "{what}");
    }
}

/// What a refusal leaves is readable by stale workers too.
#[test]
fn no_record_of_a_refusal_tells_the_number_of_the_claim() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w");
    world.time_passes(LEASE_MS);
    world.claim("q", "v");
    lost(world.complete(job_id, "w", b"late"));
    let event = &world.audit.last().unwrap().event;
    assert_eq!((event.attempts, event.details.len(), event.worker.as_str()), (0, 0, "w"));
}

fn event() -> impl Strategy<Value = AuditEvent> {
    let text = || "\\PC{0,12}";
    let actors = prop_oneof![Just(Actor::System), "[a-z._-]{1,9}".prop_map(|name| actor(&name))];
    let details = prop::collection::btree_map(text(), text(), 0..4);
    let numbers = (prop::option::of(1..u64::MAX), any::<u32>());
    (actors, text(), text(), numbers, text(), text(), text(), details).prop_map(
        |(actor, verb, outcome, (job_id, attempts), queue, worker, request_id, details)| {
            let job_id = job_id.map(JobId);
            AuditEvent { actor, verb, outcome, job_id, queue, attempts, worker, request_id, details }
        },
    )
}

fn record(event: AuditEvent, numbers: [u64; 4]) -> AuditRecord {
    let [sequence, term, log_index, wall_ms] = numbers;
    let head = AuditHead { sequence: sequence >> 1, hash: Digest::of(&sequence.to_be_bytes()) };
    AuditRecord::after(head, LogPosition { term, log_index }, WallTime(wall_ms), event)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn canonical_bytes_read_back_are_the_same_record(event in event(), numbers in any::<[u64; 4]>()) {
        let record = record(event, numbers);
        let bytes = record.canonical();
        let read = AuditRecord::from_canonical(record.previous_hash, &bytes).unwrap();
        prop_assert_eq!(read.canonical(), bytes);
        prop_assert_eq!(read, record);
    }

    #[test]
    fn two_records_with_the_same_canonical_bytes_are_the_same(a in event(), b in event()) {
        let (a, b) = (record(a, [0; 4]), record(b, [0; 4]));
        prop_assert_eq!(a == b, a.canonical() == b.canonical());
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(record) = AuditRecord::from_canonical(Digest::default(), &bytes) {
            prop_assert_eq!(record.canonical(), bytes);
        }
    }

    /// Whatever is read is exactly what would be written, so that no two texts of bytes mean the same record.
    #[test]
    fn damaged_bytes_are_refused_or_are_another_record(
        event in event(), numbers in any::<[u64; 4]>(), place in any::<prop::sample::Index>(), flip in 1..=255_u8,
        cut in any::<prop::sample::Index>(),
    ) {
        let record = record(event, numbers);
        let mut bytes = record.canonical();
        let cut = cut.index(bytes.len());
        prop_assert!(AuditRecord::from_canonical(Digest::default(), &bytes[..cut]).is_err());
        let longer: Vec<_> = bytes.iter().copied().chain([0]).collect();
        prop_assert!(AuditRecord::from_canonical(Digest::default(), &longer).is_err());
        let place = place.index(bytes.len());
        bytes[place] ^= flip;
        if let Ok(read) = AuditRecord::from_canonical(record.previous_hash, &bytes) {
            prop_assert_eq!(&read.canonical(), &bytes);
            prop_assert_ne!(read.hash, record.hash);
        }
    }
}
