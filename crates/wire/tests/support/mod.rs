//! Arbitrary values of everything that is stored.

use std::collections::BTreeMap;

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
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

pub fn queue_name() -> impl Strategy<Value = QueueName> {
    "[A-Za-z0-9._-]{1,20}".prop_map(|text| QueueName::parse("queue", &text).unwrap())
}

fn principal() -> impl Strategy<Value = PrincipalName> {
    "[A-Za-z0-9._-]{1,20}".prop_map(|text| PrincipalName::parse("principal", &text).unwrap())
}

/// Texts with what tends to break encodings: `|`, letters of several bytes, an emoji.
fn text() -> impl Strategy<Value = String> {
    "[a-z|äß漢🦀 ]{1,12}"
}

fn worker() -> impl Strategy<Value = WorkerLabel> {
    text().prop_map(|text| WorkerLabel::parse("worker", &text).unwrap())
}

fn request_id() -> impl Strategy<Value = Option<RequestId>> {
    option::of(text().prop_map(|text| RequestId::parse("request_id", &text).unwrap()))
}

fn dedupe_key() -> impl Strategy<Value = Option<DedupeKey>> {
    option::of(text().prop_map(|text| DedupeKey::parse("dedupe_key", &text).unwrap()))
}

fn addr() -> impl Strategy<Value = Addr> {
    "[a-z]{1,10}:[0-9]{1,5}".prop_map(|text| Addr::parse("addr", &text).unwrap())
}

pub fn attestation_type() -> impl Strategy<Value = AttestationType> {
    "[a-z/+]{1,20}".prop_map(|text| AttestationType::parse("attestation_type", &text).unwrap())
}

pub fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![Just(Vec::new()), vec(any::<u8>(), 1..8), vec(any::<u8>(), 100..300)]
}

fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    btree_map("[a-z]{0,6}", ".{0,6}", 0..4)
}

fn job_id() -> impl Strategy<Value = Option<JobId>> {
    option::of(any::<u64>().prop_map(JobId))
}

fn start() -> impl Strategy<Value = Start> {
    prop_oneof![
        Just(Start::Now),
        any::<u64>().prop_map(Start::After),
        any::<u64>().prop_map(|ms| Start::At(WallTime(ms))),
    ]
}

fn new_job() -> impl Strategy<Value = NewJob> {
    let small = (option::of(any::<u32>()), option::of(any::<u32>()), dedupe_key(), labels());
    (queue_name(), bytes(), any::<i32>(), start(), small).prop_map(|(queue, payload, priority, start, small)| {
        let (max_attempts, lease_ms, dedupe_key, labels) = small;
        NewJob { queue, payload, priority, start, max_attempts, lease_ms, dedupe_key, labels }
    })
}

fn fencing_token() -> impl Strategy<Value = Option<u32>> {
    option::of(prop_oneof![Just(1), Just(u32::MAX), any::<u32>()])
}

fn fencing() -> impl Strategy<Value = Fencing> {
    prop_oneof![Just(Fencing::Optional), Just(Fencing::Required)]
}

fn heartbeat() -> impl Strategy<Value = Heartbeat> {
    (job_id(), worker(), fencing_token(), option::of(any::<u32>()), bytes()).prop_map(
        |(job_id, worker, fencing_token, lease_ms, progress)| Heartbeat {
            job_id,
            worker,
            fencing_token,
            lease_ms,
            progress,
        },
    )
}

fn complete() -> impl Strategy<Value = Complete> {
    let attestation =
        (attestation_type(), bytes()).prop_map(|(attestation_type, bytes)| NewAttestation { attestation_type, bytes });
    (job_id(), worker(), fencing_token(), bytes(), option::of(attestation), request_id()).prop_map(
        |(job_id, worker, fencing_token, result, attestation, request_id)| Complete {
            job_id,
            worker,
            fencing_token,
            result,
            attestation,
            request_id,
        },
    )
}

fn fail() -> impl Strategy<Value = Fail> {
    (job_id(), worker(), fencing_token(), ".{0,20}", option::of(any::<u64>()), any::<bool>()).prop_map(
        |(job_id, worker, fencing_token, reason, retry_after_ms, permanent)| Fail {
            job_id,
            worker,
            fencing_token,
            reason,
            retry_after_ms,
            permanent,
        },
    )
}

