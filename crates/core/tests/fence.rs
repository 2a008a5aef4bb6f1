//! The fence, cell by cell: verb × state × token × caller × policy × cluster version, against a model of its own that
//! is written from the words of the contract and shares nothing with the state machine.

use ag_core::change::{BlobKind, Change};
use ag_core::command::{Complete, Fail, Heartbeat, NewAttestation, Operation, Release, UpdateQueue};
use ag_core::digest::Digest;
use ag_core::job::JobState;
use ag_core::name::{AttestationType, JobId};
use ag_core::outcome::{Completion, Outcome};
use ag_core::queue::{Fencing, QueuePolicyPatch};
use ag_core::rejection::Rejection;

use crate::common::{LEASE_MS, PRINCIPAL, World, claim_jobs, command, completion, failure, job_of, label, queue_name};

const VERBS: [&str; 6] = ["heartbeat", "heartbeats", "complete", "completes", "fail", "release"];
const STATES: [&str; 10] =
    ["SCHEDULED", "READY", "HELD", "LAPSED", "OTHER", "OTHER_LAPSED", "COMPLETED", "DEAD", "CANCELLED", "MISSING"];
/// The number of the newest claim in every state.
const CURRENT: u32 = 2;
const TOKENS: [Option<u32>; 5] = [None, Some(CURRENT - 1), Some(CURRENT), Some(CURRENT + 1), Some(u32::MAX)];
/// The holder's own name, another label of its principal, and its label under another principal.
const CALLERS: [(&str, &str); 3] = [(PRINCIPAL, "w"), (PRINCIPAL, "w2"), ("zeta", "w")];

/// What the contract says of one call: whether it was fenced, or why it is refused.
fn model(
    verb: &str,
    state: &str,
    fencing_token: Option<u32>,
    is_holders_name: bool,
    (required, cluster_version): (bool, u32),
) -> Result<bool, &'static str> {
    if state == "MISSING" {
        return Err("JOB_NOT_FOUND");
    }
    let has_fence = cluster_version >= 2;
    if has_fence && required && fencing_token.is_none() {
        return Err("FENCING_TOKEN_REQUIRED");
    }
    // Who waits has no holder; who is finished keeps the name of its last.
    let stands_on_claim = is_holders_name && !["SCHEDULED", "READY", "OTHER", "OTHER_LAPSED"].contains(&state);
    if has_fence && stands_on_claim && fencing_token.is_some_and(|number| number != CURRENT) {
        return Err("STALE_FENCING_TOKEN");
    }
    match state {
        "HELD" | "LAPSED" if is_holders_name => Ok(has_fence && fencing_token.is_some()),
        "COMPLETED" if verb.starts_with("complete") => Err("ALREADY_COMPLETED"),
        _ => Err("CLAIM_LOST"),
    }
}

fn claim_as(world: &mut World, (principal, worker): (&str, &str)) {
    let outcome = world.ask(principal, Operation::Claim(claim_jobs(&["q"], worker, 1)));
    assert!(matches!(&outcome, Outcome::Claimed(jobs) if jobs.len() == 1), "{outcome:?}");
}

