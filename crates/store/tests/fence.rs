//! The fence over both kinds of state table: what a stale claim sends changes nothing that is stored.

// A helper of a test that unwraps fails the test with the right line.
#![allow(clippy::unwrap_used)]

mod support;

use ag_core::State;
use ag_core::change::{BlobKind, Change};
use ag_core::command::*;
use ag_core::digest::Digest;
use ag_core::job::{Job, JobState};
use ag_core::name::*;
use ag_core::outcome::{Completion, Outcome};
use ag_core::rejection::Rejection;
use ag_core::time::{LeaseTime, WallTime};
use ag_store::{AppliedMark, EntryId, MemoryState, StateTable};
use support::{load, open};

const EVIDENCE: &[u8] = b"evidence of the stale claim";

/// A state machine over a table, as a replica runs it.
struct Host<'a> {
    table: &'a dyn StateTable,
    state: State,
    log_index: u64,
    now: u64,
}

impl Host<'_> {
    fn ask(&mut self, operation: Operation) -> Outcome {
        self.log_index += 1;
        let actor = Actor::Principal(PrincipalName::parse("", "acme").unwrap());
        let entry = Entry {
            lease_now: LeaseTime(self.now),
            wall_now: WallTime(1_750_000_000_000 + self.now),
            commands: vec![Command { actor, operation }],
        };
        let entry_id = EntryId::new(1, 1, self.log_index);
        let mut applied = self.state.apply(entry_id.position, entry);
        let mark = AppliedMark { applied: Some(entry_id), ..AppliedMark::default() };
        self.table.commit(&applied.changes, self.state.meta(), &mark).unwrap();
        applied.outcomes.remove(0)
    }

    fn claim(&mut self) -> Job {
        let claim = ClaimJobs {
            queues: vec![QueueName::parse("", "q").unwrap()],
            worker: worker(),
            lease_ms: Some(10_000),
            jobs_max: 1,
            request_id: None,
        };
        let Outcome::Claimed(mut jobs) = self.ask(Operation::Claim(claim)) else { panic!() };
        jobs.remove(0)
    }

    /// All that a stale call must leave as it is, read back from the table.
    fn stored(&self, job_id: JobId) -> Stored {
        let (state, _) = load(self.table).unwrap();
        assert_eq!(state.state_hash(), self.state.state_hash());
        let reader = self.table.reader();
        let blobs = [BlobKind::Payload, BlobKind::Progress, BlobKind::Result];
        let blobs = blobs.map(|kind| reader.blob(job_id, kind).unwrap()).to_vec();
        let evidence = reader.attestation(&Digest::of(EVIDENCE)).unwrap().map(|(_, bytes)| bytes);
        let counters = [state.meta().next_job_id.0, state.meta().reply_number, state.reply_count() as u64];
        Stored { job: state.job(job_id).unwrap().clone(), blobs, evidence, counters }
    }
}

#[derive(Debug, PartialEq)]
struct Stored {
    job: Job,
    /// Payload, progress, result.
    blobs: Vec<Option<Vec<u8>>>,
    evidence: Option<Vec<u8>>,
    counters: [u64; 3],
}

fn worker() -> WorkerLabel {
    WorkerLabel::parse("", "worker-7").unwrap()
}

fn calls(job_id: JobId, fencing_token: Option<u32>) -> [Operation; 4] {
    let (job_id, worker) = (Some(job_id), worker());
    let attestation_type = AttestationType::parse("", "application/vnd.in-toto+json").unwrap();
    let heartbeat = Heartbeat {
        job_id,
        worker: worker.clone(),
        fencing_token,
        lease_ms: Some(60_000),
        progress: b"progress of the stale claim".to_vec(),
    };
    let complete = Complete {
        job_id,
        worker: worker.clone(),
        fencing_token,
        result: b"result of the stale claim".to_vec(),
        attestation: Some(NewAttestation { attestation_type, bytes: EVIDENCE.to_vec() }),
        request_id: Some(RequestId::parse("", "r-1").unwrap()),
    };
    let fail = Fail {
        job_id,
        worker: worker.clone(),
        fencing_token,
        reason: "reason of the stale claim".into(),
        retry_after_ms: Some(1),
        permanent: true,
    };
    [
        Operation::Heartbeat(vec![heartbeat]),
        Operation::Fail(fail),
        Operation::Release(Release { job_id, worker, fencing_token }),
        Operation::Complete(vec![complete]),
    ]
}

