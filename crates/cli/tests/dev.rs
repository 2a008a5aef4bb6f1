//! The commands against `ag dev`: what they put out, and their exit codes.

// A helper of a test that unwraps fails the test with the right line.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::Write as _;
use std::process::Stdio;
use std::time::Instant;

use support::{Dev, ag, ag_worker, free_port, run, text};

const FAILED: Option<i32> = Some(1);
const USAGE: Option<i32> = Some(2);
const NOT_FOUND: Option<i32> = Some(3);
const REFUSED: Option<i32> = Some(4);
const UNAVAILABLE: Option<i32> = Some(5);

#[test]
fn a_job_goes_from_its_queue_to_its_result() {
    let dev = Dev::start();
    let enqueue = ["job", "enqueue", "--queue", "q", "--payload", "hello", "--label", "kind=a", "--priority", "-3"];
    let job = dev.json(&enqueue);
    assert_eq!((&job["state"], &job["priority"], &job["labels"]["kind"]), (&"READY".into(), &(-3).into(), &"a".into()));
    let job_id = text(&job["jobId"]);
    let claimed = dev.json(&["job", "claim", "--queue", "q", "--worker", "w", "--lease", "45s"]);
    assert_eq!((text(&claimed["jobId"]), &claimed["state"]), (job_id.clone(), &"CLAIMED".into()));
    assert_eq!(claimed["lease"], "45s");
    let beat = dev.json(&["job", "heartbeat", &job_id, "--worker", "w", "--progress", "half"]);
    assert!(beat["leaseExpiresAt"].is_string(), "{beat}");
    let done = dev.json(&["job", "complete", &job_id, "--worker", "w", "--result", "world"]);
    assert_eq!(done["state"], "COMPLETED");
    assert_eq!(dev.text(&["job", "get", &job_id, "--result"]), "world");

    let listed = dev.json(&["job", "list", "--queue", "q", "--state", "completed", "--label", "kind=a", "--json"]);
    assert_eq!(listed["jobs"][0]["jobId"], job_id.as_str());
    let table = dev.text(&["job", "list"]);
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[0].starts_with("JOB") && lines[1].starts_with(&job_id) && lines.len() == 2, "{table}");
}

#[test]
fn exit_codes_tell_the_kinds_of_refusals_apart() {
    let dev = Dev::start();
    let code = |args: &[&str]| {
        let ran = dev.run(args);
        assert!(ran.stdout.is_empty(), "{args:?}: errors go to stderr, this to stdout: {}", ran.stdout);
        assert!(!ran.stderr.is_empty(), "{args:?}");
        ran.code
    };
    assert_eq!(code(&["job", "claim", "--queue", "q", "--worker", "w"]), NOT_FOUND);
    assert_eq!(code(&["job", "get", "j0000000000000009"]), NOT_FOUND);
    assert_eq!(code(&["job", "get", "nonsense"]), NOT_FOUND);
    assert_eq!(code(&["job", "enqueue"]), USAGE);
    assert_eq!(code(&["job", "enqueue", "--queue", "q", "--delay", "5"]), USAGE);
    assert_eq!(code(&["no-such-command"]), USAGE);
    let job_id = dev.enqueue("q");
    assert_eq!(code(&["job", "complete", &job_id, "--worker", "w"]), REFUSED);
    dev.claim("q", "w");
    assert_eq!(code(&["job", "heartbeat", &job_id, "--worker", "someone-else"]), REFUSED);
    assert_eq!(code(&["job", "retry", &job_id]), REFUSED);

    let ran = dev.run(&["job", "enqueue", "--queue", "no spaces"]);
    assert_eq!(ran.code, USAGE);
    assert!(ran.stderr.contains("queue"), "the field is named: {}", ran.stderr);

    let nobody = format!("127.0.0.1:{}", free_port());
    let ran = run(ag().args(["--addr", &nobody, "--timeout", "300ms", "queue", "list"]));
    assert_eq!(ran.code, UNAVAILABLE, "{}", ran.stderr);
}

