//! The files in `deploy/cluster`, as a running cluster.

// A helper of a test that unwraps fails the test with the right line.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Duration;

use ag_auth::PeerTls;
use ag_deploy::{Cluster, ag, ag_worker, deploy, refused, stdout, until};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Not authenticated, or not permitted.
const NOT_PERMITTED: Option<i32> = Some(6);
const USAGE: Option<i32> = Some(2);

#[test]
fn a_job_runs_through_a_cluster_of_these_files() {
    let mut cluster = Cluster::start();
    let status = json(&mut cluster, "operator", &["cluster", "status", "--json"]);
    let roles: Vec<_> = status["replicas"].as_array().unwrap().iter().map(|replica| replica["role"].clone()).collect();
    assert_eq!(roles, ["VOTER", "VOTER", "VOTER"]);

    let enqueue = ["job", "enqueue", "--queue", "thumbnails", "--payload", "world"];
    let job = json(&mut cluster, "builds", &enqueue);
    let job_id = job["jobId"].as_str().unwrap();
    let mut worker = ag_worker();
    cluster.connect(&mut worker, Some("fleet"), &cluster.addrs());
    worker.args(["--queue", "thumbnails", "--exec", "printf 'hello '; cat", "--exit-when-idle", "1s"]);
    stdout(worker);
    let mut result = cluster.ag(Some("builds"));
    result.args(["job", "get", job_id, "--result"]);
    assert_eq!(stdout(result), "hello world");
    let job = json(&mut cluster, "builds", &["job", "get", job_id]);
    assert_eq!(job["state"], "COMPLETED");

    // The audit log has the principals, as the bearer tokens told.
    let mut audit = cluster.ag(Some("operator"));
    audit.args(["audit", "list", "--json"]);
    let audit: Value = serde_json::from_str(&stdout(audit)).unwrap();
    let records = audit["records"].as_array().unwrap();
    let actor = |verb: &str| records.iter().find(|record| record["verb"] == verb).unwrap()["actor"].clone();
    assert_eq!((actor("enqueue"), actor("complete")), ("builds".into(), "fleet".into()));

    let codes: Vec<_> = cluster.replicas.drain(..).map(|replica| replica.stop()).collect();
    assert_eq!(codes, [Some(0), Some(0), Some(0)]);
}

#[test]
fn callers_without_the_right_credentials_are_refused() {
    let cluster = Cluster::start();
    let enqueue = ["job", "enqueue", "--queue", "q", "--payload", "x"];
    let mut call = cluster.ag(None);
    call.args(enqueue);
    let (code, said) = refused(call);
    assert_eq!(code, NOT_PERMITTED, "{said}");
    assert!(said.contains("UNAUTHENTICATED"), "{said}");

    std::fs::write(cluster.file("stranger.bearer"), "agb_0123456789abcdef0123456789abcdef0123456789abcdef").unwrap();
    let mut call = cluster.ag(Some("stranger"));
    call.args(enqueue);
    let (code, said) = refused(call);
    assert_eq!(code, NOT_PERMITTED, "{said}");
    assert!(said.contains("UNAUTHENTICATED"), "{said}");
    assert!(!said.contains("0123456789abcdef"), "a bearer token was shown: {said}");

    // A worker may not enqueue, a producer may not claim, and neither may touch the cluster.
    let claim: &[&str] = &["job", "claim", "--queue", "q", "--worker", "w"];
    let remove: &[&str] = &["cluster", "remove", "--replica-id", "3"];
    for (principal, args) in [("fleet", &enqueue[..]), ("builds", claim), ("builds", remove), ("fleet", remove)] {
        let mut call = cluster.ag(Some(principal));
        call.args(args);
        let (code, said) = refused(call);
        assert_eq!(code, NOT_PERMITTED, "{principal} {args:?}: {said}");
        assert!(said.contains("PERMISSION_DENIED"), "{principal} {args:?}: {said}");
    }
    let mut queues = cluster.ag(Some("operator"));
    queues.args(["queue", "list", "--json"]);
    let queues: Value = serde_json::from_str(&stdout(queues)).unwrap();
    assert_eq!(queues["queues"].as_array().unwrap().len(), 0, "a refused call has changed something");

    // Without TLS nothing is told about credentials at all.
    let mut plain = ag();
    plain.env("AG_ADDR", format!("http://127.0.0.1:{}", cluster.replicas[0].port));
    plain.args(["--timeout", "1s", "queue", "list"]);
    let (code, said) = refused(plain);
    assert_eq!(code, Some(5), "{said}");
}

