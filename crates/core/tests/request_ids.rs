//! Calls with a request id: the first answer again, once the effect.

use ag_core::change::{Answer, Change};
use ag_core::command::{ClaimJobs, Complete, Enqueue, NewAttestation, NewJob, Operation};
use ag_core::limits;
use ag_core::name::{AttestationType, JobId};
use ag_core::outcome::{Changed, Completion, Outcome};
use ag_core::rejection::Rejection;

use crate::common::{
    LEASE_MS, PRINCIPAL, World, claim_jobs, command, completion, keyed_job, new_job, replayed, request_id,
};

fn enqueue(jobs: Vec<NewJob>, id: &str) -> Operation {
    Operation::Enqueue(Enqueue { jobs, request_id: Some(request_id(id)) })
}

fn claim(queue: &str, worker: &str, id: &str) -> Operation {
    Operation::Claim(ClaimJobs { request_id: Some(request_id(id)), ..claim_jobs(&[queue], worker, 1) })
}

fn complete(job_id: JobId, worker: &str, result: &[u8], id: &str) -> Complete {
    Complete { request_id: Some(request_id(id)), ..completion(job_id, worker, result) }
}

/// Asks twice; the second call must do nothing but lead to the first answer, which is given back.
fn twice(world: &mut World, operation: Operation) -> (Outcome, Answer) {
    let first_at = world.next;
    let first = world.ask(PRINCIPAL, operation.clone());
    let rows = world.rows.clone();
    let applied = world.apply(vec![command(PRINCIPAL, operation)]);
    assert!(matches!(applied.changes[..], [Change::Clocks { .. }]), "{:?}", applied.changes);
    assert_eq!(world.rows, rows);
    let again = replayed(applied.outcomes.into_iter().next().unwrap());
    assert_eq!(again.applied_at, first_at);
    (first, rows.answers[&again.reply_key].clone())
}

/// Field report T34.
#[test]
fn a_repeated_enqueue_gets_the_first_answer_and_enqueues_once() {
    let mut world = World::new();
    let (first, answer) = twice(&mut world, enqueue(vec![new_job("q"), new_job("p"), new_job("q")], "r"));
    let Outcome::Enqueued(jobs) = first else { panic!("{first:?}") };
    assert_eq!(jobs.len(), 3);
    assert_eq!(answer, Answer::Enqueued(jobs));
    assert_eq!(world.rows.jobs.len(), 3);
}

/// Field report T37.
#[test]
fn a_repeated_claim_gets_the_same_claim_and_another_request_gets_another_job() {
    let mut world = World::new();
    let (a, b) = (world.enqueue("q"), world.enqueue("q"));
    let (first, answer) = twice(&mut world, claim("q", "w1", "r1"));
    let Outcome::Claimed(jobs) = first else { panic!("{first:?}") };
    assert_eq!((jobs[0].job_id, jobs[0].attempts), (a, 1));
    assert_eq!(answer, Answer::Claimed(jobs));
    let Outcome::Claimed(jobs) = world.ask(PRINCIPAL, claim("q", "w1", "r2")) else { panic!() };
    assert_eq!(jobs[0].job_id, b);
    // Also after somebody else took the job over: the old number, not the new holder's.
    world.time_passes(LEASE_MS);
    assert_eq!(world.claim("q", "w2").attempts, 2);
    let again = replayed(world.ask(PRINCIPAL, claim("q", "w1", "r1")));
    let Answer::Claimed(jobs) = &world.rows.answers[&again.reply_key] else { panic!() };
    assert_eq!((jobs[0].job_id, jobs[0].attempts), (a, 1));
}

/// Field report T39.
#[test]
fn a_repeated_completion_is_ok_and_one_with_another_result_is_refused() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w");
    let (first, answer) = twice(&mut world, Operation::Complete(vec![complete(job_id, "w", b"R", "r")]));
    let Outcome::Completed(entries) = first else { panic!("{first:?}") };
    let Ok(Completion::Now(Changed { job, .. })) = &entries[0] else { panic!("{entries:?}") };
    assert_eq!(answer, Answer::Completed(job.clone()));
    let rows = world.rows.clone();
    let Outcome::Completed(entries) = world.ask(PRINCIPAL, Operation::Complete(vec![complete(job_id, "w", b"X", "r")]))
    else {
        panic!()
    };
    assert_eq!(entries[0], Err(Rejection::RequestIdReused));
    assert_eq!(world.rows, rows);
    let record = &world.audit.last().unwrap().event;
    assert_eq!((record.verb.as_str(), record.outcome.as_str()), ("complete", "INVALID_FIELD"));
}

