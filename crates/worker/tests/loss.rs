//! Lost claims: the command is dead before the lease can be over, and nothing is reported.

// A helper of a test that unwraps fails the test with the right line.
#![allow(clippy::unwrap_used)]

mod board;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ag_worker::{Event, WorkerConfig};
use board::support::{Fake, until};
use board::{Board, CLAIM_NUMBER, Mood, config, pid_in, runs, start, until_dead};

const LEASE: Duration = Duration::from_secs(2);

/// A command whose child outlives it unless the whole group is killed; it writes both process ids.
fn stubborn(dir: &Path) -> String {
    let (shell, child) = (dir.join("shell"), dir.join("child"));
    format!(
        "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ >{1}; while :; do sleep 0.05; done' & echo $$ >{0}; wait; wait",
        shell.display(),
        child.display()
    )
}

#[tokio::test]
async fn when_no_heartbeat_gets_through_the_whole_group_dies_before_the_lease_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(Board::with(&["a"]));
    fake.script.heartbeats(Mood::Hang);
    let working = start(config(&fake.addr.to_string(), &stubborn(dir.path())));
    let (shell, child) = (pid_in(&dir.path().join("shell")).await, pid_in(&dir.path().join("child")).await);
    let claimed_at = fake.script.of("claim")[0].at;
    let (shell_dead, child_dead) = (until_dead(shell).await, until_dead(child).await);
    for dead in [shell_dead, child_dead] {
        assert!(dead < claimed_at + LEASE, "{:?} after the claim was asked for", dead - claimed_at);
        assert!(dead > claimed_at + LEASE / 2, "far too early: {:?}", dead - claimed_at);
    }
    let (lost, _) = working.until("lost").await;
    assert_eq!(lost.reason(), "its lease could not be extended in time");
    working.stop().await;
    assert!(fake.script.verbs().iter().all(|verb| *verb == "claim"), "{:?}", fake.script.verbs());
}

#[tokio::test]
async fn when_the_service_is_gone_the_group_dies_before_the_lease_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(Board::with(&["a"]));
    let working = start(config(&fake.addr.to_string(), &stubborn(dir.path())));
    let child = pid_in(&dir.path().join("child")).await;
    // Let it be extended at least once, so that it is the extended lease that is kept.
    let beat_at = until("a heartbeat", || fake.script.of("heartbeat").first().map(|beat| beat.at)).await;
    until("its answer", || (beat_at.elapsed() > Duration::from_millis(100)).then_some(())).await;
    let last_beat = fake.script.of("heartbeat").last().unwrap().at;
    let (_, script) = fake.kill();
    let dead = until_dead(child).await;
    assert!(dead < last_beat + LEASE, "{:?} after the last heartbeat", dead - last_beat);
    working.until("lost").await;
    assert!(!script.verbs().contains(&"fail"));
    drop(working);
}

#[tokio::test]
async fn a_replica_that_dies_and_comes_back_within_the_lease_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let go_on = dir.path().join("go-on");
    let fake = Fake::start(Board::with(&["a"]));
    let command = format!("until [ -e {} ]; do sleep 0.02; done; echo done", go_on.display());
    let working = start(config(&fake.addr.to_string(), &command));
    working.until("started").await;
    until("a heartbeat", || (!fake.script.of("heartbeat").is_empty()).then_some(())).await;
    let (addr, script) = fake.kill();
    let before = script.of("heartbeat").len();
    let again = Fake::start_at(addr, script);
    until("heartbeats go on", || (again.script.of("heartbeat").len() > before + 1).then_some(())).await;
    std::fs::write(&go_on, "").unwrap();
    working.until("completed").await;
    let report = working.stop().await;
    assert_eq!((report.completed, report.lost), (1, 0));
    assert_eq!(again.script.of("complete").len(), 1);
}

#[tokio::test]
async fn a_refused_heartbeat_kills_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(Board::with(&["a"]));
    let working = start(config(&fake.addr.to_string(), &stubborn(dir.path())));
    let child = pid_in(&dir.path().join("child")).await;
    fake.script.heartbeats(Mood::Refuse);
    let refused_at = until("a heartbeat", || fake.script.of("heartbeat").last().map(|beat| beat.at)).await;
    let dead = until_dead(child).await;
    assert!(dead < refused_at + LEASE / 2);
    let (lost, _) = working.until("lost").await;
    assert_eq!(lost.reason(), "its heartbeat was refused: CLAIM_LOST");
    working.stop().await;
    assert!(!fake.script.verbs().contains(&"fail"));
}

