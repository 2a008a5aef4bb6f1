//! The table of verbs by state, cell by cell, for every kind of caller.

mod common;

use ag_core::command::*;
use ag_core::job::JobState;
use ag_core::name::JobId;
use ag_core::outcome::Outcome;
use ag_core::rejection::Rejection;
use common::{World, completion, label, principal};

/// Where the job stands before the verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Missing,
    Scheduled,
    Ready,
    Claimed,
    Lapsed,
    Completed,
    Dead,
    Cancelled,
}

const BEFORE: [Before; 8] = [
    Before::Missing,
    Before::Scheduled,
    Before::Ready,
    Before::Claimed,
    Before::Lapsed,
    Before::Completed,
    Before::Dead,
    Before::Cancelled,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Heartbeat,
    Fail,
    Release,
    Complete,
    Cancel,
    Retry,
}

const VERBS: [Verb; 6] = [Verb::Heartbeat, Verb::Fail, Verb::Release, Verb::Complete, Verb::Cancel, Verb::Retry];

/// Principal and label of the caller; the claim is by `p` under `w`.
const CALLERS: [(&str, &str); 5] = [("p", "w"), ("p", "v"), ("q", "w"), ("p", "w|w"), ("q", "p|w")];

/// What the contract says, as the names of the errors.
fn expected(verb: Verb, before: Before, is_holder: bool) -> &'static str {
    match (verb, before) {
        (_, Before::Missing) => "JOB_NOT_FOUND",
        (Verb::Heartbeat | Verb::Fail | Verb::Release | Verb::Complete, Before::Claimed | Before::Lapsed) => {
            if is_holder {
                "done"
            } else {
                "CLAIM_LOST"
            }
        }
        (Verb::Complete, Before::Completed) => "ALREADY_COMPLETED",
        (Verb::Heartbeat | Verb::Fail | Verb::Release | Verb::Complete, _) => "CLAIM_LOST",
        (Verb::Cancel | Verb::Retry, Before::Completed) => "ALREADY_COMPLETED",
        (Verb::Cancel, _) => "done",
        (Verb::Retry, Before::Dead | Before::Cancelled) => "done",
        (Verb::Retry, _) => "JOB_NOT_RETRYABLE",
    }
}

fn world(before: Before) -> (World, JobId) {
    let mut world = World::new();
    let mut job = common::new_job("q");
    job.max_attempts = Some(3);
    if before == Before::Scheduled {
        job.start = Start::After(60_000);
    }
    let job_id = world.enqueue_job(job).job.job_id;
    match before {
        Before::Missing => return (world, JobId(99)),
        Before::Scheduled | Before::Ready => {}
        Before::Claimed | Before::Lapsed | Before::Completed | Before::Dead => {
            world.claim("q", "w").unwrap();
        }
        Before::Cancelled => _ = world.cancel(job_id).unwrap(),
    }
    match before {
        Before::Lapsed => world.pass(10_000).tick(),
        Before::Completed => _ = world.complete(job_id, "w").unwrap(),
        Before::Dead => {
            let (reason, worker) = ("no".to_owned(), label("w"));
            let fail = Fail { job_id: Some(job_id), worker, reason, retry_after_ms: None, permanent: true };
            world.job_of(&principal("p"), Operation::Fail(fail)).unwrap();
        }
        _ => {}
    }
    (world, job_id)
}

fn run(world: &mut World, verb: Verb, caller: (&str, &str), job_id: JobId) -> Result<(), Rejection> {
    let (actor, worker) = (principal(caller.0), caller.1);
    match verb {
        Verb::Heartbeat => world.heartbeat_as(&actor, job_id, worker, b"progress".to_vec()).map(drop),
        Verb::Fail => {
            let (job_id, reason, worker) = (Some(job_id), "boom".to_owned(), label(worker));
            let fail = Fail { job_id, worker, reason, retry_after_ms: None, permanent: false };
            world.job_of(&actor, Operation::Fail(fail)).map(drop)
        }
        Verb::Release => {
            let release = Release { job_id: Some(job_id), worker: label(worker) };
            world.job_of(&actor, Operation::Release(release)).map(drop)
        }
        Verb::Complete => {
            let mut complete = completion(job_id, worker);
            let attestation_type = ag_core::name::AttestationType::parse("type", "x/y").unwrap();
            complete.attestation = Some(NewAttestation { attestation_type, bytes: b"evidence".to_vec() });
            world.complete_as(&actor, complete).map(drop)
        }
        Verb::Cancel => world.job_of(&actor, Operation::Cancel(job_id)).map(drop),
        Verb::Retry => world.job_of(&actor, Operation::Retry(job_id)).map(drop),
    }
}

