//! Policies of queues, scheduled jobs, retention, and the bounds of what one entry does.

use ag_core::command::{Enqueue, NewJob, Operation, Start, UpdateQueue};
use ag_core::job::JobState;
use ag_core::limits;
use ag_core::name::JobId;
use ag_core::outcome::Outcome;
use ag_core::queue::{QueueCounts, QueuePolicy, QueuePolicyPatch};
use ag_core::rejection::Rejection;
use ag_core::time::WallTime;

use crate::common::{LEASE_MS, PRINCIPAL, World, command, new_job, queue_name};

fn patch() -> QueuePolicyPatch {
    QueuePolicyPatch::default()
}

fn counts(world: &World) -> QueueCounts {
    world.state.queue(&queue_name("q")).unwrap().1
}

fn enqueue_many(world: &mut World, job: NewJob, count: usize) -> Vec<JobId> {
    let outcome = world.ask(PRINCIPAL, Operation::Enqueue(Enqueue { jobs: vec![job; count], request_id: None }));
    let Outcome::Enqueued(enqueued) = outcome else { panic!("{outcome:?}") };
    enqueued.into_iter().map(|one| one.job.job_id).collect()
}

#[test]
fn a_paused_queue_hands_out_nothing_and_everything_else_goes_on() {
    let mut world = World::new();
    let (held, lapsing) = (world.enqueue("q"), world.enqueue("q"));
    world.claim("q", "w1");
    world.claim("q", "w2");
    world.update_queue("q", QueuePolicyPatch { paused: Some(true), ..patch() });
    let waiting = world.enqueue("q");
    world.time_passes(LEASE_MS - 1);
    world.heartbeat(held, "w1").unwrap();
    world.time_passes(1);
    assert!(world.job(lapsing).is_lapsed());
    assert!(!world.state.is_claimable(&[queue_name("q")]));
    assert!(world.try_claim("q", "w3").is_none());
    // Another queue of the same claim is not held up.
    let elsewhere = world.enqueue("p");
    assert_eq!(world.claim_batch(&["q", "p"], "w3", 5)[0].job_id, elsewhere);
    world.complete(held, "w1", b"").unwrap();
    world.fail(lapsing, "w2", "late").unwrap();
    world.cancel(waiting).unwrap();
    world.update_queue("q", QueuePolicyPatch { paused: Some(false), ..patch() });
    assert_eq!(world.claim("q", "w3").job_id, lapsing);
}

#[test]
fn a_changed_lease_default_counts_for_claims_from_then_on() {
    let mut world = World::new();
    world.enqueue("q");
    world.enqueue("q");
    let before = world.claim("q", "w");
    world.update_queue("q", QueuePolicyPatch { default_lease_ms: Some(5_000), ..patch() });
    assert_eq!(*world.job(before.job_id), before);
    assert_eq!(world.claim("q", "w").claim.unwrap().lease_ms, 5_000);
    // A heartbeat goes on with the lease that its claim began with.
    world.time_passes(1_000);
    assert_eq!(world.heartbeat(before.job_id, "w").unwrap().lease_ms, LEASE_MS);
}

#[test]
fn a_changed_retry_budget_counts_for_jobs_enqueued_from_then_on() {
    let mut world = World::new();
    let old = world.enqueue("q");
    world.update_queue("q", QueuePolicyPatch { max_attempts: Some(2), ..patch() });
    let new = world.enqueue("q");
    let named = world.enqueue_job(NewJob { max_attempts: Some(7), ..new_job("q") }).job.job_id;
    let budgets = [old, new, named].map(|job_id| (world.job(job_id).max_attempts, world.job(job_id).retry_budget));
    assert_eq!(budgets, [(20, 20), (2, 2), (7, 7)]);
}

