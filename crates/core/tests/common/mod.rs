//! A small world around the state machine: a log, two clocks, a store, and a language to write tests in.
//!
//! After every entry it checks all that must always hold, see [`World::apply`].

pub mod model;
pub mod rows;

use std::collections::BTreeMap;

use ag_core::audit::{AuditRecord, verify_chain};
use ag_core::change::Change;
use ag_core::command::{
    Actor, ClaimJobs, Command, Complete, Context, Enqueue, Entry, Fail, Heartbeat, NewJob, Operation, Release, Start,
    Undelivered, UpdateQueue,
};
use ag_core::job::{Job, JobState};
use ag_core::name::{DedupeKey, JobId, LogPosition, PrincipalName, QueueName, RequestId, WorkerLabel};
use ag_core::outcome::{Applied, Completion, Enqueued, Extended, Outcome, Replayed};
use ag_core::queue::{QueuePolicy, QueuePolicyPatch};
use ag_core::rejection::Rejection;
use ag_core::time::{LeaseTime, WallTime};
use ag_core::{State, invariant};

use rows::Rows;

/// The wall time at which every world begins, in milliseconds: 2023-11-14.
pub const WALL_START: u64 = 1_700_000_000_000;
/// The lease of claims in queues with a default policy, in milliseconds.
pub const LEASE_MS: u64 = 30_000;
/// The principal of calls that name none.
pub const PRINCIPAL: &str = "acme";

/// See the module.
pub struct World {
    /// The state under test.
    pub state: State,
    /// What a store would hold.
    pub rows: Rows,
    /// Every record of the audit log, in order.
    pub audit: Vec<AuditRecord>,
    /// The lease clock that the next entry is stamped with.
    pub lease_now: u64,
    /// The wall clock that the next entry is stamped with.
    pub wall_now: u64,
    /// Where the next entry stands.
    pub next: Context,
}

impl World {
    /// An empty state.
    pub fn new() -> Self {
        Self {
            state: State::default(),
            rows: Rows::default(),
            audit: Vec::new(),
            lease_now: 1_000,
            wall_now: WALL_START,
            next: LogPosition { term: 1, log_index: 1 },
        }
    }

    /// Applies one entry of these commands, and checks that
    ///
    /// - all invariants hold,
    /// - the changes alone lead from the state before to the state after, and to the same hash,
    /// - the same entry, applied to a copy of the state before, comes to the same,
    /// - `attempts` of no job fell, and no job's number came back,
    /// - the new audit records continue the chain.
    pub fn apply(&mut self, commands: Vec<Command>) -> Applied {
        let entry = Entry { lease_now: LeaseTime(self.lease_now), wall_now: WallTime(self.wall_now), commands };
        let before = self.state.clone();
        let asked = entry.commands.len();
        let applied = self.state.apply(self.next, entry.clone());
        assert_eq!(applied.outcomes.len(), asked, "one outcome a command");
        invariant::check_all(&self.state).unwrap_or_else(|violation| panic!("{violation}"));

        let mut twin = before.clone();
        let twin_applied = twin.apply(self.next, entry);
        assert_eq!(twin_applied.outcomes, applied.outcomes);
        assert_eq!(twin.state_hash(), self.state.state_hash());

        let mut evolved = before.clone();
        applied.changes.iter().for_each(|change| evolved.evolve(change));
        assert_eq!(evolved, self.state, "the changes are not what was done");
        assert_eq!(evolved.state_hash(), self.state.state_hash());

        check_numbers(&before, &applied.changes);
        let records: Vec<_> = applied.changes.iter().filter_map(audit_record).cloned().collect();
        let head = verify_chain(before.meta().audit_head, &records).unwrap();
        assert_eq!(head, self.state.meta().audit_head);
        self.audit.extend(records);
        self.rows.commit(&applied.changes);
        self.next.log_index += 1;
        applied
    }

    /// Applies one entry of one command.
    pub fn ask(&mut self, principal: &str, operation: Operation) -> Outcome {
        self.apply(vec![command(principal, operation)]).outcomes.remove(0)
    }

    /// Both clocks move on, and an entry without commands is applied.
    pub fn time_passes(&mut self, ms: u64) {
        self.wall_now += ms;
        self.lease_passes(ms);
    }

    /// Only lease time moves on.
    pub fn lease_passes(&mut self, ms: u64) {
        self.lease_now += ms;
        _ = self.apply(Vec::new());
    }

    /// The wall clock steps, forward or back; no lease time passes.
    pub fn wall_jumps(&mut self, ms: i64) {
        self.wall_now = self.wall_now.checked_add_signed(ms).unwrap();
        _ = self.apply(Vec::new());
    }