/// A world with one job in this state, claimed twice, the first time always by the holder.
fn in_state(state: &str, required: bool, cluster_version: u32) -> (World, JobId) {
    let (mut world, holder) = (World::new(), CALLERS[0]);
    let job_id = world.enqueue("q");
    if required || cluster_version > 1 {
        world.ask("admin", Operation::SetClusterVersion(2));
    }
    if required {
        let patch = QueuePolicyPatch { fencing: Some(Fencing::Required), ..Default::default() };
        world.ask("admin", Operation::UpdateQueue(UpdateQueue { queue: queue_name("q"), patch }));
    }
    claim_as(&mut world, holder);
    world.time_passes(LEASE_MS);
    claim_as(&mut world, if state.starts_with("OTHER") { ("zeta", "other") } else { holder });
    let fencing_token = (cluster_version > 1).then_some(CURRENT);
    let fail = |fail: Fail| Operation::Fail(Fail { fencing_token, ..fail });
    match state {
        "SCHEDULED" => {
            let later = Fail { retry_after_ms: Some(60_000), ..failure(job_id, "w", "later") };
            job_of(world.ask(PRINCIPAL, fail(later))).unwrap();
        }
        "READY" => drop(job_of(world.ask(PRINCIPAL, fail(failure(job_id, "w", "again")))).unwrap()),
        "HELD" | "OTHER" => {}
        "LAPSED" | "OTHER_LAPSED" => world.time_passes(LEASE_MS),
        "COMPLETED" => {
            let entry = Complete { fencing_token, ..completion(job_id, "w", b"first") };
            let outcome = world.ask(PRINCIPAL, Operation::Complete(vec![entry]));
            assert!(matches!(&outcome, Outcome::Completed(entries) if entries[0].is_ok()), "{outcome:?}");
        }
        "DEAD" => {
            let for_good = Fail { permanent: true, ..failure(job_id, "w", "for good") };
            job_of(world.ask(PRINCIPAL, fail(for_good))).unwrap();
        }
        "CANCELLED" => {
            world.cancel(job_id).unwrap();
            job_of(world.ask(PRINCIPAL, fail(failure(job_id, "w", "stopped")))).unwrap();
        }
        "MISSING" => return (world, JobId(job_id.0 + 7)),
        other => panic!("{other}"),
    }
    assert_eq!(world.job(job_id).attempts, CURRENT);
    (world, job_id)
}

fn attested(complete: Complete) -> Complete {
    let attestation_type = AttestationType::parse("t", "application/vnd.in-toto+json").unwrap();
    let attestation = Some(NewAttestation { attestation_type, bytes: b"evidence of the stale claim".to_vec() });
    Complete { attestation, ..complete }
}

/// The call, and in a batch a good call about another job after it.
fn operation(verb: &str, worker: &str, job_id: JobId, fencing_token: Option<u32>, good: JobId) -> Operation {
    let beat = |job_id, worker, fencing_token| Heartbeat {
        job_id: Some(job_id),
        worker: label(worker),
        fencing_token,
        lease_ms: Some(45_000),
        progress: b"half".to_vec(),
    };
    let first = attested(Complete { fencing_token, ..completion(job_id, worker, b"result") });
    match verb {
        "heartbeat" => Operation::Heartbeat(vec![beat(job_id, worker, fencing_token)]),
        "heartbeats" => {
            Operation::Heartbeat(vec![beat(job_id, worker, fencing_token), beat(good, "bystander", Some(1))])
        }
        "complete" => Operation::Complete(vec![first]),
        "completes" => {
            let second = Complete { fencing_token: Some(1), ..completion(good, "bystander", b"good") };
            Operation::Complete(vec![first, second])
        }
        "fail" => Operation::Fail(Fail { fencing_token, ..failure(job_id, worker, "stale reason") }),
        "release" => Operation::Release(Release { job_id: Some(job_id), worker: label(worker), fencing_token }),
        other => panic!("{other}"),
    }
}

