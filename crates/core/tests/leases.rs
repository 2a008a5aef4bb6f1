//! Leases, heartbeats and both clocks; stale workers as far as release 0.1.0 can tell them.

use ag_core::change::BlobKind;
use ag_core::command::{Fail, NewJob, Operation};
use ag_core::job::JobState;
use ag_core::limits;
use ag_core::outcome::Outcome;
use ag_core::rejection::Rejection;
use ag_core::time::{LeaseTime, WallTime};

use crate::common::{LEASE_MS, PRINCIPAL, World, claim_jobs, failure, job_of, new_job};

const HOUR_MS: i64 = 3_600_000;

/// Field report T01. Expiry is judged where it is applied, against the claim that stands then.
#[test]
fn the_deadline_of_an_earlier_claim_ends_neither_a_completed_job_nor_a_newer_claim() {
    let mut world = World::new();
    let completed = world.enqueue("q");
    world.claim("q", "w1");
    world.complete(completed, "w1", b"done").unwrap();
    let job_id = world.enqueue("q");
    world.claim("q", "w1");
    world.time_passes(LEASE_MS - 1);
    world.fail(job_id, "w1", "try again").unwrap();
    let second = world.claim("q", "w2");
    // The deadline of the first claim.
    world.time_passes(1);
    assert_eq!(world.state_of(completed), JobState::Completed);
    assert_eq!(*world.job(job_id), second);
}

/// Field reports T02 and T04. What a worker of another name reports late has no effect on anything.
#[test]
fn a_late_report_of_a_worker_with_another_label_changes_nothing() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w1");
    world.time_passes(LEASE_MS);
    let held = world.claim("q", "w2");
    let rows = world.rows.clone();
    assert_eq!(world.complete(job_id, "w1", b"R1"), Err(Rejection::ClaimLost));
    assert_eq!(world.fail(job_id, "w1", "boom"), Err(Rejection::ClaimLost));
    assert_eq!(world.release(job_id, "w1"), Err(Rejection::ClaimLost));
    assert_eq!(world.heartbeat_with(job_id, "w1", None, b"R1"), Err(Rejection::ClaimLost));
    assert_eq!(world.rows, rows);
    assert_eq!(*world.job(job_id), held);
    world.complete(job_id, "w2", b"R2").unwrap();
    assert_eq!(world.complete(job_id, "w1", b"R1"), Err(Rejection::AlreadyCompleted { by_caller: false }));
    assert_eq!(world.rows.blob(job_id, BlobKind::Result), b"R2");
}

/// Field report T05, as release 0.1.0 has it: the check is the name, so an earlier claim of the same name passes for
/// the newer one. The number of the claim would tell them apart, and no request of this release carries it.
#[test]
fn flaw_of_0_1_0_a_stale_claim_of_the_same_label_acts_on_the_newer_claim() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    let stale = world.claim("q", "w");
    world.time_passes(LEASE_MS);
    let newer = world.claim("q", "w");
    assert_eq!((stale.attempts, newer.attempts), (1, 2));
    world.time_passes(LEASE_MS / 2);
    // All of these are meant by the process that had claim 1.
    assert_eq!(world.heartbeat(job_id, "w").unwrap().lease_ms, u64::from(newer.claim.unwrap().lease_ms));
    world.complete(job_id, "w", b"result of claim 1").unwrap();
    assert_eq!(world.complete(job_id, "w", b"result of claim 2"), Err(Rejection::AlreadyCompleted { by_caller: true }));
    assert_eq!(world.rows.blob(job_id, BlobKind::Result), b"result of claim 1");
    // What holds all the same: the job is not left running without a lease, and its number went on.
    assert_eq!(world.job(job_id).attempts, 2);
}

