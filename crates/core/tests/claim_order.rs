//! The order in which jobs are handed out, against a sort of all jobs.

use std::cmp::Reverse;

use ag_core::command::{NewJob, Start};
use ag_core::job::{Job, JobState};
use ag_core::queue::QueuePolicyPatch;
use ag_core::time::WallTime;
use proptest::prelude::*;

use crate::common::{World, claim_jobs, new_job, queue_name};

const QUEUES: [&str; 3] = ["a", "b", "c"];

/// A job: queue, priority, start relative to the beginning, and whether a worker lets its claim lapse.
type Given = (usize, i32, i64, bool);

fn given() -> impl Strategy<Value = Given> {
    let priority = prop_oneof![4 => -2..=2_i32, 1 => Just(i32::MIN), 1 => Just(i32::MAX)];
    (0..QUEUES.len(), priority, -3..=3_i64, any::<bool>())
}

/// The next job, by looking at every one of them.
fn expected<'a>(world: &'a World, queues: &[&str]) -> Option<&'a Job> {
    let jobs = || world.rows.jobs.values();
    let may_be_handed_out = |job: &&Job| {
        let policy = &world.rows.queues[&job.queue];
        let claimed = jobs().filter(|other| other.queue == job.queue && other.state == JobState::Claimed).count();
        let full = policy.concurrency_limit.is_some_and(|limit| claimed >= limit as usize);
        queues.contains(&job.queue.as_str())
            && !policy.paused
            && (job.is_lapsed() || (job.state == JobState::Ready && !full))
    };
    let rank = |job: &&Job| (Reverse(job.priority), !job.is_lapsed(), job.run_at, job.job_id);
    jobs().filter(may_be_handed_out).min_by_key(rank)
}

/// Enqueues the jobs; those whose claim is to lapse are claimed and left alone.
fn world_of(given: &[Given]) -> World {
    let mut world = World::new();
    for (queue, priority, start, lapses) in given {
        let start = Start::At(WallTime(world.wall_now.checked_add_signed(*start).unwrap()));
        let job = NewJob { priority: *priority, start, lease_ms: Some(100), ..new_job(QUEUES[*queue]) };
        let job = world.enqueue_job(job).job;
        if *lapses && job.state == JobState::Ready {
            // The one that is next, which need not be this one.
            _ = world.try_claim(QUEUES[*queue], "gone");
        }
    }
    world.time_passes(100);
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn jobs_are_handed_out_in_the_order_of_a_plain_sort(
        given in prop::collection::vec(given(), 1..14),
        claims in prop::collection::vec(prop::collection::vec(0..QUEUES.len(), 1..4), 1..10),
        paused in prop::option::weighted(0.3, 0..QUEUES.len()),
        limited in prop::option::weighted(0.5, (0..QUEUES.len(), 1..4_u32)),
    ) {
        let mut world = world_of(&given);
        if let Some(queue) = paused {
            world.update_queue(QUEUES[queue], QueuePolicyPatch { paused: Some(true), ..QueuePolicyPatch::default() });
        }
        if let Some((queue, limit)) = limited {
            let patch = QueuePolicyPatch { concurrency_limit: Some(limit), ..QueuePolicyPatch::default() };
            world.update_queue(QUEUES[queue], patch);
        }
        for queues in claims {
            let queues: Vec<_> = queues.into_iter().map(|queue| QUEUES[queue]).collect();
            let next = expected(&world, &queues).map(|job| job.job_id);
            let names: Vec<_> = queues.iter().map(|name| queue_name(name)).collect();
            prop_assert_eq!(world.state.is_claimable(&names), next.is_some());
            let claimed = world.claim_batch(&queues, "w", 1).pop().map(|job| job.job_id);
            prop_assert_eq!(claimed, next);
        }
    }

    /// A batch hands out what single claims would have, one after the other.
    #[test]
    fn a_batch_is_as_many_single_claims(given in prop::collection::vec(given(), 1..14), jobs_max in 1..10_u32) {
        let mut one_by_one = world_of(&given);
        let mut batch = world_of(&given);
        let singles = (0..jobs_max).filter_map(|_| one_by_one.claim_batch(&QUEUES, "w", 1).pop());
        let singles: Vec<_> = singles.map(|job| job.job_id).collect();
        let batched: Vec<_> = batch.claim_batch(&QUEUES, "w", jobs_max).iter().map(|job| job.job_id).collect();
        prop_assert_eq!(singles, batched);
    }
}

#[test]
fn a_lapsed_claim_goes_before_a_new_job_of_its_priority_and_after_one_of_a_higher() {
    let mut world = World::new();
    let lapsed = world.enqueue_job(NewJob { start: Start::Now, ..new_job("a") }).job.job_id;
    world.claim("a", "gone");
    let older = world.enqueue_job(NewJob { start: Start::At(WallTime(1)), ..new_job("b") }).job.job_id;
    let higher = world.enqueue_job(NewJob { priority: 1, ..new_job("b") }).job.job_id;
    world.time_passes(crate::common::LEASE_MS);
    let order: Vec<_> = world.claim_batch(&["b", "a"], "w", 3).iter().map(|job| job.job_id).collect();
    assert_eq!(order, [higher, lapsed, older]);
}

#[test]
fn a_queue_that_is_named_twice_or_does_not_exist_changes_nothing() {
    let mut world = World::new();
    let job_id = world.enqueue("a");
    let claim = claim_jobs(&["none", "a", "a"], "w", 5);
    let outcome = world.ask(crate::common::PRINCIPAL, ag_core::command::Operation::Claim(claim));
    let ag_core::outcome::Outcome::Claimed(jobs) = outcome else { panic!() };
    assert_eq!(jobs.iter().map(|job| job.job_id).collect::<Vec<_>>(), [job_id]);
    assert_eq!(world.rows.queues.len(), 1, "a claim makes no queue");
}
