//! Bytes that a release has written, held fast: this release writes the same, and reads them as the same.
//!
//! The files below `tests/frozen/` are never edited. `AG_FREEZE=1 cargo test -p ag-wire --test frozen` adds those that
//! are not there yet.

// A helper of a test that unwraps fails the test with the right line.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use ag_core::Meta;
use ag_core::audit::{AuditEvent, AuditHead, AuditRecord};
use ag_core::change::{Answer, Reply, ReplyKey};
use ag_core::command::*;
use ag_core::digest::Digest;
use ag_core::hash::RowSum;
use ag_core::job::{Claim, Job, JobNotes, JobState};
use ag_core::name::*;
use ag_core::outcome::Enqueued;
use ag_core::queue::{Fencing, QueuePolicy, QueuePolicyPatch};
use ag_core::time::{LeaseTime, WallTime};
use ag_wire::storage::*;

#[test]
fn all_rows_and_entries_are_as_they_were() {
    let mut names: Vec<String> = Vec::new();
    let named = |version: &'static str| move |sample: Sample| (format!("{version}_{}.hex", sample.name), sample);
    for (name, sample) in samples().into_iter().map(named("v001")).chain(fenced().into_iter().map(named("v002"))) {
        let path = Path::new("tests/frozen").join(name);
        if std::env::var_os("AG_FREEZE").is_some() && !path.exists() {
            std::fs::write(&path, hex(&sample.bytes)).unwrap();
        }
        let frozen = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(hex(&sample.bytes), frozen, "{} is written differently", sample.name);
        (sample.check)(&unhex(&frozen));
        names.push(path.file_name().unwrap().to_str().unwrap().into());
    }
    let folder = Path::new("tests/frozen");
    let mut present: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    present.sort();
    names.sort();
    assert_eq!(present, names, "a frozen file has no sample any more");
}

type Check = Box<dyn Fn(&[u8])>;

struct Sample {
    name: String,
    bytes: Vec<u8>,
    /// Reads the frozen bytes, and compares.
    check: Check,
}

fn sample<T: PartialEq + std::fmt::Debug + 'static>(
    name: &str,
    value: T,
    encode: impl FnOnce(&T, &mut Vec<u8>),
    decode: impl Fn(&[u8]) -> Result<T, DecodeError> + 'static,
) -> Sample {
    let mut bytes = Vec::new();
    encode(&value, &mut bytes);
    let shown = name.to_owned();
    let check = move |frozen: &[u8]| assert_eq!(decode(frozen).unwrap(), value, "{shown} is read differently");
    Sample { name: name.into(), bytes, check: Box::new(check) }
}

fn samples() -> Vec<Sample> {
    let mut samples = vec![
        sample("row_job", full_job(), encode_job, decode_job),
        sample("row_job_small", small_job(), encode_job, decode_job),
        sample(
            "row_queue",
            (queue("builds/x86"), policy()),
            |(queue, policy), out| encode_queue(queue, policy, out),
            decode_queue,
        ),
        sample("row_reply", reply(), encode_reply, decode_reply),
        sample(
            "row_answer_enqueued",
            Answer::Enqueued(vec![
                Enqueued { job: small_job(), deduplicated: false },
                Enqueued { job: full_job(), deduplicated: true },
            ]),
            encode_answer,
            decode_answer,
        ),
        sample("row_answer_claimed", Answer::Claimed(vec![full_job(), small_job()]), encode_answer, decode_answer),
        sample("row_answer_completed", Answer::Completed(Box::new(full_job())), encode_answer, decode_answer),
        sample("row_member", member(3), encode_member, decode_member),
        sample("row_meta", meta(), encode_meta, decode_meta),
        sample("row_meta_default", Meta::default(), encode_meta, decode_meta),
        sample(
            "row_attestation",
            (AttestationType::parse("", "application/vnd.in-toto+json").unwrap(), b"{\"x\":1}".to_vec()),
            |(attestation_type, bytes), out| encode_attestation(attestation_type, bytes, out),
            decode_attestation,
        ),
        sample(
            "row_blob",
            b"payload \x00\xff".to_vec(),
            |bytes, out| encode_blob(bytes, out),
            |bytes| decode_blob(bytes).map(<[u8]>::to_vec),
        ),
        sample("row_audit", audit_record(), encode_audit, decode_audit),
        sample("entry_id", EntryId::new(5, 2, 77), encode_entry_id, decode_entry_id),
        sample(
            "identity",
            Identity { replica_id: ReplicaId(3), cluster_id: ClusterId([7; 16]) },
            encode_identity,
            decode_identity,
        ),
        sample("vote", Vote { term: 5, replica_id: ReplicaId(2), committed: true }, encode_vote, decode_vote),
        sample("applied_mark", mark(), encode_applied_mark, decode_applied_mark),
        sample("snapshot_meta", snapshot_meta(), encode_snapshot_meta, decode_snapshot_meta),
    ];
    for (name, commands) in entries() {
        let entry = Entry { lease_now: LeaseTime(123_456), wall_now: WallTime(1_750_000_000_123), commands };
        samples.push(sample(&format!("entry_{name}"), entry, encode_entry_into, decode_entry));
    }
    samples
}