/// Field report T10. A refusal by the fence ends the whole process group at once, and is no failure of the job.
#[tokio::test]
async fn a_heartbeat_that_is_fenced_off_kills_at_once_and_reports_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(Board::with(&["a"]));
    let working = start(config(&fake.addr.to_string(), &stubborn(dir.path())));
    let child = pid_in(&dir.path().join("child")).await;
    fake.script.heartbeats(Mood::Fence);
    let refused_at = until("a heartbeat", || fake.script.of("heartbeat").last().map(|beat| beat.at)).await;
    let dead = until_dead(child).await;
    assert!(dead < refused_at + LEASE / 2);
    let (lost, _) = working.until("lost").await;
    assert_eq!(lost.reason(), "its heartbeat was refused: STALE_FENCING_TOKEN");
    let report = working.stop().await;
    assert_eq!((report.lost, report.failed), (1, 0));
    assert!(fake.script.verbs().iter().all(|verb| *verb == "claim"), "{:?}", fake.script.verbs());
}

#[tokio::test]
async fn a_completion_that_is_fenced_off_is_a_lost_claim_and_no_failure() {
    let fake = Fake::start(Board::with(&["a"]));
    fake.script.completions(Mood::Fence);
    let working = start(config(&fake.addr.to_string(), "true"));
    let (lost, _) = working.until("lost").await;
    assert!(lost.reason().contains("STALE_FENCING_TOKEN"), "{}", lost.reason());
    working.stop().await;
    assert!(!fake.script.verbs().contains(&"fail"));
    assert_eq!(fake.script.of("complete").len(), 1);
}

/// Whatever becomes of a claim, each call on it carries its number.
#[tokio::test]
async fn every_call_carries_the_number_of_the_claim() {
    for (command, verb) in [("sleep 1", "complete"), ("sleep 1; exit 1", "fail"), ("sleep 1; exit 75", "release")] {
        let fake = Fake::start(Board::with(&["a"]));
        let working = start(config(&fake.addr.to_string(), command));
        until("the end is reported", || (!fake.script.of(verb).is_empty()).then_some(())).await;
        working.stop().await;
        let calls: Vec<_> = fake.script.seen().into_iter().filter(|seen| seen.verb != "claim").collect();
        assert!(calls.iter().any(|seen| seen.verb == "heartbeat"), "{calls:?}");
        assert!(calls.iter().all(|seen| seen.fencing_token == u64::from(CLAIM_NUMBER)), "{calls:?}");
    }
}

#[tokio::test]
async fn a_refused_completion_is_a_lost_claim_and_no_failure() {
    let fake = Fake::start(Board::with(&["a"]));
    fake.script.completions(Mood::Refuse);
    let working = start(config(&fake.addr.to_string(), "true"));
    working.until("lost").await;
    working.stop().await;
    assert!(!fake.script.verbs().contains(&"fail"));
    assert_eq!(fake.script.of("complete").len(), 1);
}

#[tokio::test]
async fn a_completion_without_an_answer_is_repeated_with_one_request_id() {
    let fake = Fake::start(Board::with(&["a"]));
    fake.script.completions(Mood::Hang);
    let working = start(config(&fake.addr.to_string(), "true"));
    until("a completion", || (!fake.script.of("complete").is_empty()).then_some(())).await;
    let (addr, script) = fake.kill();
    script.completions(Mood::Serve);
    let again = Fake::start_at(addr, script);
    working.until("completed").await;
    working.stop().await;
    let completions = again.script.of("complete");
    assert!(completions.len() >= 2);
    assert!(completions.iter().all(|seen| seen.request_id == completions[0].request_id));
}

const WORKER_ADDR: &str = "AG_TEST_WORKER_ADDR";
const WORKER_COMMAND: &str = "AG_TEST_WORKER_COMMAND";

/// Not a test of its own: the process that the tests below stop and kill.
#[tokio::test]
async fn worker_process() {
    let (Ok(addr), Ok(command)) = (std::env::var(WORKER_ADDR), std::env::var(WORKER_COMMAND)) else { return };
    ag_worker::run(config(&addr, &command), std::future::pending()).await.unwrap();
}