#[test]
fn a_changed_retention_counts_for_finished_jobs_too() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w");
    world.heartbeat_with(job_id, "w", None, b"half").unwrap();
    world.complete(job_id, "w", b"result").unwrap();
    let finished_at = world.wall_now;
    assert_eq!(world.state.next_wall_event(), Some(WallTime(finished_at + limits::RETENTION_MS_DEFAULT)));
    world.time_passes(1_000);
    world.update_queue("q", QueuePolicyPatch { retention_ms: Some(1_001), ..patch() });
    world.time_passes(0);
    assert_eq!(world.state_of(job_id), JobState::Completed);
    world.time_passes(1);
    assert!(world.state.job(job_id).is_none());
    assert!(world.rows.blobs.is_empty(), "its blobs go with it");
    let event = &world.audit.last().unwrap().event;
    assert_eq!((event.verb.as_str(), event.job_id, event.attempts), ("drop", Some(job_id), 1));
    assert!(world.enqueue("q") > job_id, "its number never comes back");
    assert_eq!(world.complete(job_id, "w", b"result"), Err(Rejection::JobNotFound));
}

#[test]
fn without_retention_a_finished_job_goes_with_the_next_entry_and_a_wall_clock_set_back_keeps_it() {
    let mut world = World::new();
    world.update_queue("q", QueuePolicyPatch { retention_ms: Some(0), ..patch() });
    let job_id = world.enqueue("q");
    assert_eq!(world.cancel(job_id).unwrap().state, JobState::Cancelled);
    world.wall_jumps(-1);
    assert!(world.state.job(job_id).is_some());
    world.wall_jumps(1);
    assert!(world.state.job(job_id).is_none());
}

#[test]
fn only_what_a_patch_names_changes_and_an_update_that_changes_nothing_is_not_recorded() {
    let mut world = World::new();
    let first = world.update_queue("q", patch());
    assert_eq!(first, QueuePolicy::default());
    let records = world.audit.len();
    world.update_queue("q", patch());
    assert_eq!(world.audit.len(), records);
    let policy = world.update_queue("q", QueuePolicyPatch { concurrency_limit: Some(3), ..patch() });
    assert_eq!(policy, QueuePolicy { concurrency_limit: Some(3), ..QueuePolicy::default() });
    let policy = world.update_queue("q", QueuePolicyPatch { paused: Some(true), ..patch() });
    assert_eq!((policy.paused, policy.concurrency_limit), (true, Some(3)));
    let policy = world.update_queue("q", QueuePolicyPatch { concurrency_limit: Some(0), ..patch() });
    assert_eq!(policy.concurrency_limit, None);
}

/// Field report T32: workers that all time out once leave no queue stuck.
#[test]
fn a_lapsed_claim_changes_hands_at_the_concurrency_limit() {
    let mut world = World::new();
    let (first, second) = (world.enqueue("q"), world.enqueue("q"));
    world.update_queue("q", QueuePolicyPatch { concurrency_limit: Some(1), ..patch() });
    for (turn, worker) in ["a", "b", "c", "d"].into_iter().enumerate() {
        let claim = world.claim("q", worker);
        assert_eq!((claim.job_id, claim.attempts), (first, turn as u32 + 1));
        assert!(world.try_claim("q", "other").is_none(), "the limit is one");
        world.time_passes(LEASE_MS);
    }
    // A new job of higher priority waits as well: the lapsed claim still takes the one place.
    let urgent = world.enqueue_job(NewJob { priority: 5, ..new_job("q") }).job.job_id;
    assert_eq!(world.claim("q", "e").job_id, first);
    world.complete(first, "e", b"").unwrap();
    assert_eq!(world.claim("q", "e").job_id, urgent);
    world.release(urgent, "e").unwrap();
    world.cancel(urgent).unwrap();
    assert_eq!(world.claim("q", "e").job_id, second);
}

#[test]
fn a_lower_limit_takes_no_claim_away_and_a_batch_stops_at_the_limit() {
    let mut world = World::new();
    enqueue_many(&mut world, new_job("q"), 6);
    world.update_queue("q", QueuePolicyPatch { concurrency_limit: Some(3), ..patch() });
    let held = world.claim_batch(&["q"], "w", 10);
    assert_eq!(held.len(), 3);
    world.update_queue("q", QueuePolicyPatch { concurrency_limit: Some(2), ..patch() });
    world.complete(held[0].job_id, "w", b"").unwrap();
    assert!(world.try_claim("q", "w").is_none());
    world.complete(held[1].job_id, "w", b"").unwrap();
    assert!(world.try_claim("q", "w").is_some());
    assert_eq!(counts(&world).claimed, 2);
}

