//! Frozen bytes. The files under `vectors/` are what release 0.1.0 makes of a fixed history; they are compared, and
//! never written again. Whoever has to edit one has broken every cluster that runs.

use std::fmt::Write as _;

use ag_core::audit::{AuditHead, AuditRecord, verify_chain};
use ag_core::command::{
    ClaimJobs, Command, Complete, Enqueue, Entry, Fail, Heartbeat, InitCluster, Member, NewAttestation, NewJob,
    Operation, Release, Start, UpdateQueue,
};
use ag_core::digest::Digest;
use ag_core::job::JobState;
use ag_core::name::{Addr, AttestationType, ClusterId, JobId, LogPosition, ReplicaId};
use ag_core::queue::QueuePolicyPatch;
use ag_core::time::{LeaseTime, WallTime};
use ag_core::{State, change::Change};

use crate::common::{actor, claim_jobs, completion, failure, keyed_job, label, new_job, queue_name, request_id};

const AUDIT: &str = include_str!("vectors/audit-v1.txt");
const STATE_HASHES: &str = include_str!("vectors/state-hash-v1.txt");
const DOCUMENTATION: &str = include_str!("../../../docs/semantics/audit.md");

fn member(replica_id: u64) -> Member {
    let addr = |port: u16| Addr::parse("addr", &format!("replica{replica_id}.example:{port}")).unwrap();
    Member {
        replica_id: ReplicaId(replica_id),
        addr: addr(7400),
        peer_addr: addr(8400),
        release: "0.1.0".into(),
        min_version: 1,
        max_version: 2,
    }
}