/// Field report T06: what the real server refuses, the development server refuses too.
#[test]
fn a_stale_claim_is_refused_by_the_development_server_too() {
    let dev = Dev::start();
    let patience = Instant::now() + std::time::Duration::from_secs(20);
    while dev.json(&["cluster", "status", "--json"])["clusterVersion"] != 2 {
        assert!(Instant::now() < patience, "the cluster version does not rise");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let job_id = dev.enqueue("q");
    let claim = |lease| dev.json(&["job", "claim", "--queue", "q", "--worker", "w", "--wait", "10s", "--lease", lease]);
    let old = claim("100ms")["attempts"].to_string();
    let new = claim("60s")["attempts"].to_string();
    assert_eq!((old.as_str(), new.as_str()), ("1", "2"));
    for (verb, code) in [("heartbeat", NOT_FOUND), ("fail", NOT_FOUND), ("release", NOT_FOUND), ("complete", REFUSED)] {
        let ran = dev.run(&["job", verb, &job_id, "--worker", "w", "--fencing-token", &old]);
        assert_eq!(ran.code, code, "{verb}: {}", ran.stderr);
        assert!(ran.stderr.contains("STALE_FENCING_TOKEN") && ran.stdout.is_empty(), "{verb}: {}", ran.stderr);
    }
    let over = dev.run(&["job", "complete", &job_id, "--worker", "w", "--fencing-token", "4294967296"]);
    assert!(over.code == USAGE && over.stderr.contains("fencing_token"), "{}", over.stderr);
    dev.json(&["queue", "set", "q", "--fencing", "required"]);
    assert!(dev.text(&["queue", "list"]).contains("required"), "{}", dev.text(&["queue", "list"]));
    let without = dev.run(&["job", "complete", &job_id, "--worker", "w"]);
    assert!(without.code == REFUSED && without.stderr.contains("FENCING_TOKEN_REQUIRED"), "{}", without.stderr);
    let done = dev.json(&["job", "complete", &job_id, "--worker", "w", "--fencing-token", &new]);
    assert_eq!((&done["state"], &done["fenced"]), (&"COMPLETED".into(), &true.into()));
    assert_eq!(dev.json(&["job", "get", &job_id])["attempts"], 2);
}

#[test]
fn verbs_change_the_state_of_a_job() {
    let dev = Dev::start();
    let job_id = dev.enqueue("q");
    let state = |args: &[&str]| text(&dev.json(args)["state"]);
    dev.claim("q", "w");
    assert_eq!(state(&["job", "release", &job_id, "--worker", "w"]), "READY");
    dev.claim("q", "w");
    let fail = ["job", "fail", &job_id, "--worker", "w", "--reason", "broken", "--retry-after", "1h"];
    assert_eq!(state(&fail), "SCHEDULED");
    assert_eq!(dev.json(&["job", "get", &job_id])["reason"], "broken");
    assert_eq!(state(&["job", "cancel", &job_id]), "CANCELLED");
    assert_eq!(state(&["job", "retry", &job_id]), "READY");
    dev.claim("q", "w");
    assert_eq!(state(&["job", "fail", &job_id, "--worker", "w", "--permanent"]), "DEAD");
}

#[test]
fn payloads_come_from_files_and_from_standard_input() {
    let dev = Dev::start();
    let bytes: Vec<u8> = (0..=255).collect();
    let mut enqueue = dev.command(ag(), &["job", "enqueue", "--queue", "q", "--payload-file", "-"]);
    let mut child = enqueue.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert!(child.wait().unwrap().success());
    let worker = ["--queue", "q", "--exec", "cat", "--exit-when-idle", "300ms", "--label", "w"];
    let ran = run(&mut dev.command(ag_worker(), &worker));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{}", ran.stderr);
    let result = dev.command(ag(), &["job", "get", "j0000000000000001", "--result"]).output().unwrap().stdout;
    assert_eq!(result, bytes);
    assert_eq!(dev.run(&["job", "enqueue", "--queue", "q", "--payload-file", "/does/not/exist"]).code, FAILED);
    let both = ["job", "enqueue", "--queue", "q", "--payload", "x", "--payload-file", "-"];
    assert_eq!(dev.run(&both).code, USAGE);
}

#[test]
fn a_worker_says_what_is_wrong_with_its_options() {
    let dev = Dev::start();
    let code = |args: &[&str]| run(&mut dev.command(ag_worker(), args)).code;
    assert_eq!(code(&["--exec", "true"]), USAGE);
    assert_eq!(code(&["--queue", "q"]), USAGE);
    assert_eq!(code(&["--queue", "q", "--exec", "true", "--lease", "1ms"]), USAGE);
    assert_eq!(code(&["--queue", "no spaces", "--exec", "true", "--exit-when-idle", "1s"]), USAGE);
}

#[test]
fn the_policy_of_a_queue_is_set_and_shown() {
    let dev = Dev::start();
    dev.enqueue("q");
    let set = dev.json(&["queue", "set", "q", "--paused", "true", "--default-lease", "2m", "--concurrency-limit", "7"]);
    assert_eq!((&set["policy"]["paused"], &set["policy"]["defaultLease"]), (&true.into(), &"120s".into()));
    assert_eq!(dev.json(&["queue", "get", "q"])["policy"]["concurrencyLimit"], 7);
    assert_eq!(dev.run(&["job", "claim", "--queue", "q", "--worker", "w"]).code, NOT_FOUND);
    let set = dev.json(&["queue", "set", "q", "--paused", "false"]);
    assert_eq!(set["policy"]["defaultLease"], "120s", "what is not given stays");
    dev.claim("q", "w");
    assert_eq!(dev.json(&["queue", "list", "--json"])["queues"][0]["counts"]["claimed"], "1");
    assert_eq!(dev.run(&["queue", "get", "other"]).code, NOT_FOUND);
}

#[test]
fn the_audit_chain_is_verified_against_an_earlier_head() {
    let dev = Dev::start();
    let job_id = dev.enqueue("q");
    let head = dev.text(&["audit", "head"]).trim().to_owned();
    dev.claim("q", "w");
    let verified = dev.text(&["audit", "verify", "--head", &head]);
    assert!(verified.starts_with("3 records verified; head 3:"), "{verified}");
    let records = dev.json(&["audit", "list", "--json"])["records"].clone();
    let verbs: Vec<_> = records.as_array().unwrap().iter().map(|record| text(&record["verb"])).collect();
    assert_eq!(verbs, ["init_cluster", "enqueue", "claim"]);
    assert_eq!(records[1]["jobId"], job_id.as_str());
    assert_eq!(dev.json(&["audit", "list", "--after", "2", "--json"])["records"].as_array().unwrap().len(), 1);

    // A head that this chain never had, and one that it has not reached.
    let (sequence, hash) = head.split_once(':').unwrap();
    let other = if hash.starts_with('0') { "1" } else { "0" };
    let forged = format!("{sequence}:{other}{}", &hash[1..]);
    let ran = dev.run(&["audit", "verify", "--head", &forged]);
    assert_eq!(ran.code, FAILED);
    assert!(ran.stderr.contains("beside the earlier head"), "{}", ran.stderr);
    let ran = dev.run(&["audit", "verify", "--head", &format!("99:{hash}")]);
    assert_eq!(ran.code, FAILED);
    assert!(ran.stderr.contains("cut off"), "{}", ran.stderr);
    assert_eq!(dev.run(&["audit", "verify", "--head", "nonsense"]).code, USAGE);
}

#[test]
fn an_attestation_is_got_by_its_digest() {
    let dev = Dev::start();
    let job_id = dev.enqueue("q");
    dev.claim("q", "w");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("attestation");
    std::fs::write(&file, "who did what").unwrap();
    let complete = ["job", "complete", &job_id, "--worker", "w", "--attestation-type", "text/plain"];
    let done = dev.json(&[&complete[..], &["--attestation-file", file.to_str().unwrap()]].concat());
    let digest = text(&done["attestationDigest"]);
    assert_eq!(dev.text(&["attestation", "get", &digest]), "who did what");
    assert_eq!(dev.run(&["attestation", "get", &"0".repeat(64)]).code, NOT_FOUND);
}

#[test]
fn the_cluster_of_one_is_shown() {
    let dev = Dev::start();
    let cluster = dev.json(&["cluster", "status", "--json"]);
    assert_eq!((&cluster["leader"], &cluster["replicas"][0]["role"]), (&"1".into(), &"VOTER".into()));
    let table = dev.text(&["cluster", "status"]);
    assert!(table.contains("leader 1") && table.contains(&format!("127.0.0.1:{}", dev.port)), "{table}");
    assert!(dev.text(&["cluster", "version", "--hold"]).contains("(held)"));
    assert!(!dev.text(&["cluster", "version", "--release-hold"]).contains("(held)"));
    assert_eq!(dev.run(&["cluster", "version", "--raise-to", "9"]).code, REFUSED);
    assert_eq!(dev.run(&["cluster", "remove", "--replica-id", "7"]).code, NOT_FOUND);
}

#[test]
fn load_is_measured() {
    let dev = Dev::start();
    let bench = ["bench", "cycle", "--workers", "2", "--duration", "400ms", "--json"];
    let report = dev.json(&bench);
    assert!(report["cycles"].as_u64().unwrap() > 0, "{report}");
    assert_eq!((&report["workers"], &report["conditions"]["replicas"]), (&2.into(), &1.into()));
    assert!(report["latency"]["claim"]["p99_ms"].as_f64().unwrap() > 0.0, "{report}");
    let completed = dev.json(&["queue", "list", "--json"])["queues"][0]["counts"]["completed"].clone();
    assert!(text(&completed).parse::<u64>().unwrap() >= report["cycles"].as_u64().unwrap());

    let backlog = ["bench", "backlog", "--small", "10", "--large", "2500", "--rounds", "1", "--claims", "20", "--json"];
    let report = dev.json(&backlog);
    assert!(report["p99_small_ms"].as_f64().unwrap() > 0.0 && report["ratio"].as_f64().unwrap() > 0.0, "{report}");
    assert!(report["conditions"]["leader_memory_bytes_with_both"].as_u64().unwrap() > 1_000_000, "{report}");
    let queues = dev.json(&["queue", "list", "--json"]);
    let ready = |queue: &serde_json::Value| text(&queue["counts"]["ready"]);
    let mut ready: Vec<_> = queues["queues"].as_array().unwrap().iter().map(ready).collect();
    ready.sort();
    assert_eq!(ready, ["0", "10", "2500"], "every claimed job was given back");
}

#[test]
fn load_is_measured_on_a_cluster_of_its_own() {
    let temporary = tempfile::tempdir().unwrap();
    let mut bench = ag();
    bench.env("TMPDIR", temporary.path()).env("AG_ADDR", "127.0.0.1:1");
    let ran = run(bench.args(["bench", "--replicas", "2", "--json", "cycle", "--duration", "300ms"]));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&report["conditions"]["replicas"], &report["workers"]), (&2.into(), &16.into()));
    assert!(report["cycles"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "its data is removed");
}

