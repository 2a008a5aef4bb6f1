//! Dedupe keys: one unfinished job a key and queue. Field report T71.

use ag_core::command::{Enqueue, Fail, NewJob, Operation};
use ag_core::job::JobState;
use ag_core::name::JobId;
use ag_core::outcome::Outcome;
use ag_core::queue::QueuePolicyPatch;
use ag_core::rejection::Rejection;

use crate::common::{LEASE_MS, PRINCIPAL, World, failure, keyed_job, new_job};

type End = fn(&mut World, JobId);

/// Every way in which a job ends.
const ENDS: [(&str, JobState, End); 7] = [
    ("completed", JobState::Completed, |world, job_id| {
        world.claim("q", "w");
        world.complete(job_id, "w", b"").unwrap();
    }),
    ("failed for good", JobState::Dead, |world, job_id| {
        world.claim("q", "w");
        let fail = Fail { permanent: true, ..failure(job_id, "w", "boom") };
        _ = world.ask(PRINCIPAL, Operation::Fail(fail));
    }),
    ("lapsed out of budget", JobState::Dead, |world, _| {
        world.claim("q", "w");
        world.time_passes(LEASE_MS);
    }),
    ("buried", JobState::Dead, |world, job_id| {
        world.set_attempts(job_id, u32::MAX);
        assert!(world.try_claim("q", "w").is_none());
    }),
    ("cancelled while ready", JobState::Cancelled, |world, job_id| _ = world.cancel(job_id).unwrap()),
    ("cancelled and failed", JobState::Cancelled, |world, job_id| {
        world.claim("q", "w");
        world.cancel(job_id).unwrap();
        world.fail(job_id, "w", "stopped").unwrap();
    }),
    ("cancelled and lapsed", JobState::Cancelled, |world, job_id| {
        world.claim("q", "w");
        world.cancel(job_id).unwrap();
        world.time_passes(LEASE_MS);
    }),
];

fn once(queue: &str) -> NewJob {
    NewJob { max_attempts: Some(1), ..keyed_job(queue, "k") }
}

#[test]
fn a_key_is_free_again_however_its_job_ended() {
    for (end, state, run) in ENDS {
        let mut world = World::new();
        let first = world.enqueue_job(once("q")).job.job_id;
        run(&mut world, first);
        assert_eq!(world.state_of(first), state, "{end}");
        let second = world.enqueue_job(once("q"));
        assert!(!second.deduplicated, "{end}");
        assert_ne!(second.job.job_id, first, "{end}");
        if state != JobState::Completed {
            assert_eq!(world.retry(first), Err(Rejection::DedupeKeyTaken), "{end}");
            world.cancel(second.job.job_id).unwrap();
            // Now that the key is free, the retry does not conflict with the job itself.
            world.retry(first).unwrap();
            assert_eq!(world.enqueue_job(once("q")).job.job_id, first, "{end}");
        }
    }
}

#[test]
fn dropping_a_finished_job_does_not_free_the_key_of_its_successor() {
    let mut world = World::new();
    world.update_queue("q", QueuePolicyPatch { retention_ms: Some(1_000), ..QueuePolicyPatch::default() });
    let first = world.enqueue_job(once("q")).job.job_id;
    world.cancel(first).unwrap();
    let second = world.enqueue_job(once("q")).job.job_id;
    world.time_passes(1_000);
    assert!(world.state.job(first).is_none());
    assert_eq!(world.enqueue_job(once("q")).job.job_id, second);
}

#[test]
fn an_unfinished_job_answers_for_its_key_in_every_state() {
    let mut world = World::new();
    let first = world.enqueue_job(NewJob { start: ag_core::command::Start::After(1_000), ..keyed_job("q", "k") });
    let found = |world: &mut World, what: &str| {
        let other = NewJob { payload: b"other".to_vec(), priority: 9, ..keyed_job("q", "k") };
        let again = world.enqueue_job(other);
        assert!(again.deduplicated, "{what}");
        assert_eq!(again.job, *world.job(first.job.job_id), "{what}");
        assert_eq!(world.rows.blob(again.job.job_id, ag_core::change::BlobKind::Payload), b"payload", "{what}");
    };
    found(&mut world, "scheduled");
    world.time_passes(1_000);
    found(&mut world, "ready");
    world.claim("q", "w");
    found(&mut world, "claimed");
    world.cancel(first.job.job_id).unwrap();
    found(&mut world, "asked to stop");
    world.heartbeat(first.job.job_id, "w").unwrap();
    assert_eq!(world.rows.jobs.len(), 1);
}

#[test]
fn a_lapsed_job_still_has_its_key_and_a_release_does_not_free_it() {
    let mut world = World::new();
    let first = world.enqueue_job(keyed_job("q", "k")).job.job_id;
    world.claim("q", "w");
    world.time_passes(LEASE_MS);
    assert!(world.enqueue_job(keyed_job("q", "k")).deduplicated);
    world.release(first, "w").unwrap();
    assert!(world.enqueue_job(keyed_job("q", "k")).deduplicated);
}

#[test]
fn keys_are_per_queue_and_jobs_without_one_are_never_the_same() {
    let mut world = World::new();
    let a = world.enqueue_job(keyed_job("a", "k"));
    let b = world.enqueue_job(keyed_job("b", "k"));
    assert!(!b.deduplicated);
    assert_ne!(a.job.job_id, b.job.job_id);
    assert_ne!(world.enqueue("a"), world.enqueue("a"));
}

#[test]
fn the_second_job_of_a_batch_with_the_same_key_finds_the_first() {
    let mut world = World::new();
    let jobs = vec![keyed_job("q", "k"), new_job("q"), keyed_job("q", "k")];
    let outcome = world.ask(PRINCIPAL, Operation::Enqueue(Enqueue { jobs, request_id: None }));
    let Outcome::Enqueued(enqueued) = outcome else { panic!("{outcome:?}") };
    assert_eq!(enqueued.iter().map(|one| one.deduplicated).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(enqueued[0].job, enqueued[2].job);
}

#[test]
fn keys_survive_a_reload_from_rows() {
    let mut world = World::new();
    let first = world.enqueue_job(once("q")).job.job_id;
    let finished = world.enqueue_job(keyed_job("q", "other")).job.job_id;
    world.cancel(finished).unwrap();
    world.state = world.reloaded();
    assert_eq!(world.enqueue_job(once("q")).job.job_id, first);
    assert!(!world.enqueue_job(keyed_job("q", "other")).deduplicated);
    assert_eq!(world.retry(finished), Err(Rejection::DedupeKeyTaken));
}
