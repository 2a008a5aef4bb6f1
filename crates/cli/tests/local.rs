//! `ag local`: a cluster of processes.

// A helper of a test that unwraps fails the test with the right line.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;

use serde_json::Value;
use support::{Process, ag, free_ports, is_alive, run, signal, until};

struct Local {
    process: Process,
    base_port: u16,
}

impl Local {
    fn start(data: &Path, more: &[&str]) -> Self {
        let base_port = free_ports(3);
        let mut command = ag();
        command.args(["local", "--replicas", "3", "--json", "--base-port", &base_port.to_string(), "--data"]).arg(data);
        let mut local = Self { process: Process::start(command.args(more)), base_port };
        until("the cluster is ready", || {
            assert_eq!(local.process.ended(), None, "{}", local.process.stderr());
            local.lines().iter().any(|line| line["ready"] == true).then_some(())
        });
        local
    }

    fn lines(&self) -> Vec<Value> {
        self.process.stdout().lines().map_while(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The process of a replica, as of its latest start.
    fn pid(&self, number: u64) -> u64 {
        let lines = self.lines();
        lines.iter().rev().find(|line| line["replica"] == number).unwrap()["pid"].as_u64().unwrap()
    }

    fn addrs(&self) -> String {
        let addrs: Vec<_> = (0..3).map(|n| format!("127.0.0.1:{}", self.base_port + n)).collect();
        addrs.join(",")
    }

    fn json(&self, args: &[&str]) -> Value {
        let ran = run(ag().args(["--addr", &self.addrs()]).args(args));
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
        serde_json::from_str(&ran.stdout).unwrap()
    }
}

#[test]
fn a_cluster_is_made_once_and_used_again() {
    let data = tempfile::tempdir().unwrap();
    let mut local = Local::start(data.path(), &[]);
    let lines = local.lines();
    let shown: Vec<_> = lines.iter().take(3).map(|line| (line["replica"].clone(), line["addr"].clone())).collect();
    let expected = |n: u16| (Value::from(n), Value::from(format!("127.0.0.1:{}", local.base_port + n - 1)));
    assert_eq!(shown, [expected(1), expected(2), expected(3)]);
    assert_eq!(lines[3..], [serde_json::json!({ "ready": true })]);
    let pids: Vec<_> = (1..=3).map(|n| local.pid(n)).collect();
    assert!(pids.iter().all(|pid| is_alive(*pid)), "{pids:?}");

    let cluster = local.json(&["cluster", "status", "--json"]);
    assert_eq!(cluster["replicas"].as_array().unwrap().len(), 3);
    local.json(&["job", "enqueue", "--queue", "q", "--payload", "x"]);
    assert_eq!(local.process.stop(), Some(0), "{}", local.process.stderr());
    assert!(!pids.iter().any(|pid| is_alive(*pid)), "{pids:?}");

    let local = Local::start(data.path(), &[]);
    let again = local.json(&["cluster", "status", "--json"]);
    assert_eq!(again["clusterId"], cluster["clusterId"]);
    assert_eq!(local.json(&["queue", "get", "q"])["counts"]["ready"], "1");
}

#[test]
fn a_replica_that_died_is_told_of_and_started_again() {
    let data = tempfile::tempdir().unwrap();
    let local = Local::start(data.path(), &["--restart"]);
    let before = local.pid(2);
    signal(u32::try_from(before).unwrap(), "KILL");
    // The other two serve meanwhile.
    local.json(&["job", "enqueue", "--queue", "q", "--payload", "x"]);
    let after = until("the replica is started again", || Some(local.pid(2)).filter(|pid| *pid != before));
    assert!(is_alive(after));
    assert!(local.process.stderr().contains("replica 2 ended"), "{}", local.process.stderr());
    assert_eq!(local.lines().len(), 5, "one line more: {}", local.process.stdout());
    until("it has caught up", || {
        let cluster = local.json(&["cluster", "status", "--json"]);
        let hashes: Vec<_> = cluster["replicas"].as_array()?.iter().map(|one| one["stateHash"].clone()).collect();
        (hashes.len() == 3 && hashes[0] != "" && hashes.iter().all(|hash| *hash == hashes[0])).then_some(())
    });
}

#[test]
fn replicas_do_not_outlive_their_parent() {
    let data = tempfile::tempdir().unwrap();
    let mut local = Local::start(data.path(), &[]);
    let pids: Vec<_> = (1..=3).map(|n| local.pid(n)).collect();
    signal(local.process.pid(), "KILL");
    assert_eq!(local.process.wait(), None);
    until("the replicas end", || (!pids.iter().any(|pid| is_alive(*pid))).then_some(()));
}

#[test]
fn a_port_that_is_taken_ends_it_with_the_replicas_exit_code() {
    let data = tempfile::tempdir().unwrap();
    let base_port = free_ports(3);
    let _taken = std::net::TcpListener::bind(("127.0.0.1", base_port + 1)).unwrap();
    let mut command = ag();
    command.args(["local", "--replicas", "3", "--base-port", &base_port.to_string(), "--data"]).arg(data.path());
    let ran = run(&mut command);
    assert_eq!(ran.code, Some(12), "{}", ran.stderr);
    assert!(ran.stderr.contains(&format!("127.0.0.1:{}", base_port + 1)), "{}", ran.stderr);
}