#[test]
fn a_lease_lapses_at_its_deadline_and_not_a_millisecond_before() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    let claim = world.claim("q", "w1").claim.unwrap();
    assert_eq!(claim.lease_ends_at, LeaseTime(world.lease_now + LEASE_MS));
    assert_eq!(world.state.next_lease_event(), Some(claim.lease_ends_at));
    world.time_passes(LEASE_MS - 1);
    assert!(!world.job(job_id).is_lapsed());
    assert!(world.try_claim("q", "w2").is_none());
    world.time_passes(1);
    assert!(world.job(job_id).is_lapsed());
    assert_eq!(world.state_of(job_id), JobState::Claimed);
    assert_eq!(world.state.next_lease_event(), None);
    assert_eq!(world.claim("q", "w2").attempts, 2);
}

/// Field reports T25 and T27.
#[test]
fn a_step_of_the_wall_clock_ends_no_lease_and_extends_none() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w1");
    for step in [HOUR_MS, -2 * HOUR_MS, HOUR_MS, -600_000, 1_200_000] {
        world.wall_jumps(step);
        assert!(!world.job(job_id).is_lapsed(), "{step}");
    }
    world.lease_passes(LEASE_MS - 1);
    world.wall_jumps(-24 * HOUR_MS);
    assert!(!world.job(job_id).is_lapsed());
    world.lease_passes(1);
    assert!(world.job(job_id).is_lapsed());
}

#[test]
fn lease_time_does_not_go_back_whatever_a_leader_stamps() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w1");
    world.time_passes(LEASE_MS);
    let reached = world.state.meta().lease_now;
    world.lease_now = 0;
    world.time_passes(0);
    assert_eq!(world.state.meta().lease_now, reached);
    assert!(world.job(job_id).is_lapsed());
}

#[test]
fn a_late_heartbeat_holds_a_lapsed_claim_again_until_somebody_took_it_over() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w1");
    world.time_passes(LEASE_MS + 5_000);
    assert!(world.job(job_id).is_lapsed());
    let extended = world.heartbeat(job_id, "w1").unwrap();
    assert_eq!(extended.lease_ms, LEASE_MS);
    assert_eq!(extended.lease_ends_wall, WallTime(world.wall_now + LEASE_MS));
    assert!(!world.job(job_id).is_lapsed());
    assert!(world.try_claim("q", "w2").is_none());
    world.time_passes(LEASE_MS);
    world.claim("q", "w2");
    assert_eq!(world.heartbeat(job_id, "w1"), Err(Rejection::ClaimLost));
}

#[test]
fn a_heartbeat_never_shortens_a_lease() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w1");
    world.time_passes(1_000);
    let before = world.job(job_id).clone();
    assert_eq!(world.heartbeat_with(job_id, "w1", Some(100), b"").unwrap().lease_ms, LEASE_MS - 1_000);
    assert_eq!(*world.job(job_id), before);
    // Without a lease it gets as much as the claim began with, also after one that asked for more.
    assert_eq!(world.heartbeat_with(job_id, "w1", Some(90_000), b"").unwrap().lease_ms, 90_000);
    world.time_passes(80_000);
    assert_eq!(world.heartbeat(job_id, "w1").unwrap().lease_ms, LEASE_MS);
}

#[test]
fn the_lease_is_the_calls_else_the_jobs_else_the_queues() {
    let mut world = World::new();
    for (of_call, of_job, expected) in [(Some(700), Some(600), 700), (None, Some(600), 600), (None, None, 30_000)] {
        world.enqueue_job(NewJob { lease_ms: of_job, ..new_job("q") });
        let claim = ag_core::command::ClaimJobs { lease_ms: of_call, ..claim_jobs(&["q"], "w", 1) };
        let Outcome::Claimed(jobs) = world.ask(PRINCIPAL, Operation::Claim(claim)) else { panic!() };
        let claim = jobs[0].claim.as_ref().unwrap();
        assert_eq!(claim.lease_ms, expected);
        assert_eq!(claim.lease_ends_at, LeaseTime(world.lease_now + u64::from(expected)));
    }
}