    /// Enqueues a plain job.
    pub fn enqueue(&mut self, queue: &str) -> JobId {
        self.enqueue_job(new_job(queue)).job.job_id
    }

    /// Enqueues a job.
    pub fn enqueue_job(&mut self, job: NewJob) -> Enqueued {
        let outcome = self.ask(PRINCIPAL, Operation::Enqueue(Enqueue { jobs: vec![job], request_id: None }));
        let Outcome::Enqueued(mut enqueued) = outcome else { panic!("{outcome:?}") };
        enqueued.remove(0)
    }

    /// Claims the next job of a queue; there must be one.
    pub fn claim(&mut self, queue: &str, worker: &str) -> Job {
        self.try_claim(queue, worker).expect("a job to claim")
    }

    /// Claims the next job of a queue, if there is one.
    pub fn try_claim(&mut self, queue: &str, worker: &str) -> Option<Job> {
        self.claim_batch(&[queue], worker, 1).pop()
    }

    /// Claims up to `jobs_max` jobs of several queues.
    pub fn claim_batch(&mut self, queues: &[&str], worker: &str, jobs_max: u32) -> Vec<Job> {
        let outcome = self.ask(PRINCIPAL, Operation::Claim(claim_jobs(queues, worker, jobs_max)));
        let Outcome::Claimed(jobs) = outcome else { panic!("{outcome:?}") };
        jobs
    }

    /// Extends a claim, without a lease and without progress.
    pub fn heartbeat(&mut self, job_id: JobId, worker: &str) -> Result<Extended, Rejection> {
        self.heartbeat_with(job_id, worker, None, b"")
    }

    /// Extends a claim.
    pub fn heartbeat_with(
        &mut self,
        job_id: JobId,
        worker: &str,
        lease_ms: Option<u32>,
        progress: &[u8],
    ) -> Result<Extended, Rejection> {
        let entry = Heartbeat {
            job_id: Some(job_id),
            worker: label(worker),
            fencing_token: None,
            lease_ms,
            progress: progress.into(),
        };
        let outcome = self.ask(PRINCIPAL, Operation::Heartbeat(vec![entry]));
        let Outcome::Heartbeats(mut entries) = outcome else { panic!("{outcome:?}") };
        entries.remove(0)
    }

    /// Completes a claim.
    pub fn complete(&mut self, job_id: JobId, worker: &str, result: &[u8]) -> Result<Job, Rejection> {
        let outcome = self.ask(PRINCIPAL, Operation::Complete(vec![completion(job_id, worker, result)]));
        let Outcome::Completed(mut entries) = outcome else { panic!("{outcome:?}") };
        match entries.remove(0)? {
            Completion::Now(done) => Ok(*done.job),
            Completion::Replayed(replayed) => panic!("{replayed:?}"),
        }
    }

    /// Reports a failed claim, to be tried again at once.
    pub fn fail(&mut self, job_id: JobId, worker: &str, reason: &str) -> Result<Job, Rejection> {
        job_of(self.ask(PRINCIPAL, Operation::Fail(failure(job_id, worker, reason))))
    }

    /// Gives a claim back.
    pub fn release(&mut self, job_id: JobId, worker: &str) -> Result<Job, Rejection> {
        let release = Release { job_id: Some(job_id), worker: label(worker), fencing_token: None };
        job_of(self.ask(PRINCIPAL, Operation::Release(release)))
    }

    /// Cancels a job.
    pub fn cancel(&mut self, job_id: JobId) -> Result<Job, Rejection> {
        job_of(self.ask(PRINCIPAL, Operation::Cancel(job_id)))
    }

    /// Retries a finished job.
    pub fn retry(&mut self, job_id: JobId) -> Result<Job, Rejection> {
        job_of(self.ask(PRINCIPAL, Operation::Retry(job_id)))
    }

    /// The cluster gives back a claim that nobody received.
    pub fn undelivered(&mut self, job_id: JobId, attempts: u32) {
        let operation = Operation::ReleaseUndelivered(vec![Undelivered { job_id, attempts }]);
        let applied = self.apply(vec![Command { actor: Actor::System, operation }]);
        assert_eq!(applied.outcomes, [Outcome::Done]);
    }

    /// Changes a queue's policy.
    pub fn update_queue(&mut self, queue: &str, patch: QueuePolicyPatch) -> QueuePolicy {
        let outcome = self.ask(PRINCIPAL, Operation::UpdateQueue(UpdateQueue { queue: queue_name(queue), patch }));
        let Outcome::Queue(policy) = outcome else { panic!("{outcome:?}") };
        policy
    }

    /// A job that is there.
    pub fn job(&self, job_id: JobId) -> &Job {
        self.state.job(job_id).expect("the job to be there")
    }