/// What release 0.2.0 added: claims' numbers in commands, and queues that require them.
fn fenced() -> Vec<Sample> {
    let (job_id, worker) = (Some(JobId(258)), WorkerLabel::parse("", "host-7|slot 1").unwrap());
    let fencing_token = Some(7);
    let heartbeat = |fencing_token, progress: &[u8]| Heartbeat {
        job_id,
        worker: worker.clone(),
        fencing_token,
        lease_ms: Some(700),
        progress: progress.to_vec(),
    };
    let complete = |fencing_token| Complete {
        job_id,
        worker: worker.clone(),
        fencing_token,
        result: b"ok".to_vec(),
        attestation: Some(NewAttestation {
            attestation_type: AttestationType::parse("", "text/plain").unwrap(),
            bytes: b"seen".to_vec(),
        }),
        request_id: Some(RequestId::parse("", "d-1").unwrap()),
    };
    let fail = Fail {
        job_id,
        worker: worker.clone(),
        fencing_token,
        reason: "no disk".into(),
        retry_after_ms: Some(0),
        permanent: true,
    };
    let patch = |fencing| QueuePolicyPatch { fencing: Some(fencing), ..QueuePolicyPatch::default() };
    let update = |fencing| UpdateQueue { queue: queue("builds"), patch: patch(fencing) };
    let operations = [
        ("03_heartbeat", Operation::Heartbeat(vec![heartbeat(Some(u32::MAX), b"50 %"), heartbeat(None, b"")])),
        ("04_complete", Operation::Complete(vec![complete(Some(1)), complete(None)])),
        ("05_fail", Operation::Fail(fail)),
        ("06_release", Operation::Release(Release { job_id, worker: worker.clone(), fencing_token })),
        ("10_update_queue_required", Operation::UpdateQueue(update(Fencing::Required))),
        ("10_update_queue_optional", Operation::UpdateQueue(update(Fencing::Optional))),
    ];
    let entry = |(name, operation): (&str, Operation)| {
        let actor = Actor::Principal(PrincipalName::parse("", "ci/builder").unwrap());
        let commands = vec![Command { actor, operation }];
        let entry = Entry { lease_now: LeaseTime(123_456), wall_now: WallTime(1_750_000_000_123), commands };
        sample(&format!("entry_kind_{name}"), entry, encode_entry_into, decode_entry)
    };
    let mut samples: Vec<_> = operations.into_iter().map(entry).collect();
    let required = QueuePolicy { fencing: Fencing::Required, ..policy() };
    samples.push(sample(
        "row_queue_required",
        (queue("builds/x86"), required),
        |(queue, policy), out| encode_queue(queue, policy, out),
        decode_queue,
    ));
    samples
}

/// One of each kind, a tick, and one with several commands.
fn entries() -> Vec<(String, Vec<Command>)> {
    let by = |operation: Operation| Command {
        actor: Actor::Principal(PrincipalName::parse("", "ci/builder").unwrap()),
        operation,
    };
    let own = |operation: Operation| Command { actor: Actor::System, operation };
    let work = work().into_iter().map(|(name, operation)| (name, by(operation)));
    let cluster = cluster().into_iter().map(|(name, operation)| (name, own(operation)));
    let commands: Vec<_> = work.chain(cluster).collect();
    let several = commands.iter().map(|(_, command)| command.clone()).collect();
    let mut entries: Vec<_> =
        commands.into_iter().map(|(name, command)| (format!("kind_{name}"), vec![command])).collect();
    entries.push(("tick".into(), Vec::new()));
    entries.push(("several".into(), several));
    entries
}

