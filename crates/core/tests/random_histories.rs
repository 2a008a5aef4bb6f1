//! Random histories of all operations, with both clocks moving, against the model and the laws of replication.

use ag_core::State;
use ag_core::command::{
    Actor, ClaimJobs, Command, Complete, Enqueue, Entry, Fail, Heartbeat, NewJob, Operation, Release, Start,
    Undelivered, UpdateQueue,
};
use ag_core::job::Job;
use ag_core::name::{JobId, LogPosition};
use ag_core::outcome::{Completion, Outcome};
use ag_core::queue::QueuePolicyPatch;
use ag_core::rejection::Rejection;
use ag_core::time::{LeaseTime, WallTime};
use proptest::prelude::*;

use crate::common::model::Model;
use crate::common::{World, actor, claim_jobs, completion, failure, keyed_job, label, new_job, queue_name, request_id};

const QUEUES: [&str; 2] = ["a", "b"];
const WORKERS: [&str; 3] = ["w", "v", "w|v"];
const PRINCIPALS: [&str; 2] = ["acme", "zeta"];
const JOBS: u64 = 9;

/// Who calls, on which job. Half of the calls are by the holder, if there is one.
#[derive(Clone, Copy, Debug)]
struct Call {
    principal: usize,
    worker: usize,
    job: u64,
    as_holder: bool,
}

#[derive(Clone, Debug)]
enum Intent {
    Enqueue(Vec<(usize, i32, u64, u32, Option<u8>)>, Option<u8>),
    Claim { queues: Vec<usize>, jobs_max: u32, lease_ms: Option<u32>, request: Option<u8> },
    Heartbeat { lease_ms: Option<u32>, progress: usize, extra: u64 },
    Complete { request: Option<u8>, extra: u64 },
    Fail { pause_ms: Option<u64>, permanent: bool },
    Release,
    Undelivered { attempts: u32 },
    Cancel,
    Retry,
    Update(QueuePolicyPatch),
}

type Moment = (u64, i64, Vec<(Call, Intent)>);

fn intent() -> impl Strategy<Value = Intent> {
    let lease = || prop::option::of(100..2_000_u32);
    let request = || prop::option::weighted(0.4, 0..4_u8);
    let job = (0..2_usize, -1..=1_i32, prop_oneof![2 => Just(0), 1 => 1..3_000_u64], 1..4_u32, request());
    let patch = (
        prop::option::of(prop::bool::weighted(0.2)),
        lease(),
        prop::option::of(1..4_u32),
        prop::option::of(0..4_000_u64),
        prop::option::of(0..3_u32),
    );
    let patch =
        patch.prop_map(|(paused, default_lease_ms, max_attempts, retention_ms, concurrency_limit)| QueuePolicyPatch {
            fencing: Default::default(),
            paused,
            default_lease_ms,
            max_attempts,
            retention_ms,
            concurrency_limit,
        });
    let claim = (prop::collection::vec(0..2_usize, 1..3), 1..4_u32, lease(), request());
    prop_oneof![
        4 => (prop::collection::vec(job, 1..3), request()).prop_map(|(jobs, request)| Intent::Enqueue(jobs, request)),
        6 => claim.prop_map(|(queues, jobs_max, lease_ms, request)| {
            Intent::Claim { queues, jobs_max, lease_ms, request }
        }),
        3 => (lease(), 0..4_usize, 1..=JOBS)
            .prop_map(|(lease_ms, progress, extra)| Intent::Heartbeat { lease_ms, progress, extra }),
        3 => (request(), 1..=JOBS).prop_map(|(request, extra)| Intent::Complete { request, extra }),
        3 => (prop::option::of(0..2_000_u64), prop::bool::weighted(0.2))
            .prop_map(|(pause_ms, permanent)| Intent::Fail { pause_ms, permanent }),
        2 => Just(Intent::Release),
        1 => (1..4_u32).prop_map(|attempts| Intent::Undelivered { attempts }),
        2 => Just(Intent::Cancel),
        2 => Just(Intent::Retry),
        1 => patch.prop_map(Intent::Update),
    ]
}

fn moment() -> impl Strategy<Value = Moment> {
    let call = (prop_oneof![3 => Just(0), 1 => Just(1)], 0..3_usize, 1..=JOBS, any::<bool>());
    let call = call.prop_map(|(principal, worker, job, as_holder)| Call { principal, worker, job, as_holder });
    let lease_ms = prop_oneof![3 => Just(0), 3 => 1..500_u64, 1 => 500..40_000_u64];
    let wall_ms =
        prop_oneof![3 => 0..500_i64, 1 => -4_000..4_000_i64, 1 => prop::sample::select(vec![-3_600_000, 3_600_000])];
    (lease_ms, wall_ms, prop::collection::vec((call, intent()), 0..4))
}

