//! Claims, leases and time: the kinds of failure that other systems had, each as the small sequence that shows it.

mod common;

use ag_core::change::{BlobKind, Change};
use ag_core::command::*;
use ag_core::job::JobState;
use ag_core::limits;
use ag_core::name::DedupeKey;
use ag_core::outcome::Outcome;
use ag_core::queue::QueuePolicyPatch;
use ag_core::rejection::Rejection;
use ag_core::time::{LeaseTime, WallTime};
use common::{World, completion, label, new_job, principal, queue};

/// Kind A. The expiry is judged where it is applied: a job that was completed, or claimed again, does not expire.
#[test]
fn a_late_expiry_does_not_touch_a_completed_or_newer_claim() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w").unwrap();
    world.complete(job_id, "w").unwrap();
    world.pass(60_000).tick();
    assert_eq!(world.state_of(job_id), JobState::Completed);

    let second = world.enqueue("q");
    world.claim("q", "w").unwrap();
    world.fail(second, "w").unwrap();
    let claim = world.claim("q", "v").unwrap();
    // The first claim's lease is over now, the second's is not.
    world.pass(9_999).tick();
    assert!(!world.job(second).is_lapsed());
    assert_eq!(world.job(second).attempts, claim.attempts);
}

/// Kind A. A worker of another name that lost its claim can change nothing, and the new holder's result stands.
#[test]
fn a_stale_worker_of_another_name_changes_nothing() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "old").unwrap();
    world.pass(10_000).tick();
    world.claim("q", "new").unwrap();
    let before = world.job(job_id).clone();
    assert_eq!(world.complete(job_id, "old"), Err(Rejection::ClaimLost));
    assert_eq!(world.fail(job_id, "old"), Err(Rejection::ClaimLost));
    assert_eq!(world.release(job_id, "old"), Err(Rejection::ClaimLost));
    assert_eq!(world.heartbeat(job_id, "old"), Err(Rejection::ClaimLost));
    assert_eq!(*world.job(job_id), before);
    world.complete(job_id, "new").unwrap();
    assert_eq!(world.complete(job_id, "old"), Err(Rejection::AlreadyCompleted { by_caller: false }));
    assert_eq!(world.complete(job_id, "new"), Err(Rejection::AlreadyCompleted { by_caller: true }));
}

/// The flaw of this release: the holder is known by its name alone, so a stale claim of the same name passes.
#[test]
fn without_a_fence_a_stale_claim_of_the_same_name_passes() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    let first = world.claim("q", "w").unwrap();
    world.pass(10_000).tick();
    let second = world.claim("q", "w").unwrap();
    assert_eq!((first.attempts, second.attempts), (1, 2));
    assert!(world.heartbeat(job_id, "w").is_ok());
    assert!(world.complete(job_id, "w").is_ok());
}

/// Kind A. Not found, lost, and done by you are three answers.
#[test]
fn a_refused_completion_says_which_of_three_things_happened() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    assert_eq!(world.complete(ag_core::name::JobId(9), "w"), Err(Rejection::JobNotFound));
    assert_eq!(world.complete(job_id, "w"), Err(Rejection::ClaimLost));
    world.claim("q", "w").unwrap();
    world.complete(job_id, "w").unwrap();
    assert_eq!(world.complete(job_id, "w"), Err(Rejection::AlreadyCompleted { by_caller: true }));
}

/// Kind C. The next claim sees the last progress, not the first.
#[test]
fn the_next_claim_sees_the_last_progress() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w").unwrap();
    let mut kept = Vec::new();
    for progress in ["4", "3", "2", "1"] {
        let mut copy = world.state.clone();
        let heartbeat =
            Heartbeat { job_id: Some(job_id), worker: label("w"), lease_ms: None, progress: progress.into() };
        let command = Command { actor: principal("p"), operation: Operation::Heartbeat(vec![heartbeat]) };
        let entry = Entry { lease_now: LeaseTime(1), wall_now: WallTime(1), commands: vec![command] };
        let applied = copy.apply(ag_core::name::LogPosition { term: 1, log_index: 9 }, entry);
        kept.extend(applied.changes.into_iter().filter_map(|change| match change {
            Change::PutBlob { kind: BlobKind::Progress, bytes, .. } => Some(bytes),
            _ => None,
        }));
        world.heartbeat_as(&principal("p"), job_id, "w", progress.into()).unwrap();
    }
    assert_eq!(kept.last().map(Vec::as_slice), Some(&b"1"[..]));
    world.pass(10_000).tick();
    assert_eq!(world.claim("q", "v").unwrap().notes().progress_bytes, 1);
}