#[tokio::test]
async fn the_peer_port_talks_to_replicas_only() {
    let cluster = tokio::task::spawn_blocking(Cluster::start).await.unwrap();
    let port = cluster.replicas[0].peer_port;
    let certs = cluster.file("certs");
    let tls = |cert: &str| {
        let file = |ending: &str| certs.join(format!("{cert}.{ending}"));
        PeerTls::from_files(&certs.join("peer-ca.crt"), &file("crt"), &file("key")).unwrap()
    };
    // The control: what follows fails by its certificate, and by nothing else.
    assert!(speaks_http2(secured(port, &tls("replica-2-peer")).await).await, "another replica");
    // A certificate of the client authority.
    assert!(!speaks_http2(secured(port, &tls("replica-2-server")).await).await, "a client's certificate");
    assert!(!speaks_http2(TcpStream::connect(("127.0.0.1", port)).await).await, "plaintext");

    // Another cluster's authority, of the same name.
    let elsewhere = cluster.file("elsewhere");
    let mut make = ag();
    make.args(["cluster", "certs", "--replica", "replica-2=127.0.0.1", "--out"]).arg(&elsewhere);
    stdout(make);
    let file = |ending: &str| elsewhere.join(format!("replica-2-peer.{ending}"));
    let stranger = PeerTls::from_files(&certs.join("peer-ca.crt"), &file("crt"), &file("key")).unwrap();
    assert!(!speaks_http2(secured(port, &stranger).await).await, "a certificate of another cluster");
}

#[test]
fn a_new_bearer_token_counts_without_a_restart() {
    let cluster = Cluster::start();
    let mut new = ag();
    new.args(["principal", "new", "late", "--role", "producer", "--principals"]).arg(cluster.file("principals.toml"));
    std::fs::write(cluster.file("late.bearer"), stdout(new)).unwrap();
    until("the principals file is read anew", || {
        let mut call = cluster.ag_of(1, Some("late"));
        call.args(["job", "enqueue", "--queue", "q", "--payload", "x"]);
        call.output().unwrap().status.success().then_some(())
    });
}

#[test]
fn beyond_loopback_nothing_is_served_without_credentials() {
    let data = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(deploy().join("cluster/replica-1.toml")).unwrap();
    let without = |keys: &[&str]| {
        let kept = text.lines().filter(|line| !keys.iter().any(|key| line.starts_with(key)));
        let config = data.path().join("ag.toml");
        std::fs::write(&config, kept.collect::<Vec<_>>().join("\n")).unwrap();
        let mut serve = ag();
        serve.arg("serve").arg("--config").arg(&config).env("AG_DATA", data.path().join("data"));
        refused(serve)
    };
    for (keys, words) in [
        (&["principals"][..], "without credentials lets anyone on the network do anything"),
        (&["server_"], "without TLS shows bearer tokens to the network"),
        (&["peer_ca", "peer_cert", "peer_key"], "without mTLS lets anyone on the network rewrite the log"),
    ] {
        let (code, said) = without(keys);
        assert_eq!(code, USAGE, "{keys:?}: {said}");
        assert!(said.contains(words), "{keys:?}: {said}");
        assert!(said.contains("yes, anyone on the network may do anything"), "{keys:?}: {said}");
    }
    assert!(!data.path().join("data").exists(), "a replica that refuses must not touch its data directory");
}

fn json(cluster: &mut Cluster, principal: &str, args: &[&str]) -> Value {
    let mut command = cluster.ag(Some(principal));
    command.args(args);
    serde_json::from_str(&stdout(command)).unwrap()
}

async fn secured(port: u16, tls: &PeerTls) -> std::io::Result<impl AsyncRead + AsyncWrite + Unpin> {
    tls.connect("127.0.0.1", TcpStream::connect(("127.0.0.1", port)).await?).await
}

/// Begins HTTP/2, and looks whether the other side does so too: its first frame is SETTINGS. With TLS 1.3 a dialler
/// learns only here that its certificate was refused.
async fn speaks_http2(stream: std::io::Result<impl AsyncRead + AsyncWrite + Unpin>) -> bool {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    const SETTINGS: u8 = 4;
    let Ok(mut stream) = stream else { return false };
    let mut header = [0; 9];
    let talk = async {
        stream.write_all(PREFACE).await?;
        stream.flush().await?;
        stream.read_exact(&mut header).await
    };
    let talked = tokio::time::timeout(Duration::from_secs(20), talk).await.expect("the peer port hangs");
    talked.is_ok() && header[3] == SETTINGS
}

#[test]
fn every_file_of_the_cluster_is_used_here() {
    let mut names: Vec<_> =
        std::fs::read_dir(deploy().join("cluster")).unwrap().map(|file| name(&file.unwrap().path())).collect();
    names.sort();
    assert_eq!(names, ["principals.example.toml", "replica-1.toml", "replica-2.toml", "replica-3.toml"]);
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}
