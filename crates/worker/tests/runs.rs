//! What a command gets, what it gives, and what becomes of the claim.

// A helper of a test that unwraps fails the test with the right line.
#![allow(clippy::unwrap_used)]

mod board;

use std::time::Duration;

use ag_worker::{Event, WorkerConfig};
use board::support::{Fake, until};
use board::{Board, Mood, config, one, pid_in, start, until_dead};

#[tokio::test]
async fn the_payload_becomes_the_result() {
    let (ended, fake) =
        one("hello", "tr a-z A-Z; printf ' %s' $AG_QUEUE $AG_JOB_ID $AG_CLAIM_NUMBER $AG_ATTEMPT").await;
    assert_eq!(ended.name(), "completed");
    let completions = fake.script.of("complete");
    assert_eq!(completions.len(), 1);
    assert_eq!(completions[0].text, "HELLO q j0000000000000001 7 1");
    assert!(!completions[0].request_id.is_empty());
    assert!(completions[0].attestation.is_empty() && completions[0].attestation_type.is_empty());
}

#[tokio::test]
async fn a_command_need_not_read_its_payload() {
    let (ended, _) = one(&"x".repeat(1 << 20), "echo done").await;
    assert_eq!(ended.name(), "completed");
}

#[tokio::test]
async fn another_exit_code_is_a_failure_with_its_reason() {
    let (ended, fake) = one("", "echo unused; echo went wrong >&2; exit 3").await;
    assert_eq!(ended.name(), "failed");
    assert_eq!(fake.script.verbs().iter().filter(|verb| **verb != "claim").collect::<Vec<_>>(), [&"fail"]);
    assert_eq!(fake.script.of("fail")[0].text, "the command exited with 3; standard error ends with:\nwent wrong");
}

#[tokio::test]
async fn death_by_a_signal_is_a_failure() {
    let (ended, fake) = one("", "kill -SEGV $$").await;
    assert_eq!(ended.name(), "failed");
    assert_eq!(fake.script.of("fail")[0].text, "the command was killed by signal 11");
}

#[tokio::test]
async fn exit_75_gives_the_claim_back_and_pauses() {
    let fake = Fake::start(Board::with(&["a", "b"]));
    let working = start(config(&fake.addr.to_string(), "exit 75"));
    working.until("released").await;
    until("the second claim", || (fake.script.of("release").len() == 2).then_some(())).await;
    let report = working.stop().await;
    assert_eq!((report.released, report.failed, report.completed), (2, 0, 0));
    let releases = fake.script.of("release");
    assert!(releases[1].at - releases[0].at >= Duration::from_millis(250), "no pause");
}

#[tokio::test]
async fn a_result_beyond_its_bound_is_a_failure_that_names_it_and_ends_the_command() {
    // Without the kill, the command would never end.
    let (ended, fake) = one("", "head -c 1048577 /dev/zero; exec sleep 1000").await;
    assert_eq!(ended.name(), "failed");
    assert_eq!(fake.script.of("fail")[0].text, "the command's result is larger than 1048576 bytes");
    let (ended, fake) = one("", "head -c 1048576 /dev/zero").await;
    assert_eq!((ended.name(), fake.script.of("complete")[0].text.len()), ("completed", 1 << 20));
}

#[tokio::test]
async fn what_a_command_leaves_behind_is_killed_when_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let pid_file = dir.path().join("pid");
    let (ended, fake) = one("", &format!("sleep 1000 & echo $! >{}; echo ok", pid_file.display())).await;
    assert_eq!(ended.name(), "completed");
    assert_eq!(fake.script.of("complete")[0].text, "ok\n");
    until_dead(pid_in(&pid_file).await).await;
}

#[tokio::test]
async fn an_attestation_is_stored_when_it_is_asked_for() {
    let fake = Fake::start(Board::with(&["in"]));
    let working = start(WorkerConfig { attest: true, ..config(&fake.addr.to_string(), "cat") });
    working.until("completed").await;
    working.stop().await;
    let completion = &fake.script.of("complete")[0];
    assert_eq!(completion.attestation_type, ag_worker::ATTESTATION_TYPE);
    let envelope: serde_json::Value = serde_json::from_slice(&completion.attestation).unwrap();
    assert_eq!(envelope["payloadType"], "application/vnd.in-toto+json");
}