/// Kind D. A lease ends when it ends: not a millisecond before, whatever the wall clock does.
#[test]
fn a_lease_ends_on_the_lease_clock_and_not_before() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w").unwrap();
    for step in [3_600_000_i64, -7_200_000, 600_000] {
        world.wall_ms = world.wall_ms.saturating_add_signed(step);
        world.tick();
        assert!(!world.job(job_id).is_lapsed());
    }
    world.lease_ms += 9_999;
    world.tick();
    assert!(!world.job(job_id).is_lapsed());
    assert!(world.claim("q", "v").is_none());
    world.lease_ms += 1;
    world.tick();
    assert!(world.job(job_id).is_lapsed());
    assert_eq!(world.state_of(job_id), JobState::Claimed);
    assert!(world.claim("q", "v").is_some());
}

/// A leader that stamps an earlier lease time moves nothing back.
#[test]
fn lease_time_never_goes_back() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w").unwrap();
    world.pass(10_000).tick();
    world.lease_ms -= 9_000;
    world.tick();
    assert_eq!(world.state.meta().lease_now, LeaseTime(11_000));
    assert!(world.job(job_id).is_lapsed());
}

/// A late heartbeat holds a claim that nobody took over; a heartbeat never shortens a lease.
#[test]
fn heartbeats_revive_and_only_ever_extend() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w").unwrap();
    world.pass(10_000).tick();
    assert_eq!(world.heartbeat(job_id, "w").unwrap().lease_ms, 10_000);
    assert!(!world.job(job_id).is_lapsed());
    assert!(world.claim("q", "v").is_none());
    let shorter = Heartbeat { job_id: Some(job_id), worker: label("w"), lease_ms: Some(100), progress: Vec::new() };
    world.pass(1_000);
    match world.run(&principal("p"), Operation::Heartbeat(vec![shorter])) {
        Outcome::Heartbeats(results) => assert_eq!(results[0].as_ref().unwrap().lease_ms, 9_000),
        other => panic!("{other:?}"),
    }
}

/// Kind E. Every worker timing out once leaves no queue stuck, also at a concurrency limit of one.
#[test]
fn lapsed_claims_change_hands_at_the_concurrency_limit() {
    let mut world = World::new();
    let first = world.enqueue("q");
    let second = world.enqueue("q");
    world.set_policy("q", QueuePolicyPatch { concurrency_limit: Some(1), ..QueuePolicyPatch::default() });
    for (turn, worker) in ["a", "b", "c"].into_iter().enumerate() {
        let claim = world.claim("q", worker).unwrap();
        assert_eq!((claim.job_id, claim.attempts), (first, turn as u32 + 1));
        assert!(world.claim("q", "other").is_none(), "the limit is one");
        world.pass(10_000).tick();
    }
    world.claim("q", "d").unwrap();
    world.complete(first, "d").unwrap();
    assert_eq!(world.claim("q", "e").unwrap().job_id, second);
}

/// Kind G. A job that kills its workers is dead after its budget, and says why; before, it is never dead.
#[test]
fn lapses_count_against_the_budget_and_the_reason_says_so() {
    let mut world = World::new();
    let mut job = new_job("q");
    job.max_attempts = Some(3);
    let job_id = world.enqueue_job(job).job.job_id;
    for attempt in 1..=3 {
        assert_eq!(world.claim("q", "w").unwrap().attempts, attempt);
        world.pass(10_000).tick();
        assert_eq!(world.state_of(job_id) == JobState::Dead, attempt == 3);
    }
    let reason = &world.job(job_id).notes().reason;
    assert!(reason.contains("lease of claim 3 ran out") && reason.contains("3 claims"), "{reason}");
    assert_eq!(world.complete(job_id, "w"), Err(Rejection::ClaimLost));
}

/// Kind G. Giving back costs nothing, and the number rises all the same.
#[test]
fn releases_are_free_and_the_number_still_rises() {
    let mut world = World::new();
    let mut job = new_job("q");
    job.max_attempts = Some(1);
    let job_id = world.enqueue_job(job).job.job_id;
    for attempt in 1..=100 {
        assert_eq!(world.claim("q", "w").unwrap().attempts, attempt);
        world.release(job_id, "w").unwrap();
    }
    assert_eq!(world.state_of(job_id), JobState::Ready);
    assert_eq!(world.claim("q", "w").unwrap().attempts, 101);
    assert_eq!(world.fail(job_id, "w").unwrap().state, JobState::Dead);
}

