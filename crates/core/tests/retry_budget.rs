//! The retry budget, and the number of a claim that never falls and never wraps.

use ag_core::command::{Fail, NewJob, Operation};
use ag_core::job::JobState;
use ag_core::rejection::Rejection;

use crate::common::{LEASE_MS, PRINCIPAL, World, failure, job_of, keyed_job, new_job};

fn with_budget(world: &mut World, max_attempts: u32) -> ag_core::name::JobId {
    world.enqueue_job(NewJob { max_attempts: Some(max_attempts), ..new_job("q") }).job.job_id
}

/// Field report T40.
#[test]
fn three_lapses_at_three_attempts_make_a_job_dead_with_the_reason_and_two_do_not() {
    let mut world = World::new();
    let job_id = with_budget(&mut world, 3);
    for attempts in 1..=3 {
        assert_eq!(world.claim("q", "w").attempts, attempts);
        world.time_passes(LEASE_MS);
        assert_eq!(world.state_of(job_id) == JobState::Dead, attempts == 3, "after {attempts}");
    }
    let reason = &world.job(job_id).notes().reason;
    assert_eq!(
        reason,
        "the lease of claim 3 ran out, and the retry budget is used up: 3 claims − 0 releases against max_attempts 3"
    );
    assert!(world.try_claim("q", "w").is_none());
    let record = &world.audit.last().unwrap().event;
    assert_eq!((record.verb.as_str(), record.attempts, record.details["state"].as_str()), ("expire", 3, "DEAD"));
    assert_eq!(world.complete(job_id, "w", b"late"), Err(Rejection::ClaimLost));
}

/// Field report T41.
#[test]
fn a_hundred_releases_cost_nothing_and_the_number_rises_a_hundred_times() {
    let mut world = World::new();
    let job_id = with_budget(&mut world, 3);
    for attempts in 1..=100 {
        assert_eq!(world.claim("q", "w").attempts, attempts);
        assert_eq!(world.release(job_id, "w").unwrap().state, JobState::Ready);
    }
    let job = world.job(job_id);
    assert_eq!((job.attempts, job.releases, job.charged_attempts()), (100, 100, 0));
    for attempts in 101..=103 {
        assert_eq!(world.claim("q", "w").attempts, attempts);
        world.time_passes(LEASE_MS);
    }
    assert_eq!(world.state_of(job_id), JobState::Dead);
}

/// Field report T42: who was only handed out, and given back, is not charged.
#[test]
fn the_untouched_neighbours_of_a_poison_job_can_be_given_back_uncharged() {
    let mut world = World::new();
    let jobs: Vec<_> = (0..10).map(|_| with_budget(&mut world, 1)).collect();
    world.claim_batch(&["q"], "w", 10);
    for job_id in &jobs[1..] {
        world.release(*job_id, "w").unwrap();
    }
    world.time_passes(LEASE_MS);
    assert_eq!(world.state_of(jobs[0]), JobState::Dead);
    assert!(jobs[1..].iter().all(|job_id| world.state_of(*job_id) == JobState::Ready));
    assert_eq!(world.claim_batch(&["q"], "w", 10).len(), 9);
}

#[test]
fn failures_use_the_budget_up_and_the_last_reason_stays() {
    let mut world = World::new();
    let job_id = with_budget(&mut world, 2);
    world.claim("q", "w");
    assert_eq!(world.fail(job_id, "w", "first").unwrap().state, JobState::Ready);
    world.claim("q", "w");
    let job = world.fail(job_id, "w", "second").unwrap();
    assert_eq!((job.state, job.notes().reason.as_str()), (JobState::Dead, "second"));
}

#[test]
fn a_permanent_failure_is_dead_with_budget_left() {
    let mut world = World::new();
    let job_id = with_budget(&mut world, 20);
    world.claim("q", "w");
    let fail = Fail { permanent: true, retry_after_ms: Some(1_000), ..failure(job_id, "w", "no such file") };
    let job = job_of(world.ask(PRINCIPAL, Operation::Fail(fail))).unwrap();
    assert_eq!((job.state, job.attempts, job.notes().reason.as_str()), (JobState::Dead, 1, "no such file"));
}

