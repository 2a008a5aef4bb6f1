//! What stops a replica, or does not let it start.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use ag_core::Meta;
use ag_core::change::Change;
use ag_proto::storage_v1 as stored;
use ag_wire::version::CLUSTER_VERSION_MAX;
use prost::Message as _;

use super::*;
use crate::config::Timings;
use crate::failure::causes;
use crate::raft::EntryBytes;

fn config(folder: &Path) -> ReplicaConfig {
    ReplicaConfig {
        data_dir: folder.to_owned(),
        addr: Addr::parse("addr", "127.0.0.1:1").unwrap(),
        peer_addr: Addr::parse("peer_addr", "127.0.0.1:2").unwrap(),
        peer_listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        peer_tls: None,
        timings: Timings::default(),
        fsync: true,
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

fn enqueue_nothing() -> Command {
    Command { actor: Actor::System, operation: Operation::ReleaseUndelivered(Vec::new()) }
}

/// An entry with a command of a later release.
fn entry_of_the_future() -> EntryBytes {
    let command = stored::Command { kind: 900, min_version: 77, ..Default::default() };
    let entry = stored::Entry { commands: vec![command], ..Default::default() };
    let mut bytes = vec![ag_wire::storage::FORMAT];
    entry.encode_raw(&mut bytes);
    EntryBytes(bytes.into())
}

async fn start_when_free(folder: &Path) -> Result<Replica, ReplicaError> {
    let deadline = soon();
    loop {
        match Replica::start(config(folder)).await {
            Err(ReplicaError::Store { source, .. })
                if matches!(*source, ag_store::StoreError::Locked { .. }) && Instant::now() < deadline =>
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            other => return other,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_command_stops_the_replica_and_is_never_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let replica = Replica::start(config(folder.path())).await.unwrap();
    replica.init_cluster(Actor::System, vec![], soon()).await.unwrap();
    let before = replica.applied();
    let raft = replica.inner.running().unwrap().raft.clone();
    assert!(raft.client_write(entry_of_the_future()).await.is_err());
    drop(raft);

    let why = causes(&tokio::time::timeout_at(soon().into(), replica.failed()).await.unwrap());
    assert!(why.contains("kind 900") && why.contains("install a newer release"), "{why}");
    assert!(!replica.is_ready());
    assert_eq!(replica.applied(), before);
    let answer = replica.propose(enqueue_nothing(), soon()).await;
    assert!(matches!(answer, Err(ProposeError::Failed)), "{answer:?}");
    let read = replica.read_barrier(soon()).await;
    assert!(matches!(read, Err(ProposeError::Failed)), "{read:?}");
    replica.shutdown(Instant::now()).await;
    drop(replica);

    // A restart does not help: the entry is still there.
    match start_when_free(folder.path()).await {
        Ok(replica) => {
            let why = causes(&tokio::time::timeout_at(soon().into(), replica.failed()).await.unwrap());
            assert!(why.contains("kind 900"), "{why}");
        }
        Err(error) => assert!(causes(&error).contains("kind 900"), "{}", causes(&error)),
    }
}

#[tokio::test]
async fn more_commands_than_may_wait_are_refused_and_all_others_answered() {
    let folder = tempfile::tempdir().unwrap();
    let replica = Replica::start(config(folder.path())).await.unwrap();
    replica.init_cluster(Actor::System, vec![], soon()).await.unwrap();
    // On one thread: all are queued before the first is taken.
    let (limit, more) = (crate::limits::QUEUED_COMMANDS_MAX, 100);
    let calls = (0..limit + more).map(|_| replica.propose(enqueue_nothing(), soon()));
    let answers = futures::future::join_all(calls).await;
    let refused = answers.iter().filter(|answer| matches!(answer, Err(ProposeError::Overloaded { .. }))).count();
    assert_eq!(refused, more);
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), limit);
    assert_eq!(replica.metrics().queued_commands, 0);
}

#[tokio::test]
async fn more_bytes_than_may_wait_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let replica = Replica::start(config(folder.path())).await.unwrap();
    replica.init_cluster(Actor::System, vec![], soon()).await.unwrap();
    let reason = "x".repeat(16 << 20);
    let fail = || Command {
        actor: Actor::System,
        operation: Operation::Fail(ag_core::command::Fail {
            fencing_token: None,
            job_id: None,
            worker: ag_core::name::WorkerLabel::parse("worker", "w").unwrap(),
            reason: reason.clone(),
            retry_after_ms: None,
            permanent: false,
        }),
    };
    let fits = crate::limits::QUEUED_BYTES_MAX / (16 << 20) - 1;
    let answers = futures::future::join_all((0..fits + 3).map(|_| replica.propose(fail(), soon()))).await;
    let refused = answers.iter().filter(|answer| matches!(answer, Err(ProposeError::Overloaded { .. }))).count();
    assert_eq!(refused, 3);
    assert!(replica.propose(fail(), soon()).await.is_ok());
}

#[tokio::test]
async fn a_cluster_version_that_is_not_supported_is_not_served() {
    let folder = tempfile::tempdir().unwrap();
    {
        let dir = DataDir::open(folder.path(), StoreOptions::default()).unwrap();
        let (_log, rocks) = (dir.log().unwrap(), dir.state().unwrap());
        let cluster_version = CLUSTER_VERSION_MAX + 1;
        let meta = Meta { cluster_version, ..Meta::default() };
        rocks.commit(&[Change::ClusterVersion(cluster_version)], &meta, &AppliedMark::default()).unwrap();
        rocks.begin_checkpoint(&dir.snapshots().unwrap()).unwrap();
    }
    let refused = Replica::start(config(folder.path())).await;
    let Err(error @ ReplicaError::ClusterVersion { .. }) = refused else { panic!("{refused:?}") };
    let wanted = format!("install a release that supports {}", CLUSTER_VERSION_MAX + 1);
    assert!(error.to_string().contains(&wanted), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_directory_and_a_port_are_used_once() {
    let folder = tempfile::tempdir().unwrap();
    let replica = Replica::start(config(folder.path())).await.unwrap();
    let second = Replica::start(config(folder.path())).await;
    assert!(matches!(second, Err(ReplicaError::Store { .. })), "{second:?}");
    let other = tempfile::tempdir().unwrap();
    let taken = ReplicaConfig { peer_listen: replica.peer_listen(), ..config(other.path()) };
    assert!(matches!(Replica::start(taken).await, Err(ReplicaError::Listen { .. })));
}