#[test]
fn every_cell_of_the_table_is_as_the_contract_says() {
    let mut cells = 0;
    for verb in VERBS {
        for before in BEFORE {
            for caller in CALLERS {
                let (mut world, job_id) = world(before);
                let is_holder = caller == ("p", "w");
                let outcome = run(&mut world, verb, caller, job_id);
                let shown = outcome.as_ref().map_or_else(|rejection| rejection.reason(), |()| "done");
                assert_eq!(shown, expected(verb, before, is_holder), "{verb:?} × {before:?} by {caller:?}");
                if let Err(Rejection::AlreadyCompleted { by_caller }) = outcome {
                    assert_eq!(by_caller, verb == Verb::Complete && is_holder, "{verb:?} × {before:?} by {caller:?}");
                }
                cells += 1;
            }
        }
    }
    assert_eq!(cells, 240);
}

/// No field of the job, no blob, no counter: only the audit log knows of a refused claim action.
#[test]
fn a_refusal_changes_nothing_but_the_audit_log() {
    for verb in VERBS {
        for before in BEFORE {
            for caller in CALLERS {
                let (mut world, job_id) = world(before);
                let (rows, records) = (world.rows.clone(), world.records.len());
                if run(&mut world, verb, caller, job_id).is_ok() {
                    continue;
                }
                assert_eq!(world.rows.jobs, rows.jobs, "{verb:?} × {before:?} by {caller:?}");
                assert_eq!(world.rows.queues, rows.queues);
                assert_eq!(world.rows.replies, rows.replies);
                assert_eq!(world.rows.meta.rows, rows.meta.rows);
                let is_claim_action = !matches!(verb, Verb::Cancel | Verb::Retry);
                assert_eq!(world.records.len() - records, usize::from(is_claim_action), "{verb:?} × {before:?}");
                if let Some(record) = world.records.last().filter(|_| is_claim_action) {
                    assert_eq!(record.event.attempts, 0, "a refusal tells the claim's number");
                    assert_ne!(record.event.outcome, "done");
                }
            }
        }
    }
}

/// What a done verb leads to.
#[test]
fn done_verbs_lead_to_the_state_that_the_contract_says() {
    let after = |verb: Verb, before: Before| {
        let (mut world, job_id) = world(before);
        run(&mut world, verb, ("p", "w"), job_id).unwrap();
        (world.state_of(job_id), world.job(job_id).cancel_requested())
    };
    assert_eq!(after(Verb::Heartbeat, Before::Lapsed), (JobState::Claimed, false));
    assert_eq!(after(Verb::Fail, Before::Claimed), (JobState::Ready, false));
    assert_eq!(after(Verb::Release, Before::Lapsed), (JobState::Ready, false));
    assert_eq!(after(Verb::Complete, Before::Lapsed), (JobState::Completed, false));
    assert_eq!(after(Verb::Cancel, Before::Claimed), (JobState::Claimed, true));
    assert_eq!(after(Verb::Cancel, Before::Lapsed), (JobState::Cancelled, false));
    assert_eq!(after(Verb::Cancel, Before::Scheduled), (JobState::Cancelled, false));
    assert_eq!(after(Verb::Cancel, Before::Dead), (JobState::Dead, false));
    assert_eq!(after(Verb::Retry, Before::Dead), (JobState::Ready, false));
    assert_eq!(after(Verb::Retry, Before::Cancelled), (JobState::Ready, false));
}

#[test]
fn an_id_that_no_job_can_have_is_not_found() {
    let mut world = World::new();
    let heartbeat = Heartbeat { job_id: None, worker: label("w"), lease_ms: None, progress: Vec::new() };
    let outcome = world.run(&principal("p"), Operation::Heartbeat(vec![heartbeat]));
    assert_eq!(outcome, Outcome::Heartbeats(vec![Err(Rejection::JobNotFound)]));
}