#[test]
fn entries_of_a_batch_are_remembered_each_by_itself() {
    let mut world = World::new();
    let jobs: Vec<_> = (0..3).map(|_| world.enqueue("q")).collect();
    world.claim_batch(&["q"], "w", 3);
    let entry = |n: usize| complete(jobs[n], "w", b"R", &format!("r#{n}"));
    _ = world.ask(PRINCIPAL, Operation::Complete(vec![entry(0), entry(1)]));
    let Outcome::Completed(entries) = world.ask(PRINCIPAL, Operation::Complete(vec![entry(0), entry(1), entry(2)]))
    else {
        panic!()
    };
    assert!(matches!(entries[..2], [Ok(Completion::Replayed(_)), Ok(Completion::Replayed(_))]));
    assert!(matches!(entries[2], Ok(Completion::Now(_))));
    assert_eq!(world.rows.replies.len(), 3);
}

#[test]
fn one_request_id_twice_in_one_batch_takes_effect_once() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w");
    let entry = complete(job_id, "w", b"R", "r");
    let Outcome::Completed(entries) = world.ask(PRINCIPAL, Operation::Complete(vec![entry.clone(), entry])) else {
        panic!()
    };
    assert!(matches!(entries[..], [Ok(Completion::Now(_)), Ok(Completion::Replayed(_))]));
}

/// The same request id with anything else about the call is another call, and refused. Also another kind of call.
#[test]
fn a_request_id_with_other_content_is_refused_whatever_differs() {
    let mut world = World::new();
    let job = || NewJob { labels: [("k".into(), "v".into())].into(), ..new_job("q") };
    _ = world.ask(PRINCIPAL, enqueue(vec![job()], "r"));
    let others = [
        vec![NewJob { payload: b"other".to_vec(), ..job() }],
        vec![NewJob { queue: crate::common::queue_name("p"), ..job() }],
        vec![NewJob { priority: -1, ..job() }],
        vec![NewJob { start: ag_core::command::Start::After(0), ..job() }],
        vec![NewJob { start: ag_core::command::Start::At(ag_core::time::WallTime(0)), ..job() }],
        vec![NewJob { max_attempts: Some(20), ..job() }],
        vec![NewJob { lease_ms: Some(30_000), ..job() }],
        vec![NewJob { dedupe_key: keyed_job("q", "k").dedupe_key, ..job() }],
        vec![NewJob { labels: [("kv".into(), String::new())].into(), ..job() }],
        vec![NewJob { labels: [("k".into(), "w".into())].into(), ..job() }],
        vec![job(), job()],
    ];
    let rows = world.rows.clone();
    for other in others {
        let shown = format!("{other:?}");
        let outcome = world.ask(PRINCIPAL, enqueue(other, "r"));
        assert_eq!(outcome, Outcome::Rejected(Rejection::RequestIdReused), "{shown}");
    }
    let outcome = world.ask(PRINCIPAL, claim("q", "w", "r"));
    assert_eq!(outcome, Outcome::Rejected(Rejection::RequestIdReused));
    assert_eq!(world.rows, rows);

    _ = world.ask(PRINCIPAL, claim("q", "w", "c"));
    let changed: [fn(&mut ClaimJobs); 4] = [
        |claim| claim.queues.push(crate::common::queue_name("p")),
        |claim| claim.worker = crate::common::label("w2"),
        |claim| claim.lease_ms = Some(30_000),
        |claim| claim.jobs_max = 2,
    ];
    for change in changed {
        let Operation::Claim(mut claim) = claim("q", "w", "c") else { panic!() };
        change(&mut claim);
        let outcome = world.ask(PRINCIPAL, Operation::Claim(claim.clone()));
        assert_eq!(outcome, Outcome::Rejected(Rejection::RequestIdReused), "{claim:?}");
    }
}

#[test]
fn an_attestation_is_part_of_a_completions_content() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w");
    let attested = |bytes: &[u8]| Complete {
        attestation: Some(NewAttestation {
            attestation_type: AttestationType::parse("t", "application/vnd.dsse+json").unwrap(),
            bytes: bytes.into(),
        }),
        ..complete(job_id, "w", b"R", "r")
    };
    let (_, answer) = twice(&mut world, Operation::Complete(vec![attested(b"one")]));
    let Answer::Completed(job) = answer else { panic!("{answer:?}") };
    assert_eq!(job.notes().attestation, Some(ag_core::digest::Digest::of(b"one")));
    for other in [attested(b"two"), complete(job_id, "w", b"R", "r")] {
        let Outcome::Completed(entries) = world.ask(PRINCIPAL, Operation::Complete(vec![other])) else { panic!() };
        assert_eq!(entries[0], Err(Rejection::RequestIdReused));
    }
    assert_eq!(world.rows.attestations.len(), 1);
}