/// Who asks, and what. `None`: the cluster itself.
type Asked = (Option<&'static str>, Operation);

/// What each entry holds: how much lease time and wall time passed before it, and its commands.
fn history() -> Vec<(u64, i64, Vec<Asked>)> {
    let by = |principal: &'static str, operation| (Some(principal), operation);
    let init = InitCluster { cluster_id: ClusterId(*b"cluster of bytes"), members: (1..=3).map(member).collect() };
    let patch = QueuePolicyPatch {
        retention_ms: Some(60_000),
        concurrency_limit: Some(5),
        max_attempts: Some(2),
        ..QueuePolicyPatch::default()
    };
    let labels = [("région".to_string(), "øst".to_string()), ("a".into(), String::new())].into();
    let rich = NewJob {
        payload: b"{\"n\":1}".to_vec(),
        priority: -7,
        max_attempts: Some(3),
        lease_ms: Some(1_500),
        labels,
        ..keyed_job("orders/eu", "order-17")
    };
    let later = NewJob { start: Start::After(10_000), ..new_job("orders/eu") };
    let dated = NewJob { start: Start::At(WallTime(1_700_000_000_001)), payload: Vec::new(), ..new_job("mail") };
    let enqueue = |jobs, id| Operation::Enqueue(Enqueue { jobs, request_id: Some(request_id(id)) });
    let claim = |worker, id| {
        let plain = claim_jobs(&["orders/eu", "mail"], worker, 2);
        Operation::Claim(ClaimJobs { request_id: Some(request_id(id)), ..plain })
    };
    let beat = |job, worker| {
        let progress = b"50 %".to_vec();
        Operation::Heartbeat(vec![Heartbeat {
            fencing_token: None,
            job_id: Some(JobId(job)),
            worker: label(worker),
            lease_ms: None,
            progress,
        }])
    };
    let attestation_type = AttestationType::parse("t", "application/vnd.in-toto+json").unwrap();
    let attested = Complete {
        attestation: Some(NewAttestation { attestation_type, bytes: b"{\"payload\":\"\"}".to_vec() }),
        request_id: Some(request_id("done-1")),
        ..completion(JobId(1), "w|2", b"42")
    };
    let paused = Fail { retry_after_ms: Some(2_000), ..failure(JobId(3), "w1", "SMTP 421") };
    vec![
        (0, 1_700_000_000_000, vec![(None, Operation::InitCluster(init))]),
        (5, 5, vec![by("admin", Operation::UpdateQueue(UpdateQueue { queue: queue_name("orders/eu"), patch }))]),
        (
            5,
            5,
            vec![by("shop", enqueue(vec![rich.clone(), later, dated], "e-1")), by("shop", enqueue(vec![rich], "e-2"))],
        ),
        (100, 100, vec![by("acme", claim("w1", "c-1")), by("acme", beat(1, "w1")), by("acme", beat(1, "w2"))]),
        (1_500, -3_000, vec![by("acme", claim("w|2", "c-2")), by("acme", beat(1, "w|2"))]),
        (10, 10, vec![by("acme", Operation::Complete(vec![attested, completion(JobId(1), "w1", b"late")]))]),
        (10, 10, vec![by("acme", Operation::Fail(paused)), by("shop", Operation::Cancel(JobId(2)))]),
        (0, 0, vec![by("shop", Operation::Retry(JobId(2))), by("acme", claim("w1", "c-3"))]),
        (20, 2_020, vec![by("shop", Operation::Cancel(JobId(2)))]),
        (30_000, 30_000, vec![by("zeta", claim("w1", "c-1"))]),
        (
            1,
            1,
            vec![by(
                "zeta",
                Operation::Release(Release { fencing_token: None, job_id: Some(JobId(3)), worker: label("w1") }),
            )],
        ),
        (1, 1, vec![(None, Operation::HoldClusterVersion(true)), by("admin", Operation::AllocateReplica)]),
        (
            1,
            1,
            vec![
                by("admin", Operation::RegisterReplica(member(4))),
                by("admin", Operation::ForgetReplica(ReplicaId(2))),
            ],
        ),
        (1, 60_000, vec![]),
        (1, 1, vec![(None, Operation::HoldClusterVersion(false)), (None, Operation::SetClusterVersion(2))]),
    ]
}

/// The records and, for each entry, the hash of the state after it.
fn run() -> (Vec<AuditRecord>, Vec<(u64, Digest)>, State) {
    let mut state = State::default();
    let (mut records, mut hashes) = (Vec::new(), Vec::new());
    let (mut lease_ms, mut wall_ms) = (0, 0_u64);
    for (place, (lease_passes, wall_passes, commands)) in history().into_iter().enumerate() {
        lease_ms += lease_passes;
        wall_ms = wall_ms.checked_add_signed(wall_passes).unwrap();
        let commands = commands.into_iter().map(|(principal, operation)| {
            let actor = principal.map_or(ag_core::command::Actor::System, actor);
            Command { actor, operation }
        });
        let position = LogPosition { term: 1 + place as u64 / 5, log_index: 10 + place as u64 };
        let entry = Entry { lease_now: LeaseTime(lease_ms), wall_now: WallTime(wall_ms), commands: commands.collect() };
        let applied = state.apply(position, entry);
        ag_core::invariant::check_all(&state).unwrap();
        records.extend(applied.changes.into_iter().filter_map(|change| match change {
            Change::Audit(record) => Some(*record),
            _ => None,
        }));
        hashes.push((position.log_index, state.state_hash()));
    }
    (records, hashes, state)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks_exact(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Lines without comments, split into words.
fn lines(text: &str) -> Vec<Vec<&str>> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.split(' ').collect()).collect()
}

#[test]
fn the_audit_records_of_the_fixed_history_have_the_frozen_bytes() {
    let (records, ..) = run();
    let shown =
        records.iter().map(|record| format!("{} {} {}", record.sequence, hex(&record.canonical()), record.hash));
    let shown: Vec<_> = shown.collect();
    let frozen: Vec<_> = lines(AUDIT).into_iter().map(|words| words.join(" ")).collect();
    assert_eq!(shown, frozen);
}

#[test]
fn the_frozen_audit_bytes_read_back_and_verify() {
    let mut head = AuditHead::default();
    for words in lines(AUDIT) {
        let bytes = unhex(words[1]);
        let record = AuditRecord::from_canonical(head.hash, &bytes).unwrap();
        assert_eq!((record.sequence.to_string(), record.hash.to_string()), (words[0].into(), words[2].into()));
        assert_eq!(record.canonical(), bytes);
        head = verify_chain(head, [&record]).unwrap();
    }
    assert_eq!(head, run().2.meta().audit_head);
}

#[test]
fn the_state_hashes_of_the_fixed_history_are_the_frozen_ones() {
    let (_, hashes, _) = run();
    let shown: Vec<_> = hashes.iter().map(|(log_index, hash)| format!("{log_index} {hash}")).collect();
    let frozen: Vec<_> = lines(STATE_HASHES).into_iter().map(|words| words.join(" ")).collect();
    assert_eq!(shown, frozen);
}

/// The vectors are worth as much as the history goes through.
#[test]
fn the_fixed_history_has_every_kind_of_record_and_row() {
    let (records, _, state) = run();
    let verbs: std::collections::BTreeSet<_> = records.iter().map(|record| record.event.verb.as_str()).collect();
    let wanted = [
        "allocate_replica",
        "cancel",
        "claim",
        "complete",
        "drop",
        "enqueue",
        "expire",
        "fail",
        "forget_replica",
        "heartbeat",
        "hold_cluster_version",
        "init_cluster",
        "register_replica",
        "release",
        "retry",
        "set_cluster_version",
        "update_queue",
    ];
    assert_eq!(verbs.into_iter().collect::<Vec<_>>(), wanted);
    assert!(records.iter().any(|record| record.event.outcome == "ALREADY_COMPLETED"));
    assert!(records.iter().any(|record| record.event.details.contains_key("taken_over_from")));
    assert_eq!(state.members().count(), 3);
    assert!(state.jobs_after(JobId(0)).any(|job| job.state == JobState::Ready));
}

#[test]
fn the_documentation_shows_the_frozen_bytes() {
    assert!(lines(AUDIT).len() > 20);
    let text: String = DOCUMENTATION.split_whitespace().collect();
    for words in lines(AUDIT).iter().take(3) {
        assert!(text.contains(words[1]), "canonical bytes of record {}", words[0]);
    }
    for words in lines(AUDIT) {
        assert!(text.contains(words[2]), "the hash of record {}", words[0]);
    }
}
