//! The certificates that `certs::make` writes, used for real handshakes over loopback.

// A helper of a test that unwraps fails the test with the right line.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use ag_auth::certs::{self, CertsError, ReplicaCerts};
use ag_auth::{PeerTls, ServerTls, TlsError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);

fn replica(name: &str, hosts: &[&str]) -> ReplicaCerts {
    ReplicaCerts { name: name.into(), hosts: hosts.iter().map(|host| (*host).into()).collect() }
}

fn make(dir: &Path, replicas: &[ReplicaCerts]) {
    certs::make(dir, replicas, certs::VALID_DEFAULT).unwrap();
}

fn peer(dir: &Path, name: &str) -> PeerTls {
    let file = |ending: &str| dir.join(format!("{name}-peer.{ending}"));
    PeerTls::from_files(&dir.join("peer-ca.crt"), &file("crt"), &file("key")).unwrap()
}

/// A handshake of `dialler` with `listener` under `host`, and one byte each way. The byte matters: with TLS 1.3 a
/// dialler learns that its certificate was refused only when it reads.
async fn talk(listener: PeerTls, dialler: PeerTls, host: &str) -> std::io::Result<()> {
    let tcp = TcpListener::bind("127.0.0.1:0").await?;
    let addr = tcp.local_addr()?;
    let serve = tokio::spawn(async move {
        let (stream, _) = tcp.accept().await?;
        let mut stream = listener.acceptor().accept(stream).await?;
        let byte = stream.read_u8().await?;
        stream.write_u8(byte + 1).await?;
        stream.shutdown().await
    });
    let dial = async {
        let mut stream = dialler.connect(host, TcpStream::connect(addr).await?).await?;
        stream.write_u8(1).await?;
        stream.read_u8().await
    };
    let answer = timeout(PATIENCE, dial).await.expect("the handshake hangs");
    let served = timeout(PATIENCE, serve).await.expect("the handshake hangs").expect("the listener does not panic");
    assert_eq!(answer?, 2);
    served
}

#[tokio::test]
async fn replicas_talk_and_the_name_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), &[replica("r1", &["127.0.0.1", "r1.example"]), replica("r2", &["127.0.0.1", "::1"])]);
    let (one, two) = (peer(dir.path(), "r1"), peer(dir.path(), "r2"));
    talk(one.clone(), two.clone(), "127.0.0.1").await.unwrap();
    talk(two.clone(), one.clone(), "127.0.0.1").await.unwrap();
    talk(two.clone(), one.clone(), "[::1]").await.unwrap();
    talk(one.clone(), two.clone(), "r1.example").await.unwrap();
    assert!(talk(two.clone(), one.clone(), "r1.example").await.is_err(), "r2's certificate does not bear r1's name");
    assert!(talk(one, two, "10.0.0.1").await.is_err());
}

#[tokio::test]
async fn a_certificate_of_the_client_port_fails_on_the_peer_port() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), &[replica("r1", &["127.0.0.1"]), replica("r2", &["127.0.0.1"])]);
    let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
    let stranger = PeerTls::new(&read("peer-ca.crt"), &read("r2-server.crt"), &read("r2-server.key")).unwrap();
    assert!(talk(peer(dir.path(), "r1"), stranger.clone(), "127.0.0.1").await.is_err());
    assert!(talk(stranger, peer(dir.path(), "r1"), "127.0.0.1").await.is_err());
}

#[tokio::test]
async fn a_certificate_of_another_cluster_fails() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    make(here.path(), &[replica("r1", &["127.0.0.1"])]);
    make(there.path(), &[replica("r1", &["127.0.0.1"])]);
    assert!(talk(peer(here.path(), "r1"), peer(there.path(), "r1"), "127.0.0.1").await.is_err());
}