fn work() -> Vec<(&'static str, Operation)> {
    let job_id = Some(JobId(258));
    let worker = || WorkerLabel::parse("", "host-7|slot 1").unwrap();
    let request_id = |text| Some(RequestId::parse("", text).unwrap());
    let new_job = |start| NewJob {
        queue: queue("builds"),
        payload: b"make all".to_vec(),
        priority: -3,
        start,
        max_attempts: Some(5),
        lease_ms: Some(60_000),
        dedupe_key: Some(DedupeKey::parse("", "commit-1").unwrap()),
        labels: labels(),
    };
    let plain = NewJob {
        queue: queue("q"),
        payload: Vec::new(),
        priority: 0,
        start: Start::Now,
        max_attempts: None,
        lease_ms: None,
        dedupe_key: None,
        labels: BTreeMap::new(),
    };
    let jobs = vec![new_job(Start::After(0)), new_job(Start::At(WallTime(1_800_000_000_000))), plain];
    let queues = vec![queue("builds"), queue("q")];
    let attestation_type = AttestationType::parse("", "text/plain").unwrap();
    vec![
        ("01_enqueue", Operation::Enqueue(Enqueue { jobs, request_id: request_id("e-1") })),
        (
            "02_claim",
            Operation::Claim(ClaimJobs {
                queues,
                worker: worker(),
                lease_ms: Some(500),
                jobs_max: 3,
                request_id: request_id("c-1"),
            }),
        ),
        (
            "03_heartbeat",
            Operation::Heartbeat(vec![
                Heartbeat {
                    fencing_token: None,
                    job_id,
                    worker: worker(),
                    lease_ms: Some(700),
                    progress: b"50 %".to_vec(),
                },
                Heartbeat { fencing_token: None, job_id: None, worker: worker(), lease_ms: None, progress: Vec::new() },
            ]),
        ),
        (
            "04_complete",
            Operation::Complete(vec![
                Complete {
                    fencing_token: None,
                    job_id,
                    worker: worker(),
                    result: b"ok".to_vec(),
                    attestation: Some(NewAttestation { attestation_type, bytes: b"seen".to_vec() }),
                    request_id: request_id("d-1"),
                },
                Complete {
                    fencing_token: None,
                    job_id: None,
                    worker: worker(),
                    result: Vec::new(),
                    attestation: None,
                    request_id: None,
                },
            ]),
        ),
        (
            "05_fail",
            Operation::Fail(Fail {
                fencing_token: None,
                job_id,
                worker: worker(),
                reason: "exit 1".into(),
                retry_after_ms: Some(0),
                permanent: true,
            }),
        ),
        ("06_release", Operation::Release(Release { fencing_token: None, job_id, worker: worker() })),
        (
            "07_release_undelivered",
            Operation::ReleaseUndelivered(vec![Undelivered { job_id: JobId(258), attempts: 2 }]),
        ),
        ("08_cancel", Operation::Cancel(JobId(258))),
        ("09_retry", Operation::Retry(JobId(258))),
    ]
}

fn cluster() -> Vec<(&'static str, Operation)> {
    let patch = QueuePolicyPatch {
        fencing: Default::default(),
        paused: Some(false),
        default_lease_ms: Some(30_000),
        max_attempts: Some(20),
        retention_ms: Some(0),
        concurrency_limit: Some(0),
    };
    vec![
        ("10_update_queue", Operation::UpdateQueue(UpdateQueue { queue: queue("builds"), patch })),
        (
            "11_init_cluster",
            Operation::InitCluster(InitCluster { cluster_id: ClusterId([9; 16]), members: vec![member(1), member(2)] }),
        ),
        ("12_register_replica", Operation::RegisterReplica(member(4))),
        ("13_allocate_replica", Operation::AllocateReplica),
        ("14_forget_replica", Operation::ForgetReplica(ReplicaId(4))),
        ("15_set_cluster_version", Operation::SetClusterVersion(2)),
        ("16_hold_cluster_version", Operation::HoldClusterVersion(true)),
    ]
}

fn queue(text: &str) -> QueueName {
    QueueName::parse("queue", text).unwrap()
}