fn refusal(outcome: Outcome) -> Option<Rejection> {
    match outcome {
        Outcome::Heartbeats(mut entries) => entries.remove(0).err(),
        Outcome::Completed(mut entries) => entries.remove(0).err(),
        Outcome::Rejected(rejection) => Some(rejection),
        _ => None,
    }
}

fn fences(table: &dyn StateTable) {
    let mut host = Host { table, state: State::default(), log_index: 0, now: 1_000 };
    host.ask(Operation::SetClusterVersion(2));
    let queue = QueueName::parse("", "q").unwrap();
    let job = NewJob {
        queue,
        payload: b"payload".to_vec(),
        priority: 0,
        start: Start::Now,
        max_attempts: None,
        lease_ms: None,
        dedupe_key: None,
        labels: Default::default(),
    };
    host.ask(Operation::Enqueue(Enqueue { jobs: vec![job], request_id: None }));
    let old = host.claim();
    host.now += 10_000;
    let new = host.claim();
    assert_eq!((new.job_id, old.attempts, new.attempts), (old.job_id, 1, 2));
    assert_eq!(new.claim.as_ref().unwrap().claimed_by, old.claim.as_ref().unwrap().claimed_by);

    let before = host.stored(old.job_id);
    let records = host.state.meta().audit_head.sequence;
    for (count, call) in (1..).zip(calls(old.job_id, Some(old.attempts))) {
        host.now += 10;
        assert_eq!(refusal(host.ask(call)), Some(Rejection::StaleFencingToken));
        assert_eq!(host.stored(old.job_id), before, "a stale call changed something");
        // The refusal's own record, and nothing else.
        assert_eq!(host.state.meta().audit_head.sequence, records + count);
    }

    // The newest claim's number, and no number, are accepted.
    for fencing_token in [Some(new.attempts), None] {
        let [heartbeat, ..] = calls(new.job_id, fencing_token);
        let Outcome::Heartbeats(entries) = host.ask(heartbeat) else { panic!() };
        assert_eq!(entries[0].as_ref().unwrap().fenced, fencing_token.is_some());
    }
    let [.., complete] = calls(new.job_id, Some(new.attempts));
    let Outcome::Completed(entries) = host.ask(complete) else { panic!() };
    assert!(matches!(&entries[0], Ok(Completion::Now(done)) if done.fenced));
    let stored = host.stored(new.job_id);
    assert_eq!((stored.job.state, stored.evidence.as_deref()), (JobState::Completed, Some(EVIDENCE)));
}

mod in_memory {
    #[test]
    fn a_claim_number_fences_a_stale_claimant_of_the_same_name() {
        super::fences(&ag_store::MemoryState::default());
    }
}

mod on_rocksdb {
    #[test]
    fn a_claim_number_fences_a_stale_claimant_of_the_same_name() {
        let folder = tempfile::tempdir().unwrap();
        super::fences(&super::open(folder.path()).state().unwrap());
    }
}

/// What the store is asked to do for a stale completion: nothing but the record of its refusal.
#[test]
fn a_stale_completion_asks_the_store_for_one_record_and_the_clock() {
    let table = MemoryState::default();
    let mut host = Host { table: &table, state: State::default(), log_index: 0, now: 1_000 };
    host.ask(Operation::SetClusterVersion(2));
    let queue = QueueName::parse("", "q").unwrap();
    let labels = Default::default();
    let (start, payload) = (Start::Now, Vec::new());
    let (max_attempts, lease_ms, dedupe_key) = (None, None, None);
    let job = NewJob { queue, payload, priority: 0, start, max_attempts, lease_ms, dedupe_key, labels };
    host.ask(Operation::Enqueue(Enqueue { jobs: vec![job], request_id: None }));
    host.claim();
    host.now += 10_000;
    let job_id = host.claim().job_id;
    let [.., complete] = calls(job_id, Some(1));
    let actor = Actor::Principal(PrincipalName::parse("", "acme").unwrap());
    let commands = vec![Command { actor, operation: complete }];
    let entry = Entry { lease_now: LeaseTime(host.now), wall_now: WallTime(1_750_000_000_000), commands };
    let applied = host.state.apply(LogPosition { term: 1, log_index: 99 }, entry);
    assert!(matches!(&applied.changes[..], [Change::Clocks { .. }, Change::Audit(_)]), "{:?}", applied.changes);
}