#[test]
fn a_request_id_is_its_principals_own() {
    let mut world = World::new();
    for principal in [PRINCIPAL, "zeta"] {
        let outcome = world.ask(principal, enqueue(vec![new_job("q")], "r"));
        assert!(matches!(outcome, Outcome::Enqueued(_)), "{outcome:?}");
    }
    assert_eq!(world.rows.jobs.len(), 2);
    // No pair of principal and request id looks like another.
    assert!(matches!(world.ask("zet", enqueue(vec![new_job("q")], "ar")), Outcome::Enqueued(_)));
}

#[test]
fn refusals_and_claims_that_found_nothing_are_judged_anew() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    let entry = || Operation::Complete(vec![complete(job_id, "w", b"R", "r1")]);
    let Outcome::Completed(entries) = world.ask(PRINCIPAL, entry()) else { panic!() };
    assert_eq!(entries[0], Err(Rejection::ClaimLost));
    assert_eq!(world.ask(PRINCIPAL, claim("empty", "w", "r2")), Outcome::Claimed(Vec::new()));
    assert!(world.rows.replies.is_empty());
    world.claim("q", "w");
    let Outcome::Completed(entries) = world.ask(PRINCIPAL, entry()) else { panic!() };
    assert!(matches!(entries[0], Ok(Completion::Now(_))));
    world.enqueue("empty");
    let Outcome::Claimed(jobs) = world.ask(PRINCIPAL, claim("empty", "w", "r2")) else { panic!() };
    assert_eq!(jobs.len(), 1);
}

#[test]
fn replies_survive_a_reload_from_rows() {
    let mut world = World::new();
    world.enqueue("q");
    let asked_at = world.next;
    _ = world.ask(PRINCIPAL, claim("q", "w", "r"));
    world.state = world.reloaded();
    assert_eq!(replayed(world.ask(PRINCIPAL, claim("q", "w", "r"))).applied_at, asked_at);
    assert_eq!(world.ask(PRINCIPAL, claim("q", "other", "r")), Outcome::Rejected(Rejection::RequestIdReused));
}

/// Remembers calls `from..to` that change nothing else: all of them find the same job.
fn remember_many(world: &mut World, from: usize, to: usize) {
    let calls = (from..to).map(|n| command(PRINCIPAL, enqueue(vec![keyed_job("q", "k")], &format!("r{n}"))));
    let outcomes = world.apply(calls.collect()).outcomes;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Enqueued(_))));
}

fn is_remembered(world: &mut World, n: usize) -> bool {
    // The other content is refused if the call is remembered. If it is not, this call with its own id is.
    let kept = world.rows.replies.len();
    let asked = world.ask(PRINCIPAL, claim("none", "w", &format!("r{n}")));
    assert_eq!(world.rows.replies.len(), kept, "the question must leave no trace");
    asked == Outcome::Rejected(Rejection::RequestIdReused)
}

/// Both bounds: what is younger than 10 minutes is kept however many there are, and the 100,000 newest are kept however
/// old they are. What is beyond both goes, at most a sweep with each entry.
#[test]
fn replies_are_kept_for_ten_minutes_and_for_a_hundred_thousand_calls() {
    let (kept_min, sweep) = (limits::REPLIES_KEPT_MIN, limits::SWEEP_JOBS_MAX);
    let total = kept_min + sweep + 2;
    let mut world = World::new();
    remember_many(&mut world, 0, 1);
    world.lease_passes(1);
    remember_many(&mut world, 1, total);
    world.lease_passes(limits::REPLY_KEPT_MS_MIN - 2);
    assert_eq!(world.rows.replies.len(), total, "all are younger than 10 minutes");
    world.lease_passes(1);
    assert_eq!(world.rows.replies.len(), total - 1, "the first is 10 minutes old, and beyond the newest 100,000");
    assert!(!is_remembered(&mut world, 0) && is_remembered(&mut world, 1));
    world.lease_passes(1);
    assert_eq!(world.rows.replies.len(), total - 1 - sweep, "a sweep has its bound");
    world.lease_passes(0);
    assert_eq!(world.rows.replies.len(), kept_min);
    world.lease_passes(100 * limits::REPLY_KEPT_MS_MIN);
    assert_eq!(world.rows.replies.len(), kept_min, "the newest 100,000 stay, however old");
    assert!(!is_remembered(&mut world, total - kept_min - 1) && is_remembered(&mut world, total - kept_min));
    assert_eq!(world.reloaded(), world.state);
}