pub fn member() -> impl Strategy<Value = Member> {
    (any::<u64>(), addr(), addr(), ".{0,10}", any::<u32>(), any::<u32>()).prop_map(
        |(replica_id, addr, peer_addr, release, min_version, max_version)| Member {
            replica_id: ReplicaId(replica_id),
            addr,
            peer_addr,
            release,
            min_version,
            max_version,
        },
    )
}

fn patch() -> impl Strategy<Value = QueuePolicyPatch> {
    let small = (option::of(any::<bool>()), option::of(any::<u32>()), option::of(any::<u32>()));
    (small, option::of(any::<u64>()), option::of(any::<u32>()), option::of(fencing())).prop_map(
        |((paused, default_lease_ms, max_attempts), retention_ms, concurrency_limit, fencing)| QueuePolicyPatch {
            fencing,
            paused,
            default_lease_ms,
            max_attempts,
            retention_ms,
            concurrency_limit,
        },
    )
}

fn work() -> impl Strategy<Value = Operation> {
    let claim = (vec(queue_name(), 1..4), worker(), option::of(any::<u32>()), any::<u32>(), request_id());
    let undelivered =
        (any::<u64>(), any::<u32>()).prop_map(|(job_id, attempts)| Undelivered { job_id: JobId(job_id), attempts });
    prop_oneof![
        (vec(new_job(), 0..4), request_id())
            .prop_map(|(jobs, request_id)| Operation::Enqueue(Enqueue { jobs, request_id })),
        claim.prop_map(|(queues, worker, lease_ms, jobs_max, request_id)| {
            Operation::Claim(ClaimJobs { queues, worker, lease_ms, jobs_max, request_id })
        }),
        vec(heartbeat(), 0..4).prop_map(Operation::Heartbeat),
        vec(complete(), 0..4).prop_map(Operation::Complete),
        fail().prop_map(Operation::Fail),
        (job_id(), worker(), fencing_token()).prop_map(|(job_id, worker, fencing_token)| {
            Operation::Release(Release { job_id, worker, fencing_token })
        }),
        vec(undelivered, 0..4).prop_map(Operation::ReleaseUndelivered),
        any::<u64>().prop_map(|job_id| Operation::Cancel(JobId(job_id))),
        any::<u64>().prop_map(|job_id| Operation::Retry(JobId(job_id))),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let init = (any::<[u8; 16]>(), vec(member(), 0..3));
    prop_oneof![
        8 => work(),
        1 => (queue_name(), patch()).prop_map(|(queue, patch)| Operation::UpdateQueue(UpdateQueue { queue, patch })),
        1 => init.prop_map(|(cluster_id, members)| {
            Operation::InitCluster(InitCluster { cluster_id: ClusterId(cluster_id), members })
        }),
        1 => member().prop_map(Operation::RegisterReplica),
        1 => Just(Operation::AllocateReplica),
        1 => any::<u64>().prop_map(|replica_id| Operation::ForgetReplica(ReplicaId(replica_id))),
        1 => any::<u32>().prop_map(Operation::SetClusterVersion),
        1 => any::<bool>().prop_map(Operation::HoldClusterVersion),
    ]
}

fn actor() -> impl Strategy<Value = Actor> {
    prop_oneof![Just(Actor::System), principal().prop_map(Actor::Principal)]
}

pub fn entry() -> impl Strategy<Value = Entry> {
    let command = (actor(), operation()).prop_map(|(actor, operation)| Command { actor, operation });
    (any::<u64>(), any::<u64>(), vec(command, 0..5)).prop_map(|(lease_now, wall_now, commands)| Entry {
        lease_now: LeaseTime(lease_now),
        wall_now: WallTime(wall_now),
        commands,
    })
}

fn claim() -> impl Strategy<Value = Claim> {
    (principal(), worker(), any::<u32>(), any::<u64>(), any::<u64>(), any::<bool>()).prop_map(
        |(principal, worker, lease_ms, ends_at, ends_wall, lapsed)| Claim {
            claimed_by: ClaimedBy::new(&principal, &worker),
            lease_ms,
            lease_ends_at: LeaseTime(ends_at),
            lease_ends_wall: WallTime(ends_wall),
            lapsed,
        },
    )
}

fn notes() -> impl Strategy<Value = JobNotes> {
    let times = (option::of(any::<u64>()), option::of(any::<u64>()));
    let digest = option::of(any::<[u8; 32]>());
    (dedupe_key(), labels(), ".{0,20}", any::<u32>(), any::<u32>(), digest, times).prop_map(
        |(dedupe_key, labels, reason, progress_bytes, result_bytes, digest, times)| JobNotes {
            dedupe_key,
            labels,
            reason,
            progress_bytes,
            result_bytes,
            attestation: digest.map(Digest),
            finished_at: times.0.map(WallTime),
            cancel_requested_at: times.1.map(WallTime),
        },
    )
}

pub fn job() -> impl Strategy<Value = Job> {
    let states = [
        JobState::Scheduled,
        JobState::Ready,
        JobState::Claimed,
        JobState::Completed,
        JobState::Dead,
        JobState::Cancelled,
    ];
    let numbers = (any::<u64>(), any::<i32>(), any::<[u32; 5]>(), option::of(any::<u32>()), any::<[u64; 2]>());
    let parts = (option::of(claim()), option::of(notes()));
    (queue_name(), prop::sample::select(states.to_vec()), numbers, parts).prop_map(|(queue, state, numbers, parts)| {
        let (job_id, priority, small, lease_ms, times) = numbers;
        let mut job = Job {
            job_id: JobId(job_id),
            queue,
            state,
            priority,
            attempts: small[0],
            releases: small[1],
            max_attempts: small[2],
            retry_budget: small[3],
            payload_bytes: small[4],
            lease_ms,
            run_at: WallTime(times[0]),
            created_at: WallTime(times[1]),
            claim: parts.0.map(Box::new),
            notes: parts.1.map(Box::new),
        };
        job.normalize();
        job
    })
}

pub fn policy() -> impl Strategy<Value = QueuePolicy> {
    (any::<bool>(), any::<u32>(), any::<u32>(), any::<u64>(), option::of(any::<u32>())).prop_map(
        |(paused, default_lease_ms, max_attempts, retention_ms, concurrency_limit)| QueuePolicy {
            fencing: Default::default(),
            paused,
            default_lease_ms,
            max_attempts,
            retention_ms,
            concurrency_limit,
        },
    )
}

pub fn reply() -> impl Strategy<Value = Reply> {
    (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<[u64; 4]>()).prop_map(|(reply_key, content, numbers)| Reply {
        reply_key: ReplyKey(reply_key),
        content,
        applied_at: LogPosition { term: numbers[0], log_index: numbers[1] },
        answered_at: LeaseTime(numbers[2]),
        reply_number: numbers[3],
    })
}

pub fn answer() -> impl Strategy<Value = Answer> {
    let enqueued = (job(), any::<bool>()).prop_map(|(job, deduplicated)| Enqueued { job, deduplicated });
    prop_oneof![
        vec(enqueued, 0..3).prop_map(Answer::Enqueued),
        vec(job(), 0..3).prop_map(Answer::Claimed),
        job().prop_map(|job| Answer::Completed(Box::new(job))),
    ]
}

pub fn meta() -> impl Strategy<Value = Meta> {
    let small = (any::<u32>(), any::<bool>(), any::<[u64; 6]>());
    (any::<[u8; 16]>(), small, any::<[[u8; 32]; 3]>()).prop_map(|(cluster_id, small, [hash, rows, content])| {
        let (cluster_version, version_held, numbers) = small;
        Meta {
            cluster_id: ClusterId(cluster_id),
            cluster_version,
            version_held,
            lease_now: LeaseTime(numbers[0]),
            wall_now: WallTime(numbers[1]),
            next_job_id: JobId(numbers[2]),
            next_replica_id: ReplicaId(numbers[3]),
            reply_number: numbers[4],
            audit_head: AuditHead { sequence: numbers[5], hash: Digest(hash) },
            rows: RowSum::from_bytes(rows),
            content_head: Digest(content),
        }
    })
}

pub fn audit_record() -> impl Strategy<Value = AuditRecord> {
    let numbers = (any::<[u64; 3]>(), 0..u64::MAX, any::<u32>());
    (actor(), text(), text(), job_id(), any::<[u8; 32]>(), numbers, labels()).prop_map(
        |(actor, verb, worker, job_id, hash, numbers, details)| {
            let mut event = AuditEvent::new(&actor, &verb, "done");
            event.job_id = job_id.filter(|job_id| job_id.0 != 0);
            event.worker = worker;
            event.attempts = numbers.2;
            event.details = details;
            let head = AuditHead { sequence: numbers.1, hash: Digest(hash) };
            let [term, log_index, wall_now] = numbers.0;
            AuditRecord::after(head, LogPosition { term, log_index }, WallTime(wall_now), event)
        },
    )
}