#[test]
fn what_needs_no_cluster_works_without_one() {
    let text = |args: &[&str]| {
        let ran = run(ag().args(args));
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
        ran.stdout
    };
    assert_eq!(text(&["--version"]), format!("ag {}\n", env!("CARGO_PKG_VERSION")));
    assert!(text(&["help"]).contains("Exit codes:"));
    let openapi: serde_json::Value = serde_json::from_str(&text(&["openapi"])).unwrap();
    assert!(openapi["openapi"].as_str().unwrap().starts_with("3.1"), "{openapi}");
    for shell in ["bash", "zsh", "fish"] {
        assert!(text(&["completions", shell]).contains("transfer-leader"), "{shell}");
        let worker = run(ag_worker().args(["--completions", shell]));
        assert!(worker.code == Some(0) && worker.stdout.contains("concurrency"), "{shell}");
    }
}

#[test]
fn a_principal_gets_a_token_that_only_its_owner_has() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("principals.toml");
    let new = |args: &[&str]| run(ag().args(["principal", "new"]).args(args).arg("--principals").arg(&file));
    let ran = new(&["ci/build", "--role", "producer", "--role", "worker"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("name = \"ci/build\"") && text.contains("roles = [\"producer\", \"worker\"]"), "{text}");
    let bearer_token = ran.stdout.trim();
    assert!(bearer_token.len() > 40 && !text.contains(bearer_token), "{text}");
    assert_eq!(new(&["ci/build", "--role", "admin"]).code, USAGE, "a name stands there once");
    assert_eq!(new(&["system", "--role", "admin"]).code, USAGE, "the cluster's own name");
    assert_eq!(new(&["x", "--role", "boss"]).code, USAGE);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text, "a refused call changes nothing");
}

#[test]
fn ag_dev_serves_at_once_and_leaves_nothing_behind() {
    let temporary = tempfile::tempdir().unwrap();
    let port = free_port();
    let started = Instant::now();
    let mut command = ag();
    command.env("TMPDIR", temporary.path()).args(["dev", "--listen", &format!("127.0.0.1:{port}")]);
    let process = support::Process::start(&mut command);
    let mut dev = Dev { process, port };
    support::until("GET /v1/queues", || dev.run(&["--timeout", "1s", "queue", "list"]).code.filter(|code| *code == 0));
    let took = started.elapsed();
    assert!(took.as_secs() < 5, "it took {took:?}");
    let files = || std::fs::read_dir(temporary.path()).unwrap().count();
    assert_eq!(files(), 1);
    assert_eq!(dev.process.stop(), Some(0), "{}", dev.process.stderr());
    assert_eq!(files(), 0);

    let ran = run(ag().args(["dev", "--listen", "0.0.0.0:0"]));
    assert_eq!(ran.code, USAGE);
    assert!(ran.stderr.contains("loopback only"), "{}", ran.stderr);
}