fn labels() -> BTreeMap<String, String> {
    [("branch", "main"), ("ärger", "🦀")].map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

fn policy() -> QueuePolicy {
    QueuePolicy {
        fencing: Default::default(),
        paused: true,
        default_lease_ms: 15_000,
        max_attempts: 7,
        retention_ms: 86_400_000,
        concurrency_limit: Some(0),
    }
}

fn small_job() -> Job {
    Job {
        job_id: JobId(1),
        queue: queue("q"),
        state: JobState::Ready,
        priority: 0,
        attempts: 0,
        releases: 0,
        max_attempts: 20,
        retry_budget: 20,
        lease_ms: None,
        run_at: WallTime(1_750_000_000_000),
        created_at: WallTime(1_750_000_000_000),
        payload_bytes: 0,
        claim: None,
        notes: None,
    }
}

fn full_job() -> Job {
    let claim = Claim {
        claimed_by: ClaimedBy::from_stored("ci/builder|host-7|slot 1").unwrap(),
        lease_ms: 60_000,
        lease_ends_at: LeaseTime(183_456),
        lease_ends_wall: WallTime(1_750_000_060_123),
        lapsed: true,
    };
    let notes = JobNotes {
        dedupe_key: Some(DedupeKey::parse("", "commit-1").unwrap()),
        labels: labels(),
        reason: "exit 1".into(),
        progress_bytes: 4,
        result_bytes: 2,
        attestation: Some(Digest::of(b"seen")),
        finished_at: Some(WallTime(1_750_000_050_000)),
        cancel_requested_at: Some(WallTime(0)),
    };
    Job {
        job_id: JobId(258),
        queue: queue("builds"),
        state: JobState::Claimed,
        priority: -3,
        attempts: 4,
        releases: 1,
        max_attempts: 5,
        retry_budget: 6,
        lease_ms: Some(0),
        run_at: WallTime(1_750_000_000_000),
        created_at: WallTime(1_749_999_999_999),
        payload_bytes: 8,
        claim: Some(Box::new(claim)),
        notes: Some(Box::new(notes)),
    }
}

fn reply() -> Reply {
    Reply {
        reply_key: ReplyKey([1; 16]),
        content: [2; 16],
        applied_at: LogPosition { term: 3, log_index: 4 },
        answered_at: LeaseTime(5),
        reply_number: 6,
    }
}

fn member(number: u64) -> Member {
    Member {
        replica_id: ReplicaId(number),
        addr: Addr::parse("", "a.example:7400").unwrap(),
        peer_addr: Addr::parse("", "a.example:8400").unwrap(),
        release: "0.1.0".into(),
        min_version: 1,
        max_version: 1,
    }
}

fn meta() -> Meta {
    Meta {
        cluster_id: ClusterId([9; 16]),
        cluster_version: 2,
        version_held: true,
        lease_now: LeaseTime(123_456),
        wall_now: WallTime(1_750_000_000_123),
        next_job_id: JobId(259),
        next_replica_id: ReplicaId(5),
        reply_number: 6,
        audit_head: AuditHead { sequence: 11, hash: Digest::of(b"head") },
        rows: RowSum::from_bytes(Digest::of(b"rows").0),
        content_head: Digest::of(b"content"),
    }
}

fn audit_record() -> AuditRecord {
    let actor = Actor::Principal(PrincipalName::parse("", "ci/builder").unwrap());
    let mut event = AuditEvent::new(&actor, "complete", "done").detail("priority", "-3");
    event.job_id = Some(JobId(258));
    event.queue = "builds".into();
    event.attempts = 4;
    event.worker = "host-7|slot 1".into();
    event.request_id = "d-1".into();
    let head = AuditHead { sequence: 11, hash: Digest::of(b"head") };
    AuditRecord::after(head, LogPosition { term: 3, log_index: 4 }, WallTime(1_750_000_000_123), event)
}

fn mark() -> AppliedMark {
    AppliedMark {
        applied: Some(EntryId::new(5, 2, 77)),
        membership: b"members".as_slice().into(),
        membership_at: Some(EntryId::new(1, 1, 0)),
    }
}

fn snapshot_meta() -> SnapshotMeta {
    let file = |name: &str, bytes, crc32| SnapshotFile { name: name.into(), bytes, crc32 };
    SnapshotMeta {
        mark: mark(),
        cluster_version: 1,
        data_format: 1,
        files: vec![file("000012.sst", 4096, 0xdead_beef), file("CURRENT", 16, 1)],
    }
}

/// Lines of 32 bytes.
fn hex(bytes: &[u8]) -> String {
    let line = |line: &[u8]| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n";
    bytes.chunks(32).map(line).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}