/// The caller: the holder of the job if it is meant to be, else as drawn.
fn caller(state: &State, call: Call) -> (String, String) {
    let claim = state.job(JobId(call.job)).and_then(|job| job.claim.as_ref()).filter(|_| call.as_holder);
    match claim.and_then(|claim| claim.claimed_by.as_str().split_once('|')) {
        Some((principal, worker)) => (principal.into(), worker.into()),
        None => (PRINCIPALS[call.principal].into(), WORKERS[call.worker].into()),
    }
}

fn new_of((queue, priority, delay_ms, max_attempts, key): (usize, i32, u64, u32, Option<u8>)) -> NewJob {
    let plain = match key {
        Some(key) => keyed_job(QUEUES[queue], &format!("k{key}")),
        None => new_job(QUEUES[queue]),
    };
    let start = if delay_ms == 0 { Start::Now } else { Start::After(delay_ms) };
    NewJob { priority, start, max_attempts: Some(max_attempts).filter(|max| *max < 3), ..plain }
}

fn command_of(state: &State, (call, intent): (Call, Intent)) -> Command {
    let (principal, worker) = caller(state, call);
    let job_id = JobId(call.job);
    let request = |request: Option<u8>| request.map(|number| request_id(&format!("r{number}")));
    let operation = match intent {
        Intent::Enqueue(jobs, number) => {
            Operation::Enqueue(Enqueue { jobs: jobs.into_iter().map(new_of).collect(), request_id: request(number) })
        }
        Intent::Claim { queues, jobs_max, lease_ms, request: number } => {
            let queues: Vec<_> = queues.into_iter().map(|queue| QUEUES[queue]).collect();
            let plain = claim_jobs(&queues, &worker, jobs_max);
            Operation::Claim(ClaimJobs { lease_ms, request_id: request(number), ..plain })
        }
        Intent::Heartbeat { lease_ms, progress, extra } => {
            let beat = |job_id| Heartbeat {
                fencing_token: None,
                job_id: Some(job_id),
                worker: label(&worker),
                lease_ms,
                progress: vec![7; progress],
            };
            Operation::Heartbeat(vec![beat(job_id), beat(JobId(extra))])
        }
        Intent::Complete { request: number, extra } => {
            let first = Complete { request_id: request(number), ..completion(job_id, &worker, b"r") };
            Operation::Complete(vec![first, completion(JobId(extra), &worker, b"")])
        }
        Intent::Fail { pause_ms, permanent } => {
            let plain = failure(job_id, &worker, "boom");
            Operation::Fail(Fail { retry_after_ms: pause_ms, permanent, ..plain })
        }
        Intent::Release => {
            Operation::Release(Release { job_id: Some(job_id), worker: label(&worker), fencing_token: None })
        }
        Intent::Undelivered { attempts } => {
            let operation = Operation::ReleaseUndelivered(vec![Undelivered { job_id, attempts }]);
            return Command { actor: Actor::System, operation };
        }
        Intent::Cancel => Operation::Cancel(job_id),
        Intent::Retry => Operation::Retry(job_id),
        Intent::Update(patch) => {
            let queue = queue_name(QUEUES[call.worker % 2]);
            Operation::UpdateQueue(UpdateQueue { queue, patch })
        }
    };
    Command { actor: actor(&principal), operation }
}

/// An outcome in the words of the model.
fn told(outcome: &Outcome) -> String {
    let joined = |texts: Vec<String>, by: &str| texts.join(by);
    let refused = |rejection: &Rejection| format!("{rejection:?}");
    match outcome {
        Outcome::Enqueued(enqueued) => {
            let one = |one: &ag_core::outcome::Enqueued| {
                format!("{}{}", one.job.job_id.0, if one.deduplicated { "=" } else { "" })
            };
            format!("enqueued {}", joined(enqueued.iter().map(one).collect(), " "))
        }
        Outcome::Claimed(jobs) => {
            let one = |job: &Job| format!("{}@{}", job.job_id.0, job.attempts);
            format!("claimed {}", joined(jobs.iter().map(one).collect(), " "))
        }
        Outcome::Heartbeats(entries) => {
            let held = |entry: &Result<ag_core::outcome::Extended, _>| match entry {
                Ok(extended) => format!("held {} {}", extended.lease_ms, extended.cancel_requested),
                Err(rejection) => refused(rejection),
            };
            joined(entries.iter().map(held).collect(), ", ")
        }
        Outcome::Completed(entries) => {
            let completed = |entry: &Result<Completion, _>| match entry {
                Ok(Completion::Now(_)) => "completed".into(),
                Ok(Completion::Replayed(_)) => "again".into(),
                Err(rejection) => refused(rejection),
            };
            joined(entries.iter().map(completed).collect(), ", ")
        }
        Outcome::Job(changed) => format!("{:?}", changed.job.state),
        Outcome::Replayed(_) => "again".into(),
        Outcome::Queue(policy) => {
            format!("queue {} {} {}", policy.paused, policy.retention_ms, policy.concurrency_limit.unwrap_or(0))
        }
        Outcome::Done => "done".into(),
        Outcome::Rejected(rejection) => refused(rejection),
        Outcome::ReplicaAllocated(_) => panic!("{outcome:?}"),
    }
}