#[test]
fn files_are_private_and_never_overwritten_and_replicas_can_be_added() {
    let dir = tempfile::tempdir().unwrap();
    let written = certs::make(dir.path(), &[replica("r1", &["127.0.0.1"])], certs::VALID_DEFAULT).unwrap();
    assert_eq!(written.len(), 8);
    for path in &written {
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
    }
    let before: Vec<_> = written.iter().map(|path| std::fs::read(path).unwrap()).collect();

    let error =
        certs::make(dir.path(), &[replica("r2", &["a"]), replica("r1", &["b"])], certs::VALID_DEFAULT).unwrap_err();
    assert!(matches!(error, CertsError::Exists { .. }), "{error}");
    assert!(!dir.path().join("r2-peer.crt").exists(), "nothing half-made is left behind");

    let added = certs::make(dir.path(), &[replica("r2", &["127.0.0.1"])], certs::VALID_DEFAULT).unwrap();
    assert_eq!(added.len(), 4, "the authorities stay");
    let after: Vec<_> = written.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert_eq!(before, after);

    std::fs::remove_file(dir.path().join("peer-ca.key")).unwrap();
    let error = certs::make(dir.path(), &[replica("r3", &["a"])], certs::VALID_DEFAULT).unwrap_err();
    assert!(matches!(error, CertsError::HalfAuthority { .. }), "{error}");
}

#[tokio::test]
async fn a_replica_that_was_added_later_talks_to_the_first() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), &[replica("r1", &["127.0.0.1"])]);
    make(dir.path(), &[replica("r2", &["127.0.0.1"])]);
    talk(peer(dir.path(), "r1"), peer(dir.path(), "r2"), "127.0.0.1").await.unwrap();
}

#[test]
fn bad_requests_for_certificates_name_the_field_and_write_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let day = Duration::from_secs(86_400);
    let cases = [
        (vec![replica("", &["a"])], day, "replicas[0].name"),
        (vec![replica("../x", &["a"])], day, "replicas[0].name"),
        (vec![replica(".x", &["a"])], day, "replicas[0].name"),
        (vec![replica("r1", &["a"]), replica("r1", &["b"])], day, "replicas[1].name"),
        (vec![replica("r1", &[])], day, "replicas[0].hosts"),
        (vec![replica("r1", &["a", "b:7400"])], day, "replicas[0].hosts[1]"),
        (vec![replica("r1", &["a"])], Duration::from_secs(59), "valid_for"),
        (vec![replica("r1", &["a"])], Duration::MAX, "valid_for"),
    ];
    for (replicas, valid_for, expected) in cases {
        match certs::make(dir.path(), &replicas, valid_for) {
            Err(CertsError::Field { field, .. }) => assert_eq!(field, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn bad_pem_is_an_error_that_repeats_nothing() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), &[replica("r1", &["127.0.0.1"]), replica("r2", &["127.0.0.1"])]);
    let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
    let (ca, cert, key) = (read("peer-ca.crt"), read("r1-peer.crt"), read("r1-peer.key"));
    assert!(matches!(PeerTls::new(b"sesame", &cert, &key), Err(TlsError::NoCertificate { .. })));
    assert!(matches!(PeerTls::new(&ca, b"", &key), Err(TlsError::NoCertificate { .. })));
    assert!(matches!(PeerTls::new(&ca, &cert, b"sesame"), Err(TlsError::NoKey { .. })));
    assert!(matches!(PeerTls::new(&ca, &cert, &read("r2-peer.key")), Err(TlsError::Config { .. })));
    assert!(matches!(ServerTls::new(&cert, &ca), Err(TlsError::NoKey { .. })));
    let missing = ServerTls::from_files(&dir.path().join("none.crt"), &dir.path().join("none.key")).unwrap_err();
    assert!(missing.to_string().contains("none.crt"), "{missing}");

    let body = String::from_utf8(key.clone()).unwrap().lines().nth(1).unwrap().to_owned();
    let broken = String::from_utf8(key).unwrap().replace("-----END", "");
    let error = PeerTls::new(&ca, &cert, broken.as_bytes()).unwrap_err();
    assert!(!format!("{error} {error:?}").contains(&body[..16]));
}