#[test]
fn a_retry_gives_a_fresh_budget_and_the_number_goes_on() {
    let mut world = World::new();
    let mut job = new_job("q");
    job.max_attempts = Some(2);
    let job_id = world.enqueue_job(job).job.job_id;
    for _ in 0..2 {
        world.claim("q", "w").unwrap();
        world.fail(job_id, "w").unwrap();
    }
    assert_eq!(world.state_of(job_id), JobState::Dead);
    assert_eq!(world.retry(job_id).unwrap().max_attempts, 4);
    assert_eq!(world.claim("q", "w").unwrap().attempts, 3);
    assert_eq!(world.fail(job_id, "w").unwrap().state, JobState::Ready);
    assert_eq!(world.claim("q", "w").unwrap().attempts, 4);
    assert_eq!(world.fail(job_id, "w").unwrap().state, JobState::Dead);
}

#[test]
fn the_last_claim_number_buries_the_job_instead_of_wrapping() {
    for is_lapsed in [false, true] {
        let mut world = World::new();
        let job_id = world.enqueue("q");
        world.claim("q", "w").unwrap();
        let mut job = world.job(job_id).clone();
        (job.attempts, job.releases) = (u32::MAX, u32::MAX - 1);
        world.state.evolve(&Change::PutJob(Box::new(job)));
        if is_lapsed {
            world.pass(10_000).tick();
        } else {
            world.fail(job_id, "w").unwrap();
        }
        let other = world.enqueue("q");
        assert_eq!(world.claim("q", "v").unwrap().job_id, other);
        assert_eq!(world.state_of(job_id), JobState::Dead);
        assert!(world.job(job_id).notes().reason.contains("4294967295"));
        assert_eq!(world.job(job_id).attempts, u32::MAX);
    }
}

/// Kind M. Cancel against heartbeat, completion, failure and lapse: one winner each, and never a retry afterwards.
#[test]
fn cancel_races_have_one_documented_winner() {
    type Step = fn(&mut World, ag_core::name::JobId);
    let steps: [(&str, Step, JobState); 4] = [
        ("complete", |world, job_id| _ = world.complete(job_id, "w").unwrap(), JobState::Completed),
        ("fail", |world, job_id| _ = world.fail(job_id, "w").unwrap(), JobState::Cancelled),
        ("release", |world, job_id| _ = world.release(job_id, "w").unwrap(), JobState::Cancelled),
        ("lapse", |world, _| world.pass(10_000).tick(), JobState::Cancelled),
    ];
    for (name, step, winner) in steps {
        let mut world = World::new();
        let job_id = world.enqueue("q");
        world.claim("q", "w").unwrap();
        world.pass(5);
        assert!(world.cancel(job_id).unwrap().cancel_requested());
        let asked_at = world.job(job_id).notes().cancel_requested_at;
        world.pass(5);
        // Asking again keeps the first time, and every heartbeat tells.
        world.cancel(job_id).unwrap();
        assert!(world.heartbeat(job_id, "w").unwrap().cancel_requested);
        step(&mut world, job_id);
        assert_eq!(world.state_of(job_id), winner, "{name}");
        assert_eq!(world.job(job_id).notes().cancel_requested_at, asked_at, "{name}");
        assert!(world.claim("q", "v").is_none(), "{name}: handed out after its cancellation");
    }
}

/// Kind N. A dedupe key is free again after every way in which a job ends, and a retry does not collide with itself.
#[test]
fn dedupe_keys_are_freed_by_every_end() {
    let keyed = || NewJob { dedupe_key: Some(DedupeKey::parse("k", "key").unwrap()), ..new_job("q") };
    let mut world = World::new();
    for end in ["complete", "dead", "cancel"] {
        let first = world.enqueue_job(keyed());
        assert!(!first.deduplicated, "{end}");
        let again = world.enqueue_job(keyed());
        assert!(again.deduplicated);
        assert_eq!(again.job.job_id, first.job.job_id);
        let elsewhere = NewJob { queue: queue("other"), ..keyed() };
        let elsewhere = world.enqueue_job(elsewhere);
        assert!(!elsewhere.deduplicated, "another queue");
        world.cancel(elsewhere.job.job_id).unwrap();
        let job_id = first.job.job_id;
        match end {
            "complete" => {
                world.claim("q", "w").unwrap();
                world.complete(job_id, "w").unwrap();
            }
            "dead" => {
                world.claim("q", "w").unwrap();
                let (reason, worker) = (String::new(), label("w"));
                let fail = Fail { job_id: Some(job_id), worker, reason, retry_after_ms: None, permanent: true };
                world.job_of(&principal("p"), Operation::Fail(fail)).unwrap();
                world.retry(job_id).unwrap();
                assert!(world.enqueue_job(keyed()).deduplicated, "a retried job holds its key again");
                world.cancel(job_id).unwrap();
                let other = world.enqueue_job(keyed());
                assert!(!other.deduplicated);
                assert_eq!(world.retry(job_id), Err(Rejection::DedupeKeyTaken));
                world.cancel(other.job.job_id).unwrap();
            }
            _ => _ = world.cancel(job_id).unwrap(),
        }
    }
    assert_eq!(world.rows.clone().load().unwrap(), world.state);
}

