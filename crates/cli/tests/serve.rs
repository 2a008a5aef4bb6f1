//! `ag serve`: when it serves, and when it refuses to.

// A helper of a test that unwraps fails the test with the right line.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Dev, Process, ag, free_port, run, until};

const USAGE: Option<i32> = Some(2);
const DAMAGED: Option<i32> = Some(10);
const NEEDS_NEWER_RELEASE: Option<i32> = Some(11);
const ADDRESS: Option<i32> = Some(12);
const DATA_IN_USE: Option<i32> = Some(13);

fn serve(data: &Path) -> Command {
    let mut command = ag();
    command.arg("serve").env("AG_DATA", data).env("AG_LISTEN", "127.0.0.1:0").env("AG_PEER_LISTEN", "127.0.0.1:0");
    command
}

#[test]
fn a_configuration_that_is_not_good_is_refused_by_the_name_of_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("ag.toml");
    let refused = |text: &str, word: &str| {
        std::fs::write(&config, text).unwrap();
        let ran = run(ag().arg("serve").arg("--config").arg(&config));
        assert_eq!(ran.code, USAGE, "{text}: {}", ran.stderr);
        assert!(ran.stderr.contains(word), "{text}: {}", ran.stderr);
    };
    refused("lisen = \"127.0.0.1:1\"", "lisen");
    refused("listen = \"nowhere\"", "listen");
    refused("listen = 7400", "listen");
    refused("threads = \"many\"", "threads");
    refused("data = \"d\"\nfsync = \"sometimes\"", "fsync");
    refused("data = \"d\"\npeer_ca = \"x\"", "peer_ca, peer_cert, peer_key");
    refused("data = \"d\"\nprincipals = \"none.toml\"", "principals");
    refused("", "data");
    let ran = run(ag().arg("serve").env("AG_DATA", folder.path().join("d")).env("AG_THREADS", "x"));
    assert_eq!(ran.code, USAGE);
    assert!(ran.stderr.contains("AG_THREADS"), "{}", ran.stderr);
    assert!(!folder.path().join("d").exists());
}

#[test]
fn a_port_that_is_taken_has_its_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    for key in ["AG_LISTEN", "AG_PEER_LISTEN"] {
        let ran = run(serve(&folder.path().join(key)).env(key, &addr));
        assert_eq!(ran.code, ADDRESS, "{key}: {}", ran.stderr);
        assert!(ran.stderr.contains(&addr), "{key}: {}", ran.stderr);
    }
}

#[test]
fn a_second_process_on_one_data_directory_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let _dev = Dev::on(folder.path());
    let ran = run(&mut serve(folder.path()));
    assert_eq!(ran.code, DATA_IN_USE, "{}", ran.stderr);
    assert!(ran.stderr.contains("in use by another process"), "{}", ran.stderr);
}

#[test]
fn what_was_acknowledged_is_there_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let mut dev = Dev::on(folder.path());
    let job_id = dev.enqueue("q");
    support::signal(dev.process.pid(), "KILL");
    assert_eq!(dev.process.wait(), None);
    let dev = Dev::on(folder.path());
    assert_eq!(dev.json(&["job", "get", &job_id])["payload"], "eA==");
    assert_eq!(dev.enqueue("q"), "j0000000000000002");
}

#[test]
fn a_log_that_lost_acknowledged_entries_is_not_served() {
    let folder = tempfile::tempdir().unwrap();
    let mut dev = Dev::on(folder.path());
    for _ in 0..5 {
        dev.enqueue("q");
    }
    support::signal(dev.process.pid(), "KILL");
    dev.process.wait();
    let log = wal(&folder.path().join("shards/0/log"));
    let bytes = std::fs::read(&log).unwrap();
    std::fs::write(&log, &bytes[..bytes.len() / 2]).unwrap();
    let ran = run(&mut serve(folder.path()));
    assert_eq!(ran.code, DAMAGED, "{}", ran.stderr);
    assert!(ran.stderr.contains("lost acknowledged entries"), "{}", ran.stderr);
}

/// The newest write-ahead log of a table.
fn wal(table: &Path) -> PathBuf {
    let files = std::fs::read_dir(table).unwrap().map(|file| file.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|ending| ending == "log")).max().unwrap()
}

#[test]
fn a_data_directory_of_a_newer_release_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut dev = Dev::on(folder.path());
    assert_eq!(dev.process.stop(), Some(0));
    let format = folder.path().join("FORMAT");
    let text = std::fs::read_to_string(&format).unwrap();
    assert!(text.contains('1'), "{text}");
    std::fs::write(&format, text.replace('1', "2")).unwrap();
    let ran = run(&mut serve(folder.path()));
    assert_eq!(ran.code, NEEDS_NEWER_RELEASE, "{}", ran.stderr);
    assert!(ran.stderr.contains("newer release"), "{}", ran.stderr);
}

#[test]
fn a_replica_in_no_cluster_waits_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let mut process = Process::start(serve(folder.path()).env("AG_LISTEN", format!("127.0.0.1:{port}")));
    until("it listens", || support::connects(port).then_some(()));
    let addr = format!("127.0.0.1:{port}");
    let shown = run(ag().args(["--addr", &addr, "cluster", "status"]));
    assert_eq!((shown.code, shown.stdout.trim()), (Some(0), "this replica is in no cluster yet"), "{}", shown.stderr);
    let call = run(ag().args(["--addr", &addr, "--timeout", "500ms", "queue", "list"]));
    assert_eq!(call.code, Some(5), "{}", call.stderr);
    let made = run(ag().args(["--addr", &addr, "cluster", "init"]));
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let again = run(ag().args(["--addr", &addr, "cluster", "init"]));
    assert_eq!(again.code, Some(4), "a cluster is made once: {}", again.stderr);
    assert_eq!(process.stop(), Some(0));
    assert!(process.stdout().is_empty(), "logs go to stderr: {}", process.stdout());
}

#[test]
fn log_lines_are_json_when_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let mut command = serve(folder.path());
    let mut process =
        Process::start(command.args(["--log-format", "json"]).env("AG_LISTEN", format!("127.0.0.1:{port}")));
    until("it listens", || support::connects(port).then_some(()));
    assert_eq!(process.stop(), Some(0));
    let lines = process.stderr();
    assert!(lines.lines().count() > 1, "{lines}");
    for line in lines.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(value["level"].is_string(), "{line}");
    }
}

#[test]
fn a_supervisor_is_told_when_it_serves() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(support::PATIENCE)).unwrap();
    let port = free_port();
    let mut command = serve(&folder.path().join("data"));
    let mut process = Process::start(command.env("AG_LISTEN", format!("127.0.0.1:{port}")).env("NOTIFY_SOCKET", &path));
    let mut message = [0; 64];
    let length = socket.recv(&mut message).unwrap();
    assert_eq!(&message[..length], b"READY=1");
    assert!(support::connects(port), "it was told too early");
    assert_eq!(process.stop(), Some(0));
}
