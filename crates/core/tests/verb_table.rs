//! Every verb in every state, cell by cell, from the table of `docs/semantics/job-lifecycle.md`.

use ag_core::change::Change;
use ag_core::command::{Fail, Heartbeat, Operation, Release};
use ag_core::job::{Job, JobState};
use ag_core::name::JobId;
use ag_core::outcome::{Completion, Outcome};
use ag_core::rejection::Rejection;

use crate::common::{LEASE_MS, PRINCIPAL, World, claim_jobs, completion, failure, job_of, label, new_job};

/// `HELD` and `LAPSED` are claims of the caller, `OTHER` and `OTHER_LAPSED` of another. Of a cell: a state's name is
/// what the job is afterwards; `requested`: its cancellation is; `same`: done, and nothing changes; the others are
/// refusals.
const TABLE: &str = "
    verb      SCHEDULED READY     HELD      LAPSED    OTHER     OTHER_LAPSED COMPLETED DEAD  CANCELLED MISSING
    heartbeat lost      lost      CLAIMED   CLAIMED   lost      lost         lost      lost  lost      missing
    fail      lost      lost      READY     READY     lost      lost         lost      lost  lost      missing
    release   lost      lost      READY     READY     lost      lost         lost      lost  lost      missing
    complete  lost      lost      COMPLETED COMPLETED lost      lost         already   lost  lost      missing
    cancel    CANCELLED CANCELLED requested CANCELLED requested CANCELLED    already   same  same      missing
    retry     fresh     fresh     fresh     fresh     fresh     fresh        already   READY READY     missing
";

type Party = (&'static str, &'static str);

/// The caller, and another that is not the same holder: in each pair the two differ in one thing.
const PARTIES: [(Party, Party); 8] = [
    ((PRINCIPAL, "w1"), (PRINCIPAL, "w2")),
    ((PRINCIPAL, "w1"), ("zeta", "w1")),
    ((PRINCIPAL, "w1"), (PRINCIPAL, "W1")),
    ((PRINCIPAL, "w1"), (PRINCIPAL, "w1 ")),
    ((PRINCIPAL, "w|1"), (PRINCIPAL, "w")),
    ((PRINCIPAL, "w"), (PRINCIPAL, "w|1")),
    ((PRINCIPAL, "|"), (PRINCIPAL, "||")),
    ((PRINCIPAL, "zeta|w"), ("zeta", "w")),
];

fn cells() -> Vec<(&'static str, &'static str, &'static str)> {
    let mut lines =
        TABLE.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).filter(|line| !line.is_empty());
    let head = lines.next().unwrap();
    let mut cells = Vec::new();
    for line in lines {
        assert_eq!(line.len(), head.len(), "{line:?}");
        cells.extend(line[1..].iter().zip(&head[1..]).map(|(cell, column)| (line[0], *column, *cell)));
    }
    cells
}

/// Claims the only job of the queue.
fn claim_as(world: &mut World, (principal, worker): Party) {
    let outcome = world.ask(principal, Operation::Claim(claim_jobs(&["q"], worker, 1)));
    assert!(matches!(&outcome, Outcome::Claimed(jobs) if jobs.len() == 1), "{outcome:?}");
}

/// A world with one job in this state, and its number.
fn in_state(column: &str, caller: Party, other: Party) -> (World, JobId) {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    let held_by = |world: &mut World, party| claim_as(world, party);
    match column {
        "SCHEDULED" => {
            held_by(&mut world, caller);
            let fail = Fail { retry_after_ms: Some(60_000), ..failure(job_id, caller.1, "first try") };
            job_of(world.ask(caller.0, Operation::Fail(fail))).unwrap();
        }
        "READY" => {
            held_by(&mut world, caller);
            job_of(world.ask(caller.0, Operation::Fail(failure(job_id, caller.1, "first try")))).unwrap();
        }
        "HELD" => held_by(&mut world, caller),
        "OTHER" => held_by(&mut world, other),
        "LAPSED" | "OTHER_LAPSED" => {
            held_by(&mut world, if column == "LAPSED" { caller } else { other });
            world.time_passes(LEASE_MS);
            assert!(world.job(job_id).is_lapsed());
        }
        "COMPLETED" => {
            held_by(&mut world, caller);
            let outcome = world.ask(caller.0, Operation::Complete(vec![completion(job_id, caller.1, b"first")]));
            assert!(matches!(&outcome, Outcome::Completed(entries) if entries[0].is_ok()), "{outcome:?}");
        }
        "DEAD" => {
            held_by(&mut world, caller);
            let fail = Fail { permanent: true, ..failure(job_id, caller.1, "for good") };
            job_of(world.ask(caller.0, Operation::Fail(fail))).unwrap();
        }
        "CANCELLED" => {
            held_by(&mut world, caller);
            world.cancel(job_id).unwrap();
            job_of(world.ask(caller.0, Operation::Fail(failure(job_id, caller.1, "stopped")))).unwrap();
        }
        "MISSING" => return (world, JobId(job_id.0 + 1)),
        other => panic!("{other}"),
    }
    (world, job_id)
}