#[test]
fn a_retry_gives_a_fresh_budget_and_the_number_goes_on() {
    let mut world = World::new();
    let job_id = with_budget(&mut world, 2);
    for attempts in 1..=2 {
        assert_eq!(world.claim("q", "w").attempts, attempts);
        world.fail(job_id, "w", "boom").unwrap();
    }
    assert_eq!(world.state_of(job_id), JobState::Dead);
    let job = world.retry(job_id).unwrap();
    assert_eq!((job.state, job.attempts, job.max_attempts), (JobState::Ready, 2, 4));
    assert_eq!((job.notes().finished_at, job.claim), (None, None));
    for attempts in 3..=4 {
        assert_eq!(world.claim("q", "w").attempts, attempts);
        world.fail(job_id, "w", "boom").unwrap();
    }
    assert_eq!(world.state_of(job_id), JobState::Dead);
    // A third budget, part of which was given back.
    assert_eq!(world.retry(job_id).unwrap().max_attempts, 6);
    world.claim("q", "w");
    world.release(job_id, "w").unwrap();
    for attempts in 6..=7 {
        assert_eq!(world.claim("q", "w").attempts, attempts);
        world.time_passes(LEASE_MS);
    }
    assert_eq!(world.state_of(job_id), JobState::Dead);
}

/// The number of a claim is the last word on who holds a job; after the last number there is none.
#[test]
fn a_job_that_has_used_the_last_number_is_dead_instead_of_handed_out() {
    for lapsed in [false, true] {
        let mut world = World::new();
        let job_id = world.enqueue("q");
        world.set_attempts(job_id, u32::MAX - 1);
        assert_eq!(world.claim("q", "w1").attempts, u32::MAX);
        match lapsed {
            true => world.time_passes(LEASE_MS),
            false => _ = world.release(job_id, "w1").unwrap(),
        }
        let next = world.enqueue("q");
        let jobs = world.claim_batch(&["q"], "w2", 5);
        assert_eq!(jobs.iter().map(|job| job.job_id).collect::<Vec<_>>(), [next], "lapsed: {lapsed}");
        let job = world.job(job_id);
        assert_eq!((job.state, job.attempts), (JobState::Dead, u32::MAX), "lapsed: {lapsed}");
        assert!(job.notes().reason.contains("4294967295"), "{}", job.notes().reason);
        assert!(world.audit.iter().any(|record| record.event.verb == "exhaust"));
        // A retry gives budget, but no number: the job is buried again.
        world.retry(job_id).unwrap();
        assert!(world.try_claim("q", "w2").is_none());
        assert_eq!((world.state_of(job_id), world.job(job_id).attempts), (JobState::Dead, u32::MAX));
    }
}

/// The holder of the last number can still finish its work.
#[test]
fn the_holder_of_the_last_number_can_complete() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.set_attempts(job_id, u32::MAX - 1);
    world.claim("q", "w1");
    world.time_passes(LEASE_MS);
    world.heartbeat(job_id, "w1").unwrap();
    assert_eq!(world.complete(job_id, "w1", b"r").unwrap().state, JobState::Completed);
}

#[test]
fn a_new_job_with_the_same_dedupe_key_leaves_the_old_ones_number_alone() {
    let mut world = World::new();
    let old = world.enqueue_job(NewJob { max_attempts: Some(2), ..keyed_job("q", "k") }).job.job_id;
    for _ in 0..2 {
        world.claim("q", "w");
        world.fail(old, "w", "boom").unwrap();
    }
    let new = world.enqueue_job(keyed_job("q", "k"));
    assert!(!new.deduplicated);
    assert_ne!(new.job.job_id, old);
    assert_eq!((world.job(old).attempts, world.state_of(old)), (2, JobState::Dead));
    assert_eq!(world.claim("q", "w").attempts, 1);
    assert_eq!(world.retry(old), Err(Rejection::DedupeKeyTaken));
    world.complete(new.job.job_id, "w", b"").unwrap();
    world.retry(old).unwrap();
    assert_eq!(world.claim("q", "w").attempts, 3);
}