    /// Where a job stands.
    pub fn state_of(&self, job_id: JobId) -> JobState {
        self.job(job_id).state
    }

    /// Brings a job's `attempts` to a number that no test could reach by claiming, as a restored backup may hold.
    /// The job is as if each of these claims had been given back, so that its budget is whole.
    pub fn set_attempts(&mut self, job_id: JobId, attempts: u32) {
        let mut job = self.job(job_id).clone();
        (job.attempts, job.releases) = (attempts, attempts);
        let change = Change::PutJob(Box::new(job));
        self.state.evolve(&change);
        self.rows.commit(&[change]);
        invariant::check_all(&self.state).unwrap();
    }

    /// The state that a store with these rows would load.
    pub fn reloaded(&self) -> State {
        self.rows.load(self.state.meta().clone()).unwrap()
    }
}

fn audit_record(change: &Change) -> Option<&AuditRecord> {
    match change {
        Change::Audit(record) => Some(record),
        _ => None,
    }
}

/// The number of a job's claims never falls, a held job is not handed to another, and the number of a dropped job
/// never comes back.
fn check_numbers(before: &State, changes: &[Change]) {
    let mut newest: BTreeMap<JobId, &Job> = BTreeMap::new();
    for change in changes {
        let Change::PutJob(job) = change else { continue };
        match newest.get(&job.job_id).copied().or_else(|| before.job(job.job_id)) {
            Some(known) if known.attempts == job.attempts => {}
            Some(known) => {
                assert_eq!(known.attempts.checked_add(1), Some(job.attempts), "{known:?}, then {job:?}");
                assert!(known.held_claim().is_none(), "two holders: {known:?}, then {job:?}");
            }
            None => assert!(job.job_id >= before.meta().next_job_id && job.attempts == 0, "used before: {job:?}"),
        }
        newest.insert(job.job_id, job);
    }
}

/// A command of a principal.
pub fn command(principal: &str, operation: Operation) -> Command {
    Command { actor: actor(principal), operation }
}

/// A principal that asks.
pub fn actor(principal: &str) -> Actor {
    Actor::Principal(PrincipalName::parse("principal", principal).unwrap())
}

/// The name of a queue.
pub fn queue_name(name: &str) -> QueueName {
    QueueName::parse("queue", name).unwrap()
}

/// The label of a worker.
pub fn label(worker: &str) -> WorkerLabel {
    WorkerLabel::parse("worker", worker).unwrap()
}

/// A request id.
pub fn request_id(text: &str) -> RequestId {
    RequestId::parse("request_id", text).unwrap()
}

/// A plain job for a queue.
pub fn new_job(queue: &str) -> NewJob {
    NewJob {
        queue: queue_name(queue),
        payload: b"payload".to_vec(),
        priority: 0,
        start: Start::Now,
        max_attempts: None,
        lease_ms: None,
        dedupe_key: None,
        labels: BTreeMap::new(),
    }
}

/// A plain job with a dedupe key.
pub fn keyed_job(queue: &str, dedupe_key: &str) -> NewJob {
    NewJob { dedupe_key: Some(DedupeKey::parse("dedupe_key", dedupe_key).unwrap()), ..new_job(queue) }
}

/// A claim of up to `jobs_max` jobs.
pub fn claim_jobs(queues: &[&str], worker: &str, jobs_max: u32) -> ClaimJobs {
    let queues = queues.iter().map(|name| queue_name(name)).collect();
    ClaimJobs { queues, worker: label(worker), lease_ms: None, jobs_max, request_id: None }
}

/// A completion without an attestation.
pub fn completion(job_id: JobId, worker: &str, result: &[u8]) -> Complete {
    Complete {
        job_id: Some(job_id),
        worker: label(worker),
        fencing_token: None,
        result: result.into(),
        attestation: None,
        request_id: None,
    }
}

/// A failure, to be tried again at once.
pub fn failure(job_id: JobId, worker: &str, reason: &str) -> Fail {
    let (job_id, worker) = (Some(job_id), label(worker));
    Fail { job_id, worker, fencing_token: None, reason: reason.into(), retry_after_ms: None, permanent: false }
}

/// The job that a verb gave back.
pub fn job_of(outcome: Outcome) -> Result<Job, Rejection> {
    match outcome {
        Outcome::Job(changed) => Ok(*changed.job),
        Outcome::Rejected(rejection) => Err(rejection),
        other => panic!("{other:?}"),
    }
}

/// The first answer to which a repeated call leads.
pub fn replayed(outcome: Outcome) -> Replayed {
    match outcome {
        Outcome::Replayed(replayed) => replayed,
        Outcome::Completed(mut entries) => match entries.remove(0) {
            Ok(Completion::Replayed(replayed)) => replayed,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}