fn operation(verb: &str, job_id: JobId, worker: &str) -> Operation {
    let worker_label = label(worker);
    match verb {
        "heartbeat" => Operation::Heartbeat(vec![Heartbeat {
            fencing_token: None,
            job_id: Some(job_id),
            worker: worker_label,
            lease_ms: Some(45_000),
            progress: b"half".to_vec(),
        }]),
        "fail" => Operation::Fail(failure(job_id, worker, "boom")),
        "release" => Operation::Release(Release { fencing_token: None, job_id: Some(job_id), worker: worker_label }),
        "complete" => Operation::Complete(vec![completion(job_id, worker, b"result")]),
        "cancel" => Operation::Cancel(job_id),
        "retry" => Operation::Retry(job_id),
        other => panic!("{other}"),
    }
}

fn refusal(outcome: &Outcome) -> Option<Rejection> {
    match outcome {
        Outcome::Heartbeats(entries) => entries[0].clone().err(),
        Outcome::Completed(entries) => entries[0].clone().err(),
        Outcome::Rejected(rejection) => Some(rejection.clone()),
        _ => None,
    }
}

fn answered_job(outcome: &Outcome) -> Option<&Job> {
    match outcome {
        Outcome::Job(changed) => Some(&changed.job),
        Outcome::Completed(entries) => match &entries[0] {
            Ok(Completion::Now(done)) => Some(&done.job),
            _ => None,
        },
        _ => None,
    }
}

/// How many audit records a refusal of this verb leaves: only what workers do with claims is recorded.
fn records_of_refusal(verb: &str) -> usize {
    usize::from(matches!(verb, "heartbeat" | "fail" | "release" | "complete"))
}

fn check_cell(verb: &str, column: &str, cell: &str, caller: Party, other: Party) {
    let shown = format!("{verb} × {column}, {caller:?} and {other:?}");
    let (mut world, job_id) = in_state(column, caller, other);
    let (rows, before) = (world.rows.clone(), world.state.job(job_id).cloned());
    let applied = world.apply(vec![crate::common::command(caller.0, operation(verb, job_id, caller.1))]);
    let outcome = &applied.outcomes[0];
    let expected = match cell {
        "lost" => Some(Rejection::ClaimLost),
        "missing" => Some(Rejection::JobNotFound),
        "already" => Some(Rejection::AlreadyCompleted { by_caller: verb == "complete" }),
        "fresh" => Some(Rejection::JobNotRetryable),
        _ => None,
    };
    assert_eq!(refusal(outcome), expected, "{shown}");
    if expected.is_some() || cell == "same" {
        assert_eq!(world.rows, rows, "{shown}");
        let records = if cell == "same" { 0 } else { records_of_refusal(verb) };
        assert_eq!(applied.changes.len(), 1 + records, "{shown}: {:?}", applied.changes);
        assert!(matches!(applied.changes[0], Change::Clocks { .. }), "{shown}");
        assert!(applied.changes[1..].iter().all(|change| matches!(change, Change::Audit(_))), "{shown}");
    }
    let after = match cell {
        "requested" => JobState::Claimed,
        "same" | "lost" | "already" | "fresh" | "missing" => before.as_ref().map_or(JobState::Ready, |job| job.state),
        name => state_named(name),
    };
    let Some(job) = world.state.job(job_id) else { return assert_eq!(cell, "missing", "{shown}") };
    assert_eq!(job.state, after, "{shown}");
    assert_eq!(job.cancel_requested(), cell == "requested" || was_cancelled(before.as_ref(), cell), "{shown}");
    if let Some(answered) = answered_job(outcome) {
        assert_eq!(answered, job, "{shown}: the answer is not the job");
    }
}