#[tokio::test]
async fn progress_goes_along_with_the_heartbeats() {
    let dir = tempfile::tempdir().unwrap();
    let go_on = dir.path().join("go-on");
    let command = format!("echo half >$AG_PROGRESS_FILE; until [ -e {} ]; do sleep 0.02; done", go_on.display());
    let fake = Fake::start(Board::with(&[""]));
    let working = start(config(&fake.addr.to_string(), &command));
    let has = |text: &str| fake.script.of("heartbeat").iter().filter(|seen| seen.text == text).count();
    until("progress", || (has("half\n") == 1 && has("") >= 1).then_some(())).await;
    std::fs::write(&go_on, "").unwrap();
    working.until("completed").await;
    working.stop().await;
    assert_eq!(has("half\n"), 1, "what the service has is not sent again");
}

#[tokio::test]
async fn as_many_jobs_run_at_once_as_are_allowed_and_one_call_claims_them() {
    let dir = tempfile::tempdir().unwrap();
    let running = dir.path().join("running");
    std::fs::create_dir(&running).unwrap();
    let go_on = dir.path().join("go-on");
    let command = format!(
        "touch {0}/$AG_JOB_ID; until [ -e {1} ]; do sleep 0.02; done; ls {0} | wc -l; rm {0}/$AG_JOB_ID",
        running.display(),
        go_on.display()
    );
    let fake = Fake::start(Board::with(&["a", "b", "c", "d", "e"]));
    let working = start(WorkerConfig { concurrency: 3, ..config(&fake.addr.to_string(), &command) });
    let count = || std::fs::read_dir(&running).unwrap().count();
    until("three commands", || (count() == 3).then_some(())).await;
    until("heartbeats of all three", || (fake.script.of("heartbeat").len() >= 6).then_some(())).await;
    assert_eq!(count(), 3);
    assert_eq!(fake.script.of("claim").iter().map(|seen| seen.max_jobs).collect::<Vec<_>>(), [3]);
    std::fs::write(&go_on, "").unwrap();
    until("five completions", || (fake.script.of("complete").len() == 5).then_some(())).await;
    assert_eq!(working.stop().await.completed, 5);
}

#[tokio::test]
async fn after_a_long_wait_the_lease_is_renewed_before_anything_runs() {
    let fake = Fake::start(Board::with(&["a"]));
    fake.script.hold_claims_for(Duration::from_millis(900));
    let working = start(config(&fake.addr.to_string(), "true"));
    let (_, started_at) = working.until("started").await;
    assert!(fake.script.of("heartbeat").first().is_some_and(|beat| beat.at <= started_at));
    working.until("completed").await;
    working.stop().await;
}

#[tokio::test]
async fn a_claim_that_is_gone_before_it_runs_does_not_run() {
    let fake = Fake::start(Board::with(&["a"]));
    fake.script.hold_claims_for(Duration::from_millis(900));
    fake.script.heartbeats(Mood::Refuse);
    let working = start(config(&fake.addr.to_string(), "true"));
    working.until("lost").await;
    assert!(working.find("started").is_none());
    assert_eq!(working.stop().await.lost, 1);
    assert!(fake.script.verbs().iter().all(|verb| *verb == "claim"));
}

#[tokio::test]
async fn a_cancelled_job_is_told_to_stop_then_killed_and_reported() {
    for (command, least) in [
        ("exec sleep 1000", Duration::ZERO),
        ("trap '' TERM; while :; do sleep 0.05; done", Duration::from_millis(300)),
    ] {
        let fake = Fake::start(Board::with(&["a"]));
        let working = start(config(&fake.addr.to_string(), command));
        working.until("started").await;
        fake.script.cancel();
        let (event, at) = working.until("failed").await;
        assert_eq!(event.reason(), "stopped, because it was cancelled");
        let told = fake.script.of("heartbeat").last().map(|beat| beat.at).unwrap();
        assert!(at - told >= least, "{command}: {:?}", at - told);
        working.stop().await;
    }
}