/// Whether the first entry was accepted and fenced, or why not; and whether the second, if there is one, was accepted.
fn told(outcome: &Outcome) -> (Result<bool, String>, bool) {
    let reason = |rejection: &Rejection| rejection.reason().to_owned();
    match outcome {
        Outcome::Heartbeats(entries) => {
            let first = entries[0].as_ref().map(|extended| extended.fenced).map_err(reason);
            (first, entries.get(1).is_none_or(Result::is_ok))
        }
        Outcome::Completed(entries) => {
            let first = match &entries[0] {
                Ok(Completion::Now(done)) => Ok(done.fenced),
                Ok(Completion::Replayed(replayed)) => panic!("{replayed:?}"),
                Err(rejection) => Err(reason(rejection)),
            };
            (first, entries.get(1).is_none_or(Result::is_ok))
        }
        Outcome::Job(changed) => (Ok(changed.fenced), true),
        Outcome::Rejected(rejection) => (Err(reason(rejection)), true),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_verb_in_every_state_with_every_token_is_as_the_model_says() {
    let (mut cells, mut accepted, mut stale) = (0, 0, 0);
    for (required, cluster_version) in [(false, 1), (false, 2), (true, 2)] {
        for state in STATES {
            for verb in VERBS {
                for fencing_token in TOKENS {
                    for caller in CALLERS {
                        let shown = format!(
                            "{verb} × {state} × {fencing_token:?} × {caller:?} × {required} × {cluster_version}"
                        );
                        let rules = (required, cluster_version);
                        let expected = model(verb, state, fencing_token, caller == CALLERS[0], rules);
                        let (mut world, job_id) = in_state(state, required, cluster_version);
                        let good = world.enqueue("bystanders");
                        let claim = Operation::Claim(claim_jobs(&["bystanders"], "bystander", 1));
                        world.ask(caller.0, claim);
                        let (rows, job) = (world.rows.clone(), world.state.job(job_id).cloned());
                        let call = operation(verb, caller.1, job_id, fencing_token, good);
                        let applied = world.apply(vec![command(caller.0, call)]);
                        let (first, bystander) = told(&applied.outcomes[0]);
                        assert_eq!(first, expected.map_err(ToOwned::to_owned), "{shown}");
                        assert!(bystander, "{shown}: an entry that was refused refused another");
                        cells += 1;
                        accepted += u32::from(expected.is_ok());
                        let Err(reason) = expected else { continue };
                        stale += u32::from(reason == "STALE_FENCING_TOKEN");
                        assert_eq!(world.state.job(job_id), job.as_ref(), "{shown}: a refusal changed the job");
                        if !verb.ends_with('s') {
                            assert_eq!(world.rows, rows, "{shown}: a refusal left something");
                        }
                        let digest = Digest::of(b"evidence of the stale claim");
                        let is_stored = |change: &Change| matches!(change, Change::PutAttestation { .. });
                        assert!(!applied.changes.iter().any(is_stored), "{shown}: {digest} was stored");
                        let record = &world.audit.iter().rfind(|record| record.event.outcome == reason).unwrap().event;
                        assert_eq!((record.attempts, record.job_id), (0, Some(job_id)), "{shown}: the record");
                        let told = record.details.get("fencing_token").cloned();
                        let may_tell = (reason == "STALE_FENCING_TOKEN").then(|| fencing_token.unwrap().to_string());
                        assert_eq!(told, may_tell, "{shown}: the record tells of a token");
                        assert_ne!(told, Some(CURRENT.to_string()), "{shown}: the record tells the current token");
                    }
                }
            }
        }
    }
    assert_eq!(cells, 3 * 10 * 6 * 5 * 3);
    println!("{cells} cells: {accepted} accepted, {stale} refused as stale");
    // Two states of the holder: at version 1 with any token, at 2 with the right one or none, if required with the
    // right.
    assert_eq!(accepted, 2 * 6 * (5 + 2 + 1));
    // Five states that keep the holder's name, and three wrong numbers, at version 2, required or not.
    assert_eq!(stale, 5 * 6 * 3 * 2);
}

/// No refusal differs by the number: whoever probes learns nothing but whether its own claim is the newest.
#[test]
fn another_label_of_the_same_principal_learns_nothing_by_probing() {
    let (mut world, job_id) = in_state("HELD", false, 2);
    for number in 1..=5 {
        let call = operation("heartbeat", "w2", job_id, Some(number), job_id);
        assert_eq!(told(&world.ask(PRINCIPAL, call)).0, Err("CLAIM_LOST".into()), "{number}");
    }
}

/// A refused stale completion leaves no result, no attestation and no reply; the holder's own goes through after it.
#[test]
fn a_stale_completion_leaves_nothing_and_the_newest_claim_completes() {
    let (mut world, job_id) = in_state("HELD", false, 2);
    let request_id = Some(crate::common::request_id("r-1"));
    let stale = attested(Complete {
        fencing_token: Some(1),
        request_id: request_id.clone(),
        ..completion(job_id, "w", b"stale")
    });
    let rows = world.rows.clone();
    let outcome = world.ask(PRINCIPAL, Operation::Complete(vec![stale]));
    assert_eq!(told(&outcome).0, Err("STALE_FENCING_TOKEN".into()));
    assert_eq!(world.rows, rows);
    let good = Complete { fencing_token: Some(2), request_id, ..completion(job_id, "w", b"good") };
    assert_eq!(told(&world.ask(PRINCIPAL, Operation::Complete(vec![good]))).0, Ok(true));
    assert_eq!(world.rows.blob(job_id, BlobKind::Result), b"good");
    assert_eq!(world.job(job_id).notes().attestation, None);
}

/// A completion that was applied below version 2, where leaders left its token out, is repeated above it.
#[test]
fn a_completion_of_before_the_fence_is_repeated_after_it() {
    let (mut world, job_id) = in_state("HELD", false, 1);
    let request_id = Some(crate::common::request_id("r-1"));
    let plain = Complete { request_id, ..completion(job_id, "w", b"good") };
    world.ask(PRINCIPAL, Operation::Complete(vec![plain.clone()]));
    world.ask("admin", Operation::SetClusterVersion(2));
    let again = |world: &mut World, fencing_token, result: &[u8]| {
        let entry = Complete { fencing_token, result: result.to_vec(), ..plain.clone() };
        let Outcome::Completed(mut entries) = world.ask(PRINCIPAL, Operation::Complete(vec![entry])) else { panic!() };
        entries.remove(0)
    };
    let first = again(&mut world, Some(CURRENT), b"good");
    assert!(matches!(&first, Ok(Completion::Replayed(replayed)) if !replayed.fenced), "{first:?}");
    assert_eq!(again(&mut world, Some(CURRENT), b"other"), Err(Rejection::RequestIdReused));
}

#[test]
fn a_fenced_completion_is_repeated_as_fenced_and_only_with_its_own_token() {
    let (mut world, job_id) = in_state("HELD", false, 2);
    let request_id = Some(crate::common::request_id("r-1"));
    let entry = Complete { request_id, fencing_token: Some(CURRENT), ..completion(job_id, "w", b"good") };
    let mut ask = |entry: Complete| {
        let Outcome::Completed(mut entries) = world.ask(PRINCIPAL, Operation::Complete(vec![entry])) else { panic!() };
        entries.remove(0)
    };
    assert!(matches!(ask(entry.clone()), Ok(Completion::Now(done)) if done.fenced));
    assert!(matches!(ask(entry.clone()), Ok(Completion::Replayed(replayed)) if replayed.fenced));
    for fencing_token in [None, Some(1), Some(3)] {
        assert_eq!(ask(Complete { fencing_token, ..entry.clone() }), Err(Rejection::RequestIdReused));
    }
}

#[test]
fn a_queue_requires_tokens_only_from_version_2_on() {
    let mut world = World::new();
    world.enqueue("q");
    let update = |fencing| {
        let patch = QueuePolicyPatch { fencing: Some(fencing), ..Default::default() };
        Operation::UpdateQueue(UpdateQueue { queue: queue_name("q"), patch })
    };
    let rows = world.rows.clone();
    let refused = world.ask("admin", update(Fencing::Required));
    assert_eq!(refused, Outcome::Rejected(Rejection::FencingNotSupported { cluster_version: 1 }));
    assert_eq!(world.rows, rows);
    world.ask("admin", Operation::SetClusterVersion(2));
    assert!(
        matches!(world.ask("admin", update(Fencing::Required)), Outcome::Queue(p) if p.fencing == Fencing::Required)
    );
    let details = &world.audit.last().unwrap().event.details;
    assert_eq!(details.get("fencing").map(String::as_str), Some("REQUIRED"));
    assert!(
        matches!(world.ask("admin", update(Fencing::Optional)), Outcome::Queue(p) if p.fencing == Fencing::Optional)
    );
    assert_eq!(world.job(JobId(1)).state, JobState::Ready);
}

/// What a leader of version 1 refuses before it proposes holds in every later state: only numbers that are used up.
#[test]
fn a_leader_below_version_2_tells_stale_entries_by_what_it_has_applied() {
    let (world, job_id) = in_state("HELD", false, 1);
    let actor = crate::common::actor(PRINCIPAL);
    for (fencing_token, stale) in [(None, 0), (Some(1), 1), (Some(2), 0), (Some(3), 0), (Some(u32::MAX), 0)] {
        for verb in VERBS {
            let call = operation(verb, "w", job_id, fencing_token, JobId(77));
            assert_eq!(world.state.stale_entries(&actor, &call).len(), stale, "{verb} {fencing_token:?}");
        }
    }
    let mut call = operation("heartbeats", "w", job_id, Some(1), JobId(77));
    assert_eq!(call.min_version(), 2);
    call.fit_to(1);
    assert_eq!(call.min_version(), 1);
}
