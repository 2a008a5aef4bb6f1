//! Every interleaving of cancel, heartbeat, complete, fail, release and lapse over two workers. Field reports T67 to
//! T69.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ag_core::command::NewJob;
use ag_core::job::{Job, JobState};
use ag_core::name::JobId;
use ag_core::rejection::Rejection;
use ag_core::time::WallTime;

use crate::common::{LEASE_MS, World, new_job};

const WORKERS: [&str; 2] = ["w1", "w2"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Claim(usize),
    Heartbeat(usize),
    Complete(usize),
    Fail(usize),
    Release(usize),
    Cancel,
    /// As long as a lease.
    Pass,
}

fn steps() -> Vec<Step> {
    let of_workers = [Step::Claim, Step::Heartbeat, Step::Complete, Step::Fail, Step::Release];
    let of_workers = (0..WORKERS.len()).flat_map(|worker| of_workers.map(|step| step(worker)));
    of_workers.chain([Step::Cancel, Step::Pass]).collect()
}

/// A state of the job, and what was seen on the way there.
#[derive(Clone)]
struct Node {
    state: ag_core::State,
    rows: crate::common::rows::Rows,
    lease_now: u64,
    wall_now: u64,
    path: Vec<Step>,
    /// When a cancel of the held job was first acknowledged.
    asked_at: Option<WallTime>,
}

/// What of a job decides on what can become of it: all but points in time.
fn key(node: &Node, job: &Job) -> String {
    let claim = job.claim.as_ref();
    let left = claim.map(|claim| claim.lease_ends_at.0.saturating_sub(node.lease_now));
    let holder = claim.map(|claim| (claim.claimed_by.as_str().to_string(), claim.lapsed));
    let counts = (job.attempts, job.releases, job.max_attempts);
    format!("{:?} {counts:?} {holder:?} {left:?} {:?}", job.state, node.asked_at.is_some())
}

fn world_of(node: &Node) -> World {
    let mut world = World::new();
    (world.state, world.rows) = (node.state.clone(), node.rows.clone());
    (world.lease_now, world.wall_now) = (node.lease_now, node.wall_now);
    world
}

/// Takes one step, and checks what it answers and what it leads to.
fn take(node: &Node, step: Step, job_id: JobId) -> Node {
    let mut world = world_of(node);
    world.wall_now += 1;
    let before = world.job(job_id).clone();
    let path: Vec<_> = node.path.iter().copied().chain([step]).collect();
    let mut asked_at = node.asked_at;
    match step {
        Step::Claim(worker) => {
            let claimed = world.try_claim("q", WORKERS[worker]);
            if asked_at.is_some() || before.state.is_terminal() {
                assert_eq!(claimed, None, "handed out after its cancellation or end: {path:?}");
            }
        }
        Step::Heartbeat(worker) => match world.heartbeat(job_id, WORKERS[worker]) {
            Ok(extended) => assert_eq!(extended.cancel_requested, asked_at.is_some(), "{path:?}"),
            Err(rejection) => assert_eq!(rejection, Rejection::ClaimLost, "{path:?}"),
        },
        Step::Complete(worker) => _ = world.complete(job_id, WORKERS[worker], b"r"),
        Step::Fail(worker) => _ = world.fail(job_id, WORKERS[worker], "boom"),
        Step::Release(worker) => _ = world.release(job_id, WORKERS[worker]),
        Step::Cancel => match world.cancel(job_id) {
            Ok(job) if job.state == JobState::Claimed => asked_at = asked_at.or(Some(WallTime(world.wall_now))),
            Ok(job) => assert!(matches!(job.state, JobState::Cancelled | JobState::Dead), "{path:?}: {job:?}"),
            Err(rejection) => {
                assert_eq!(rejection, Rejection::AlreadyCompleted { by_caller: false }, "{path:?}");
                assert_eq!(before.state, JobState::Completed, "{path:?}");
            }
        },
        Step::Pass => world.time_passes(LEASE_MS),
    }
    let after = world.job(job_id);
    check_winner(&before, after, step, &path);
    assert_eq!(after.notes().cancel_requested_at, asked_at, "{path:?}");
    let (lease_now, wall_now) = (world.lease_now, world.wall_now);
    Node { state: world.state, rows: world.rows, lease_now, wall_now, path, asked_at }
}