/// Field report T24.
#[test]
fn the_next_claim_sees_the_last_progress_and_not_the_first() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w1");
    for progress in ["four", "three", "two", "1"] {
        world.heartbeat_with(job_id, "w1", None, progress.as_bytes()).unwrap();
    }
    // A heartbeat without progress leaves it.
    world.heartbeat(job_id, "w1").unwrap();
    world.time_passes(LEASE_MS);
    assert_eq!(world.claim("q", "w2").notes().progress_bytes, 1);
    assert_eq!(world.rows.blob(job_id, BlobKind::Progress), b"1");
    world.fail(job_id, "w2", "again").unwrap();
    assert_eq!(world.claim("q", "w3").notes().progress_bytes, 1);
}

/// Field report T33.
#[test]
fn a_job_whose_time_came_while_no_leader_was_there_is_offered_once_and_late() {
    let mut world = World::new();
    let job_id = world.enqueue_job(NewJob { start: ag_core::command::Start::After(1_000), ..new_job("q") }).job.job_id;
    assert!(world.try_claim("q", "w1").is_none());
    // Ten minutes later another leader stamps the first entry, which is a claim at once.
    (world.wall_now, world.lease_now, world.next.term) = (world.wall_now + 600_000, world.lease_now + 50, 2);
    assert_eq!(world.claim("q", "w1").job_id, job_id);
    assert!(world.try_claim("q", "w1").is_none());
}

#[test]
fn a_fail_with_a_pause_waits_for_the_wall_clock() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w1");
    let fail = Fail { retry_after_ms: Some(5_000), ..failure(job_id, "w1", "busy") };
    let job = job_of(world.ask(PRINCIPAL, Operation::Fail(fail))).unwrap();
    assert_eq!((job.state, job.run_at), (JobState::Scheduled, WallTime(world.wall_now + 5_000)));
    assert_eq!(world.state.next_wall_event(), Some(job.run_at));
    world.time_passes(4_999);
    assert!(world.try_claim("q", "w1").is_none());
    world.time_passes(1);
    assert_eq!(world.claim("q", "w1").notes().reason, "busy");
}

/// A release by the cluster names the claim by its number, so it can not hit a later one.
#[test]
fn an_undelivered_claim_is_given_back_unless_the_job_has_moved_on() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w1");
    world.undelivered(job_id, 2);
    assert_eq!(world.state_of(job_id), JobState::Claimed);
    world.undelivered(job_id, 1);
    assert_eq!((world.state_of(job_id), world.job(job_id).releases), (JobState::Ready, 1));
    world.undelivered(job_id, 1);
    assert_eq!(world.job(job_id).releases, 1);
    world.claim("q", "w2");
    world.undelivered(job_id, 1);
    assert_eq!((world.state_of(job_id), world.job(job_id).releases), (JobState::Claimed, 1));
    world.complete(job_id, "w2", b"").unwrap();
    world.undelivered(job_id, 2);
    assert_eq!(world.state_of(job_id), JobState::Completed);
}

#[test]
fn more_lapses_than_a_sweep_takes_are_taken_up_by_the_next_entry() {
    let mut world = World::new();
    let jobs = limits::SWEEP_JOBS_MAX + 1;
    let batch = vec![new_job("q"); jobs];
    let enqueue = ag_core::command::Enqueue { jobs: batch, request_id: None };
    _ = world.ask(PRINCIPAL, Operation::Enqueue(enqueue));
    assert_eq!(world.claim_batch(&["q"], "w1", jobs as u32).len(), jobs);
    let lapsed = |world: &World| world.state.queue(&crate::common::queue_name("q")).unwrap().1.lapsed;
    world.time_passes(LEASE_MS);
    assert_eq!(lapsed(&world), limits::SWEEP_JOBS_MAX as u64);
    assert!(world.state.next_lease_event().is_some_and(|at| at <= world.state.meta().lease_now));
    world.time_passes(0);
    assert_eq!(lapsed(&world), jobs as u64);
}