/// A request to cancel stays as it is, but for a retry.
fn was_cancelled(before: Option<&Job>, cell: &str) -> bool {
    before.is_some_and(|job| job.cancel_requested()) && cell != "READY"
}

fn state_named(name: &str) -> JobState {
    let all = [JobState::Scheduled, JobState::Ready, JobState::Claimed];
    let all = all.into_iter().chain([JobState::Completed, JobState::Dead, JobState::Cancelled]);
    all.into_iter().find(|state| format!("{state:?}").to_uppercase() == name).unwrap()
}

/// Field report T09.
#[test]
fn every_verb_in_every_state_does_what_the_table_says_for_every_kind_of_caller() {
    let cells = cells();
    assert_eq!(cells.len(), 60);
    for (caller, other) in PARTIES {
        for (verb, column, cell) in &cells {
            check_cell(verb, column, cell, caller, other);
        }
    }
}

#[test]
fn a_job_id_that_no_job_can_have_is_not_found_by_every_verb_of_a_claim() {
    let mut world = World::new();
    world.enqueue("q");
    let operations = [
        Operation::Heartbeat(vec![Heartbeat {
            fencing_token: None,
            job_id: None,
            worker: label("w"),
            lease_ms: None,
            progress: vec![],
        }]),
        Operation::Fail(Fail { job_id: None, ..failure(JobId(1), "w", "boom") }),
        Operation::Release(Release { fencing_token: None, job_id: None, worker: label("w") }),
        Operation::Complete(vec![ag_core::command::Complete { job_id: None, ..completion(JobId(1), "w", b"") }]),
    ];
    for operation in operations {
        let rows = world.rows.clone();
        let outcome = world.ask(PRINCIPAL, operation);
        assert_eq!(refusal(&outcome), Some(Rejection::JobNotFound));
        assert_eq!(world.rows, rows);
        assert_eq!(world.audit.last().unwrap().event.job_id, None);
    }
}

/// Field report T13: three answers that a worker can tell apart.
#[test]
fn a_late_completion_tells_not_found_lost_and_done_by_you_apart() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w1");
    world.time_passes(LEASE_MS);
    world.claim("q", "w2");
    assert_eq!(world.complete(job_id, "w1", b"late"), Err(Rejection::ClaimLost));
    world.complete(job_id, "w2", b"good").unwrap();
    assert_eq!(world.complete(job_id, "w2", b"again"), Err(Rejection::AlreadyCompleted { by_caller: true }));
    assert_eq!(world.complete(job_id, "w1", b"late"), Err(Rejection::AlreadyCompleted { by_caller: false }));
    assert_eq!(world.complete(JobId(99), "w1", b"late"), Err(Rejection::JobNotFound));
    assert_eq!(world.rows.blob(job_id, ag_core::change::BlobKind::Result), b"good");
}

/// One entry's refusal leaves the others of its batch alone.
#[test]
fn each_entry_of_a_batch_is_judged_by_itself() {
    let mut world = World::new();
    let jobs: Vec<_> = (0..3).map(|_| world.enqueue_job(new_job("q")).job.job_id).collect();
    world.claim_batch(&["q"], "w1", 2);
    let beats = jobs.iter().map(|job_id| Heartbeat {
        fencing_token: None,
        job_id: Some(*job_id),
        worker: label("w1"),
        lease_ms: None,
        progress: b"1".to_vec(),
    });
    let Outcome::Heartbeats(beats) = world.ask(PRINCIPAL, Operation::Heartbeat(beats.collect())) else { panic!() };
    assert!(beats[0].is_ok() && beats[1].is_ok());
    assert_eq!(beats[2], Err(Rejection::ClaimLost));
    let entries = jobs.iter().rev().map(|job_id| completion(*job_id, "w1", b"r")).collect();
    let Outcome::Completed(entries) = world.ask(PRINCIPAL, Operation::Complete(entries)) else { panic!() };
    assert_eq!(entries[0], Err(Rejection::ClaimLost));
    assert!(entries[1].is_ok() && entries[2].is_ok());
}