#[test]
fn finished_jobs_go_after_the_retention_as_it_is_now_and_their_number_never_comes_back() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.cancel(job_id).unwrap();
    world.pass(1_000).tick();
    assert!(world.state.job(job_id).is_some());
    world.set_policy("q", QueuePolicyPatch { retention_ms: Some(1_001), ..QueuePolicyPatch::default() });
    world.tick();
    assert!(world.state.job(job_id).is_some());
    world.pass(1).tick();
    assert!(world.state.job(job_id).is_none());
    assert_eq!(world.records.last().unwrap().event.verb, "drop");
    assert!(world.enqueue("q") > job_id);
}

#[test]
fn paused_queues_hand_out_nothing_and_everything_else_goes_on() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w").unwrap();
    world.set_policy("q", QueuePolicyPatch { paused: Some(true), ..QueuePolicyPatch::default() });
    let waiting = world.enqueue("q");
    assert!(world.claim("q", "v").is_none());
    world.heartbeat(job_id, "w").unwrap();
    world.complete(job_id, "w").unwrap();
    world.set_policy("q", QueuePolicyPatch { paused: Some(false), ..QueuePolicyPatch::default() });
    assert_eq!(world.claim("q", "v").unwrap().job_id, waiting);
}

#[test]
fn scheduled_jobs_become_ready_at_their_time_and_a_sweep_has_its_bound() {
    let mut world = World::new();
    let jobs = limits::SWEEP_JOBS_MAX + 1;
    for _ in 0..jobs {
        world.enqueue_job(NewJob { start: Start::After(5_000), ..new_job("q") });
    }
    world.pass(4_999).tick();
    assert!(world.claim("q", "w").is_none());
    world.pass(1).tick();
    let counts = |world: &World| world.state.queue(&queue("q")).unwrap().1;
    assert_eq!((counts(&world).ready, counts(&world).scheduled), (limits::SWEEP_JOBS_MAX as u64, 1));
    world.tick();
    assert_eq!((counts(&world).ready, counts(&world).scheduled), (jobs as u64, 0));
}

/// Kind K. A batch of claims stops before its answer is too large, and never holds what it does not deliver.
#[test]
fn a_batch_of_claims_is_bounded_by_the_bytes_of_its_answer() {
    let mut world = World::new();
    for _ in 0..6 {
        world.enqueue_job(NewJob { payload: vec![7; limits::PAYLOAD_BYTES_MAX], ..new_job("q") });
    }
    let claimed = world.claim_as(&principal("p"), &["q"], "w", 6);
    let bytes: u64 = claimed.iter().map(|job| job.answer_bytes()).sum();
    assert_eq!(claimed.len(), 2);
    assert!(bytes <= limits::CLAIM_BATCH_BYTES_MAX);
    assert_eq!(world.state.queue(&queue("q")).unwrap().1.claimed, 2);
}

#[test]
fn an_undelivered_claim_is_given_back_unless_the_job_has_moved_on() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w").unwrap();
    let give_back = |attempts| Operation::ReleaseUndelivered(vec![Undelivered { job_id, attempts }]);
    assert_eq!(world.run(&Actor::System, give_back(2)), Outcome::Done);
    assert_eq!(world.state_of(job_id), JobState::Claimed);
    assert_eq!(world.run(&Actor::System, give_back(1)), Outcome::Done);
    assert_eq!((world.state_of(job_id), world.job(job_id).releases), (JobState::Ready, 1));
    world.claim("q", "w").unwrap();
    assert_eq!(world.run(&Actor::System, give_back(1)), Outcome::Done);
    assert_eq!(world.state_of(job_id), JobState::Claimed);
}

#[test]
fn an_entry_that_is_refused_refuses_nothing_else_of_its_batch() {
    let mut world = World::new();
    let (first, second) = (world.enqueue("q"), world.enqueue("q"));
    world.claim_as(&principal("p"), &["q"], "w", 2);
    let entries = vec![completion(first, "w"), completion(ag_core::name::JobId(99), "w"), completion(second, "w")];
    match world.run(&principal("p"), Operation::Complete(entries)) {
        Outcome::Completed(results) => {
            let good: Vec<_> = results.iter().map(Result::is_ok).collect();
            assert_eq!(good, [true, false, true]);
        }
        other => panic!("{other:?}"),
    }
}