/// The one documented winner of each race.
fn check_winner(before: &Job, after: &Job, step: Step, path: &[Step]) {
    if before.state.is_terminal() {
        return assert_eq!(before, after, "a finished job changed: {path:?}");
    }
    if !before.cancel_requested() {
        let ended = after.state == JobState::Cancelled;
        return assert!(!ended || step == Step::Cancel, "cancelled by nobody: {path:?}");
    }
    let held = before.claim.as_ref().map(|claim| claim.claimed_by.worker().to_string());
    let by_holder = |worker: usize| held.as_deref() == Some(WORKERS[worker]);
    let winner = match step {
        Step::Complete(worker) if by_holder(worker) => JobState::Completed,
        Step::Fail(worker) | Step::Release(worker) if by_holder(worker) => JobState::Cancelled,
        Step::Pass => JobState::Cancelled,
        _ => JobState::Claimed,
    };
    assert_eq!(after.state, winner, "{path:?}");
}

#[test]
fn every_interleaving_with_a_cancel_has_the_one_documented_winner() {
    let mut world = World::new();
    let job_id = world.enqueue_job(NewJob { max_attempts: Some(3), ..new_job("q") }).job.job_id;
    let (lease_now, wall_now) = (world.lease_now, world.wall_now);
    let start = Node { state: world.state, rows: world.rows, lease_now, wall_now, path: Vec::new(), asked_at: None };
    let mut seen = BTreeSet::new();
    let mut ends: BTreeMap<(JobState, bool), usize> = BTreeMap::new();
    let mut open = VecDeque::from([start]);
    while let Some(node) = open.pop_front() {
        // Releases are free, so that a job could go round for ever.
        let job = node.state.job(job_id).unwrap();
        if job.attempts > 5 || !seen.insert(key(&node, job)) {
            continue;
        }
        if job.state.is_terminal() {
            *ends.entry((job.state, node.asked_at.is_some())).or_default() += 1;
        }
        open.extend(steps().into_iter().map(|step| take(&node, step, job_id)));
        assert!(seen.len() < 10_000);
    }
    // The search has reached every end that there is, with and without a request to stop.
    let reached: Vec<_> = ends.keys().copied().collect();
    let (completed, dead, cancelled) = (JobState::Completed, JobState::Dead, JobState::Cancelled);
    assert_eq!(reached, [(completed, false), (completed, true), (dead, false), (cancelled, false), (cancelled, true)]);
    assert!(seen.len() > 100, "{} states are too few to have seen all races", seen.len());
}

#[test]
fn asking_again_keeps_the_first_time_and_is_not_recorded() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w");
    let first = world.cancel(job_id).unwrap().notes().cancel_requested_at;
    assert_eq!(first, Some(WallTime(world.wall_now)));
    let records = world.audit.len();
    world.wall_jumps(3_600_000);
    assert_eq!(world.cancel(job_id).unwrap().notes().cancel_requested_at, first);
    assert_eq!(world.audit.len(), records);
    assert!(world.heartbeat(job_id, "w").unwrap().cancel_requested);
    assert_eq!(world.complete(job_id, "w", b"done").unwrap().notes().cancel_requested_at, first);
}

#[test]
fn a_retry_takes_the_request_to_stop_back() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w");
    world.cancel(job_id).unwrap();
    world.fail(job_id, "w", "stopped").unwrap();
    let job = world.retry(job_id).unwrap();
    assert_eq!((job.state, job.cancel_requested()), (JobState::Ready, false));
    world.claim("q", "w");
    assert!(!world.heartbeat(job_id, "w").unwrap().cancel_requested);
}

#[test]
fn a_cancelled_lapse_says_why_and_is_recorded() {
    let mut world = World::new();
    let job_id = world.enqueue("q");
    world.claim("q", "w");
    world.cancel(job_id).unwrap();
    world.time_passes(LEASE_MS);
    let job = world.job(job_id);
    assert_eq!(job.state, JobState::Cancelled);
    assert_eq!(job.notes().reason, "cancelled: the lease of claim 1 ran out");
    let event = &world.audit.last().unwrap().event;
    assert_eq!((event.verb.as_str(), event.details["state"].as_str()), ("expire", "CANCELLED"));
}