/// A job as the model shows it.
fn shown(job: &Job) -> String {
    let notes = job.notes();
    let claim = job.claim.as_ref().map_or(String::new(), |claim| {
        format!("{} until {} {}", claim.claimed_by.as_str(), claim.lease_ends_at.0, claim.lapsed)
    });
    let reason = match notes.reason.as_str() {
        lapse if lapse.starts_with("the lease of claim") => "lapse",
        lapse if lapse.starts_with("cancelled: the lease of claim") => "cancelled lapse",
        other => other,
    };
    let (asked, finished) = (notes.cancel_requested_at.map(|at| at.0), notes.finished_at.map(|at| at.0));
    format!(
        "{} {} {:?} {}-{}/{} {} [{claim}] {reason:?} {} {asked:?} {finished:?}",
        job.job_id.0,
        job.queue,
        job.state,
        job.attempts,
        job.releases,
        job.max_attempts,
        job.run_at.0,
        notes.progress_bytes
    )
}

fn all_shown(state: &State) -> Vec<String> {
    state.jobs_after(JobId(0)).map(shown).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_history_goes_as_in_the_model_and_the_same_on_every_replica(
        moments in prop::collection::vec(moment(), 1..50),
        reload_at in 0..50_usize,
    ) {
        let (mut world, mut model) = (World::new(), Model::default());
        let mut log: Vec<(LogPosition, Entry)> = Vec::new();
        let mut restarted: Option<State> = None;
        for (turn, (lease_ms, wall_ms, intents)) in moments.into_iter().enumerate() {
            world.lease_now += lease_ms;
            world.wall_now = world.wall_now.checked_add_signed(wall_ms).unwrap();
            let commands: Vec<_> = intents.into_iter().map(|intent| command_of(&world.state, intent)).collect();
            let (lease_now, wall_now) = (LeaseTime(world.lease_now), WallTime(world.wall_now));
            let entry = Entry { lease_now, wall_now, commands: commands.clone() };
            log.push((world.next, entry.clone()));
            if let Some(state) = &mut restarted {
                _ = state.apply(world.next, entry.clone());
            }
            // Checks the laws of `World::apply` as well.
            let outcomes = world.apply(commands).outcomes;
            let outcomes: Vec<_> = outcomes.iter().map(told).collect();
            prop_assert_eq!(outcomes, model.apply(&entry), "{:?}", entry);
            prop_assert_eq!(all_shown(&world.state), model.show(), "{:?}", entry);
            let owned = world.rows.blobs.keys().all(|(job_id, _)| world.rows.jobs.contains_key(job_id));
            prop_assert!(owned, "a blob of no job");
            if turn == reload_at {
                restarted = Some(world.reloaded());
            }
        }
        // A replica that loaded its rows in between, and went on with the rest of the log.
        if let Some(state) = restarted {
            prop_assert_eq!(state.state_hash(), world.state.state_hash());
            prop_assert_eq!(&state, &world.state);
        }
        // Another replica, from the beginning.
        let mut other = State::default();
        log.into_iter().for_each(|(position, entry)| _ = other.apply(position, entry));
        prop_assert_eq!(other.state_hash(), world.state.state_hash());
        prop_assert_eq!(world.reloaded(), world.state);
    }
}

/// The random histories are worth something only if they get everywhere. Not a law of the state machine.
#[test]
fn random_histories_reach_every_kind_of_outcome() {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..150 {
        let moments = prop::collection::vec(moment(), 30..50).new_tree(&mut runner).unwrap().current();
        let mut world = World::new();
        for (lease_ms, wall_ms, intents) in moments {
            world.lease_now += lease_ms;
            world.wall_now = world.wall_now.checked_add_signed(wall_ms).unwrap();
            let commands: Vec<_> = intents.into_iter().map(|intent| command_of(&world.state, intent)).collect();
            for outcome in world.apply(commands).outcomes {
                let told = told(&outcome);
                seen.extend(told.split(", ").map(|text| text.split([' ', '@']).next().unwrap().to_string()));
            }
            seen.extend(world.audit.iter().map(|record| format!("audit {}", record.event.verb)));
            seen.extend(world.audit.iter().filter_map(|record| record.event.details.get("state").cloned()));
        }
    }
    let wanted = [
        "enqueued",
        "claimed",
        "held",
        "completed",
        "again",
        "done",
        "queue",
        "Ready",
        "Scheduled",
        "Claimed",
        "Dead",
        "Cancelled",
        "JobNotFound",
        "ClaimLost",
        "AlreadyCompleted",
        "JobNotRetryable",
        "DedupeKeyTaken",
        "RequestIdReused",
        "audit expire",
        "audit drop",
        "audit cancel",
        "audit retry",
        "DEAD",
        "CANCELLED",
    ];
    let missing: Vec<_> = wanted.iter().filter(|wanted| !seen.contains(**wanted)).collect();
    assert!(missing.is_empty(), "never seen: {missing:?}");
}