#[test]
fn a_job_starts_when_the_wall_clock_says_so_and_not_a_millisecond_before() {
    let mut world = World::new();
    let at = WallTime(world.wall_now + 5_000);
    let starts = [Start::After(5_000), Start::At(at)];
    let jobs = starts.map(|start| world.enqueue_job(NewJob { start, ..new_job("q") }).job);
    for job in &jobs {
        assert_eq!((job.state, job.run_at), (JobState::Scheduled, at));
    }
    assert_eq!(world.state.next_wall_event(), Some(at));
    world.lease_passes(60_000);
    world.wall_jumps(4_999);
    assert_eq!(counts(&world).scheduled, 2);
    world.wall_jumps(1);
    assert_eq!((counts(&world).scheduled, counts(&world).ready), (0, 2));
    // A job that was ready stays so when the clock is set back.
    world.wall_jumps(-3_600_000);
    assert_eq!(world.claim_batch(&["q"], "w", 9).len(), 2);
}

#[test]
fn a_start_in_the_past_is_ready_at_once_and_goes_first() {
    let mut world = World::new();
    let now = world.enqueue("q");
    let past = NewJob { start: Start::At(WallTime(1)), ..new_job("q") };
    let past = world.enqueue_job(past).job.job_id;
    let jobs = world.claim_batch(&["q"], "w", 2);
    assert_eq!(jobs.iter().map(|job| job.job_id).collect::<Vec<_>>(), [past, now]);
}

#[test]
fn the_furthest_delay_and_time_neither_wrap_nor_mean_now() {
    let mut world = World::new();
    for start in [
        Start::After(limits::DELAY_MS_MAX),
        Start::After(u64::MAX),
        Start::At(WallTime(limits::WALL_MS_MAX)),
        Start::At(WallTime(u64::MAX)),
    ] {
        let job = world.enqueue_job(NewJob { start, ..new_job("q") }).job;
        assert_eq!(job.state, JobState::Scheduled, "{start:?}");
        assert!(job.run_at > WallTime(world.wall_now), "{start:?}");
    }
    world.update_queue("q", QueuePolicyPatch { retention_ms: Some(u64::MAX), ..patch() });
    world.cancel(JobId(1)).unwrap();
    world.time_passes(limits::DELAY_MS_MAX);
    assert_eq!(world.state_of(JobId(1)), JobState::Cancelled);
}

#[test]
fn more_due_jobs_than_a_sweep_takes_are_taken_up_by_the_next_entry() {
    let mut world = World::new();
    let jobs = limits::SWEEP_JOBS_MAX + 1;
    enqueue_many(&mut world, NewJob { start: Start::After(1_000), ..new_job("q") }, jobs);
    world.time_passes(1_000);
    assert_eq!((counts(&world).ready, counts(&world).scheduled), (limits::SWEEP_JOBS_MAX as u64, 1));
    assert!(world.state.next_wall_event().is_some_and(|at| at <= world.state.meta().wall_now));
    world.time_passes(0);
    assert_eq!((counts(&world).ready, counts(&world).scheduled), (jobs as u64, 0));
}

#[test]
fn more_finished_jobs_than_a_sweep_drops_are_dropped_by_the_next_entry() {
    let mut world = World::new();
    world.update_queue("q", QueuePolicyPatch { retention_ms: Some(1_000), ..patch() });
    let jobs = enqueue_many(&mut world, new_job("q"), limits::SWEEP_JOBS_MAX + 1);
    let cancels = jobs.iter().map(|job_id| command(PRINCIPAL, Operation::Cancel(*job_id))).collect();
    _ = world.apply(cancels);
    world.time_passes(1_000);
    assert_eq!(counts(&world).cancelled, 1);
    world.time_passes(0);
    assert_eq!((counts(&world).cancelled, world.rows.jobs.len()), (0, 0));
}