/// A worker in a process of its own, killed with this value.
struct Process(Child);

impl Process {
    fn start(addr: &str, command: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap());
        process.args(["--exact", "worker_process", "--nocapture"]).stdout(Stdio::null()).stderr(Stdio::null());
        process.env(WORKER_ADDR, addr).env(WORKER_COMMAND, command).env("AG_BEARER_TOKEN", "opensesame");
        Self(process.spawn().unwrap())
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.0.id())]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test]
async fn a_killed_worker_leaves_no_command_running() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(Board::with(&["a"]));
    let process = Process::start(&fake.addr.to_string(), &stubborn(dir.path()));
    let (shell, child) = (pid_in(&dir.path().join("shell")).await, pid_in(&dir.path().join("child")).await);
    assert!(runs(shell) && runs(child));
    drop(process);
    until_dead(shell).await;
    until_dead(child).await;
}

#[tokio::test]
async fn a_worker_that_was_stopped_past_its_lease_kills_first_and_reports_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let done = dir.path().join("done");
    let pid = dir.path().join("pid");
    let fake = Fake::start(Board::with(&["a", "b"]));
    // The first command ends while the worker is stopped, so that its completion is the very next thing to be done.
    let command = format!(
        "case $(cat) in a) echo $$ >{}; sleep 0.5; echo >{};; b) exec sleep 1000;; esac",
        pid.display(),
        done.display()
    );
    let process = Process::start(&fake.addr.to_string(), &command);
    pid_in(&pid).await;
    process.signal("STOP");
    let stopped_at = Instant::now();
    until("the command's end and the lease's", || (done.exists() && stopped_at.elapsed() > LEASE).then_some(())).await;
    process.signal("CONT");
    // It goes on with the next job, so it is well; the first one was never reported.
    until("the next claim", || (fake.script.of("claim").len() >= 2).then_some(())).await;
    assert!(fake.script.verbs().iter().all(|verb| *verb == "claim"), "{:?}", fake.script.verbs());
}

#[tokio::test]
async fn a_running_command_dies_as_soon_as_its_worker_wakes_up_too_late() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(Board::with(&["a"]));
    let process = Process::start(&fake.addr.to_string(), &stubborn(dir.path()));
    let child = pid_in(&dir.path().join("child")).await;
    process.signal("STOP");
    let stopped_at = Instant::now();
    until("the lease's end", || (stopped_at.elapsed() > LEASE).then_some(())).await;
    let heartbeats = fake.script.of("heartbeat").len();
    process.signal("CONT");
    let woken_at = Instant::now();
    let dead = until_dead(child).await;
    assert!(dead - woken_at < Duration::from_secs(1), "{:?}", dead - woken_at);
    // A heartbeat that was under way when the worker was stopped may still arrive; none is sent for a dead claim.
    assert!(fake.script.of("heartbeat").len() <= heartbeats + 1);
    assert!(fake.script.verbs().iter().all(|verb| *verb == "claim"));
}

#[tokio::test]
async fn the_workers_own_credentials_are_not_passed_on() {
    let fake = Fake::start(Board::with(&["a"]));
    let _process = Process::start(&fake.addr.to_string(), "echo ${AG_BEARER_TOKEN-none}");
    let completion = until("a completion", || fake.script.of("complete").first().cloned()).await;
    assert_eq!(completion.text, "none\n");
}

#[tokio::test]
async fn dropping_a_running_worker_kills_its_commands() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(Board::with(&["a"]));
    let config: WorkerConfig = config(&fake.addr.to_string(), &stubborn(dir.path()));
    let task = tokio::spawn(ag_worker::run(config, std::future::pending()));
    let child = pid_in(&dir.path().join("child")).await;
    task.abort();
    until_dead(child).await;
}

#[test]
fn events_have_names_and_reasons() {
    let claim = ag_worker::ClaimRef { job_id: "j1".into(), queue: "q".into(), claim_number: 2 };
    let lost = Event::Lost { claim: claim.clone(), reason: "gone".into() };
    assert_eq!((lost.name(), lost.reason(), lost.claim()), ("lost", "gone", &claim));
}