/// Field report T23: the lease tells of a crash, this of work that does not end. Heartbeats go on, and the claim ends.
#[tokio::test]
async fn a_command_that_runs_too_long_is_stopped_and_reported_although_its_lease_is_kept() {
    let fake = Fake::start(Board::with(&["a"]));
    let max_runtime = Some(Duration::from_millis(2_500));
    let working = start(WorkerConfig { max_runtime, ..config(&fake.addr.to_string(), "exec sleep 1000") });
    let (_, started) = working.until("started").await;
    let (event, at) = working.until("failed").await;
    assert_eq!(event.reason(), "stopped, because it ran for longer than 2500 ms");
    assert!(at - started >= Duration::from_millis(2_500), "{:?}", at - started);
    // Longer than the lease of 2 s: it was kept.
    assert!(fake.script.of("heartbeat").len() >= 3, "{}", fake.script.of("heartbeat").len());
    assert_eq!(fake.script.of("fail").len(), 1);
    working.stop().await;
}

#[tokio::test]
async fn a_worker_that_is_told_to_stop_lets_its_command_end() {
    let dir = tempfile::tempdir().unwrap();
    let go_on = dir.path().join("go-on");
    let fake = Fake::start(Board::with(&["a", "b"]));
    let command = format!("until [ -e {} ]; do sleep 0.02; done", go_on.display());
    let mut working = start(config(&fake.addr.to_string(), &command));
    working.until("started").await;
    working.tell_to_stop();
    let beats = fake.script.of("heartbeat").len();
    until("heartbeats go on", || (fake.script.of("heartbeat").len() > beats + 1).then_some(())).await;
    std::fs::write(&go_on, "").unwrap();
    let report = working.stop().await;
    assert_eq!((report.claimed, report.completed, report.released), (1, 1, 0));
}

#[tokio::test]
async fn a_command_that_outlasts_the_drain_is_killed_and_its_job_given_back() {
    let fake = Fake::start(Board::with(&["a"]));
    let slow = "trap '' TERM; while :; do sleep 0.05; done";
    let drain_grace = Duration::from_millis(200);
    let mut working = start(WorkerConfig { drain_grace, ..config(&fake.addr.to_string(), slow) });
    let (event, _) = working.until("started").await;
    let Event::Started { process_group, .. } = event else { unreachable!("by its name") };
    working.tell_to_stop();
    let report = working.stop().await;
    assert_eq!((report.released, report.failed, report.lost), (1, 0, 0));
    until_dead(process_group as u32).await;
    assert_eq!(fake.script.verbs(), ["claim", "release"]);
}

#[tokio::test]
async fn an_idle_worker_stops_at_once_and_gives_back_what_its_last_call_may_have_got() {
    let fake = Fake::start(Board::default());
    let wait = Duration::from_secs(60);
    let mut working = start(WorkerConfig { wait, ..config(&fake.addr.to_string(), "true") });
    until("a waiting claim", || (!fake.script.of("claim").is_empty()).then_some(())).await;
    working.tell_to_stop();
    // The answer to the first call is lost; the job is there by the time of the second.
    fake.script.add("late");
    let report = working.stop().await;
    let claims = fake.script.of("claim");
    assert_eq!(claims.last().map(|last| (&last.request_id, last.waits)), Some((&claims[0].request_id, false)));
    assert_eq!(report.claimed, report.released);
    assert_eq!(fake.script.of("release").len() as u64, report.released);
}

#[tokio::test]
async fn a_worker_may_stop_by_itself_when_there_is_nothing_to_do() {
    let fake = Fake::start(Board::with(&["a", "b"]));
    let exit_when_idle = Some(Duration::from_millis(300));
    let config = WorkerConfig { exit_when_idle, ..config(&fake.addr.to_string(), "true") };
    let run = ag_worker::run(config, std::future::pending());
    let report = tokio::time::timeout(Duration::from_secs(30), run).await.expect("it ends").unwrap();
    assert_eq!(report.completed, 2);
}