/// Field report T59.
#[test]
fn a_batch_of_claims_stops_before_its_answer_is_too_large_and_holds_only_what_it_delivers() {
    let mut world = World::new();
    for _ in 0..4 {
        world.enqueue_job(NewJob { payload: vec![7; limits::PAYLOAD_BYTES_MAX], ..new_job("q") });
    }
    let claimed = world.claim_batch(&["q"], "w", 4);
    let bytes: u64 = claimed.iter().map(|job| job.answer_bytes()).sum();
    assert!(bytes <= limits::CLAIM_BATCH_BYTES_MAX && claimed.len() == 2, "{} jobs, {bytes} bytes", claimed.len());
    assert_eq!(counts(&world).claimed, 2);
    assert_eq!(world.claim_batch(&["q"], "w", 4).len(), 2);
}

/// A job whose payload, progress, labels and reason are all as large as they may be is handed out all the same.
#[test]
fn the_largest_job_is_handed_out() {
    let mut world = World::new();
    let value = "v".repeat(limits::LABEL_VALUE_BYTES_MAX);
    let key = |n: usize| format!("{n:0width$}", width = limits::LABEL_KEY_BYTES_MAX);
    let labels = (0..limits::LABELS_MAX).map(|n| (key(n), value.clone())).collect();
    let job = NewJob { payload: vec![7; limits::PAYLOAD_BYTES_MAX], labels, ..new_job("q") };
    let job_id = world.enqueue_job(job).job.job_id;
    world.claim("q", "w");
    world.heartbeat_with(job_id, "w", None, &vec![7; limits::PROGRESS_BYTES_MAX]).unwrap();
    world.fail(job_id, "w", &"r".repeat(limits::REASON_BYTES_MAX)).unwrap();
    assert!(world.job(job_id).answer_bytes() < limits::CLAIM_BATCH_BYTES_MAX);
    assert_eq!(world.claim_batch(&["q"], "w", 1_000)[0].job_id, job_id);
}

#[test]
fn the_last_queue_that_fits_is_made_and_the_next_refuses_a_whole_batch() {
    let mut world = World::new();
    let made = |n: usize| {
        let queue = queue_name(&format!("q{n}"));
        command(PRINCIPAL, Operation::UpdateQueue(UpdateQueue { queue, patch: patch() }))
    };
    _ = world.apply((1..limits::QUEUES_MAX).map(made).collect());
    let two_new = vec![new_job("new1"), new_job("new2"), new_job("q1")];
    let refused = Outcome::Rejected(Rejection::TooManyQueues { max: limits::QUEUES_MAX as u64 });
    let enqueue = |jobs| Operation::Enqueue(Enqueue { jobs, request_id: None });
    assert_eq!(world.ask(PRINCIPAL, enqueue(two_new)), refused);
    assert!(world.rows.jobs.is_empty(), "all or none");
    let outcome = world.ask(PRINCIPAL, enqueue(vec![new_job("new1"), new_job("new1"), new_job("q1")]));
    assert!(matches!(outcome, Outcome::Enqueued(_)));
    assert_eq!(world.rows.queues.len(), limits::QUEUES_MAX);
    assert_eq!(world.ask(PRINCIPAL, enqueue(vec![new_job("q1"), new_job("new2")])), refused);
    let update = UpdateQueue { queue: queue_name("new2"), patch: patch() };
    assert_eq!(world.ask(PRINCIPAL, Operation::UpdateQueue(update)), refused);
    assert!(matches!(world.ask(PRINCIPAL, enqueue(vec![new_job("q1")])), Outcome::Enqueued(_)));
}

#[test]
fn the_oldest_ready_job_is_found_behind_higher_priorities() {
    let mut world = World::new();
    let start = Start::At(WallTime(5));
    world.enqueue_job(NewJob { priority: i32::MIN, start, ..new_job("q") });
    world.enqueue_job(NewJob { priority: i32::MAX, ..new_job("q") });
    assert_eq!(world.state.oldest_ready(&queue_name("q")), Some(WallTime(5)));
    assert_eq!(world.state.oldest_ready(&queue_name("none")), None);
    world.claim("q", "w");
    world.claim("q", "w");
    assert_eq!(world.state.oldest_ready(&queue_name("q")), None);
}
