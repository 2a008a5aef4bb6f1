//! Clusters of three: elections, proposals, reads, restarts, members.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use ag_core::command::{Command, Enqueue, Operation};
use ag_core::name::ReplicaId;
use ag_core::outcome::Outcome;
use ag_core::rejection::Rejection;
use ag_replica::{ClusterError, ProposeError, Timings};
use ag_wire::version::CLUSTER_VERSION_MAX;
use support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_waits_until_a_cluster_is_made_of_it() {
    let mut seat = Seat::empty();
    let replica = seat.start().await.clone();
    assert!(!replica.is_ready() && replica.table().is_none());
    let command = Command { actor: admin(), operation: enqueue("q", 1) };
    assert!(matches!(replica.propose(command, deadline()).await, Err(ProposeError::NoCluster)));
    assert_eq!(replica.cluster(deadline()).await.replicas, []);

    replica.init_cluster(admin(), vec![], deadline()).await.unwrap();
    eventually("it is ready", || replica.is_ready()).await;
    let again = replica.init_cluster(admin(), vec![], deadline()).await;
    assert!(matches!(again, Err(ClusterError::Rejected(Rejection::ClusterExists))), "{again:?}");
    let view = replica.cluster(deadline()).await;
    assert_eq!((view.cluster_version, view.leader, view.replicas.len()), (1, Some(ReplicaId(1)), 1));
    assert_eq!(view.replicas[0].state_hash, Some(replica.read(|state| state.state_hash())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_are_applied_on_all_and_read_behind_a_barrier() {
    let cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    for round in 1..=20 {
        cluster.propose(enqueue("q", 1)).await;
        for replica in cluster.running() {
            replica.read_barrier(deadline()).await.unwrap();
            assert_eq!(replica.read(|state| state.job_count()), round);
        }
    }
    let follower = cluster.seats[(leader + 1) % 3].get();
    let command = Command { actor: admin(), operation: enqueue("q", 1) };
    let refused = follower.propose(command, deadline()).await;
    let Err(ProposeError::NotLeader { leader: Some(hint) }) = refused else { panic!("{refused:?}") };
    assert_eq!(hint.addr, cluster.seats[leader].config().addr);
    cluster.agree().await;

    let view = follower.cluster(deadline()).await;
    let hashes: Vec<_> = view.replicas.iter().map(|replica| replica.state_hash).collect();
    assert!(hashes.iter().all(|hash| hash.is_some() && *hash == hashes[0]), "{view:?}");
    assert!(view.replicas.iter().all(|replica| replica.is_voter));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_share_entries() {
    let cluster = Cluster::of(3).await;
    let leader = cluster.seats[cluster.leader().await].get().clone();
    let before = leader.applied().unwrap().log_index;
    let calls = (0..2_000).map(|_| {
        let leader = leader.clone();
        let command = Command { actor: admin(), operation: enqueue("q", 1) };
        tokio::spawn(async move { leader.propose(command, deadline()).await })
    });
    let calls: Vec<_> = calls.collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(leader.read(|state| state.job_count()), 2_000);
    let entries = leader.applied().unwrap().log_index - before;
    assert!(entries < 500, "{entries} entries for 2000 commands");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cluster_goes_on_without_its_leader_and_after_a_restart_of_all() {
    let mut cluster = Cluster::of(3).await;
    cluster.propose(enqueue("q", 5)).await;
    let lease_before = cluster.seats[cluster.leader().await].get().read(|state| state.meta().lease_now);
    let begun = Instant::now();
    let first = cluster.leader().await;
    cluster.seats[first].kill().await;
    let second = cluster.leader().await;
    assert_ne!(first, second);
    cluster.propose(enqueue("q", 5)).await;
    let lease_after = cluster.seats[second].get().read(|state| state.meta().lease_now);
    // It never goes back, and never runs ahead of real time either, whoever leads.
    let passed = u128::from(lease_after.0.checked_sub(lease_before.0).unwrap());
    assert!(passed <= begun.elapsed().as_millis() + 100, "{passed} ms of lease time");

    cluster.seats[first].start().await;
    cluster.agree().await;
    for seat in &mut cluster.seats {
        seat.kill().await;
    }
    for seat in &mut cluster.seats {
        seat.start().await;
    }
    cluster.propose(enqueue("q", 5)).await;
    cluster.agree().await;
    for replica in cluster.running() {
        eventually("all are ready", || replica.is_ready()).await;
        assert_eq!(replica.read(|state| state.job_count()), 15);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_call_has_one_effect_and_one_answer() {
    let mut cluster = Cluster::of(3).await;
    let call = |id: &str| Operation::Enqueue(Enqueue { jobs: vec![new_job("q", b"once")], request_id: request_id(id) });
    let first = cluster.propose(call("r1")).await;
    assert_eq!(cluster.propose(call("r1")).await, first);
    let leader = cluster.leader().await;
    cluster.seats[leader].kill().await;
    assert_eq!(cluster.propose(call("r1")).await, first);
    let leader = cluster.seats[cluster.leader().await].get().clone();
    assert_eq!(leader.read(|state| state.job_count()), 1);

    // Both in one entry, the first not yet stored when the second is answered.
    let twice = [0, 1].map(|_| leader.propose(Command { actor: admin(), operation: call("r2") }, deadline()));
    let answers = futures::future::join_all(twice).await;
    assert_eq!(answers[0].as_ref().unwrap().outcome, answers[1].as_ref().unwrap().outcome);
    assert_eq!(leader.read(|state| state.job_count()), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_has_moved_is_found_where_it_says() {
    let mut cluster = Cluster::of(3).await;
    let moved = (cluster.leader().await + 1) % 3;
    cluster.seats[moved].kill().await;
    cluster.propose(enqueue("q", 1)).await;
    cluster.seats[moved].port = Seat::empty().port;
    let replica_id = cluster.seats[moved].start().await.replica_id().unwrap();
    cluster.agree().await;
    let expected = cluster.seats[moved].peer_addr();
    let leader = cluster.seats[cluster.leader().await].get();
    let known = leader.read(|state| state.member(replica_id).map(|member| member.peer_addr.clone()));
    assert_eq!(known, Some(expected));
    eventually("it is ready", || cluster.seats[moved].get().is_ready()).await;
}

fn little_log(seat: &mut Seat) {
    seat.timings = Timings { snapshot_entries: 40, kept_entries: 10, ..seat.timings.clone() };
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_replica_catches_up_by_a_snapshot_and_a_removed_one_never_comes_back() {
    let mut cluster = Cluster::with(3, little_log).await;
    for _ in 0..120 {
        cluster.propose(enqueue("q", 3)).await;
    }
    let leader = cluster.leader().await;
    let purged = cluster.seats[leader].get().clone();
    eventually("the log is purged", || purged.metrics().purged_index.is_some_and(|index| index > 20)).await;

    // One is lost with its data, and replaced by an empty one.
    let lost = (leader + 1) % 3;
    let lost_id = cluster.seats[lost].get().replica_id().unwrap();
    cluster.seats[lost].kill().await;
    let leader = cluster.seats[leader].get().clone();
    leader.remove_replica(admin(), lost_id, deadline()).await.unwrap();
    let mut fresh = Seat::empty();
    little_log(&mut fresh);
    fresh.start().await;
    let added = leader.add_replica(admin(), fresh.peer_addr(), false, deadline()).await.unwrap();
    assert_eq!(added, ReplicaId(4));
    let snapshot_index = fresh.get().metrics().snapshot_index;
    assert!(snapshot_index.is_some_and(|index| index > 20), "it was not filled by a snapshot: {snapshot_index:?}");
    let old = std::mem::replace(&mut cluster.seats[lost], fresh);
    cluster.propose(enqueue("q", 3)).await;
    cluster.agree().await;

    let view = leader.cluster(deadline()).await;
    let ids: Vec<_> = view.replicas.iter().map(|replica| (replica.member.replica_id.0, replica.is_voter)).collect();
    let mut expected: Vec<_> = (1..=4).filter(|id| *id != lost_id.0).map(|id| (id, true)).collect();
    expected.sort_unstable();
    assert_eq!(ids, expected);

    // With its old data it is refused under its old number; emptied, it gets a new one.
    let mut old = old;
    old.start().await;
    let refused = leader.add_replica(admin(), old.peer_addr(), false, deadline()).await;
    assert!(matches!(&refused, Err(ClusterError::Refused { why }) if why.contains("empty")), "{refused:?}");
    old.kill().await;
    eventually_empty(&old).await;
    old.start().await;
    let added = leader.add_replica(admin(), old.peer_addr(), true, deadline()).await.unwrap();
    assert_eq!(added, ReplicaId(5));
    let view = leader.cluster(deadline()).await;
    assert!(view.replicas.iter().any(|replica| replica.member.replica_id == added && !replica.is_voter));
    leader.remove_replica(admin(), added, deadline()).await.unwrap();
}

/// Empties the data directory once nothing has it open.
async fn eventually_empty(seat: &Seat) {
    let deadline = deadline();
    while ag_store::DataDir::open(seat.folder.path(), ag_store::StoreOptions::default()).is_err() {
        assert!(Instant::now() < deadline, "the data directory stays in use");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    empty_folder(seat.folder.path());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leadership_moves_when_asked_at_shutdown_and_when_the_leader_is_removed() {
    let mut cluster = Cluster::of(3).await;
    cluster.propose(enqueue("q", 1)).await;
    let leader = cluster.leader().await;
    let next = (leader + 1) % 3;
    let next_id = cluster.seats[next].get().replica_id().unwrap();
    let moved = cluster.seats[leader].get().transfer_leadership(Some(next_id), deadline()).await.unwrap();
    assert_eq!(moved, next_id);
    assert_eq!(cluster.leader().await, next);

    let begun = Instant::now();
    let replica = cluster.seats[next].replica.take().unwrap();
    replica.shutdown(deadline()).await;
    drop(replica);
    cluster.leader().await;
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    cluster.seats[next].start().await;

    let leader = cluster.leader().await;
    let leader_id = cluster.seats[leader].get().replica_id().unwrap();
    let removed = cluster.seats[leader].get().remove_replica(admin(), leader_id, deadline()).await;
    let Err(ClusterError::Propose { source: ProposeError::NotLeader { .. }, .. }) = removed else {
        panic!("{removed:?}")
    };
    let heir = cluster.leader().await;
    assert_ne!(heir, leader);
    cluster.seats[heir].get().remove_replica(admin(), leader_id, deadline()).await.unwrap();
    assert_eq!(cluster.seats[heir].get().read(|state| state.members().count()), 2);
    cluster.propose(enqueue("q", 1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_voter_stays_and_a_stranger_is_not_added() {
    let one = Cluster::of(1).await;
    let other = Cluster::of(1).await;
    let replica = one.seats[0].get();
    let removed = replica.remove_replica(admin(), ReplicaId(1), deadline()).await;
    assert!(matches!(removed, Err(ClusterError::Refused { .. })), "{removed:?}");
    let removed = replica.remove_replica(admin(), ReplicaId(9), deadline()).await;
    assert!(matches!(removed, Err(ClusterError::Rejected(Rejection::ReplicaNotFound))), "{removed:?}");
    let added = replica.add_replica(admin(), other.seats[0].peer_addr(), false, deadline()).await;
    assert!(matches!(added, Err(ClusterError::Refused { .. })), "{added:?}");
    let answer = replica.set_cluster_version(admin(), CLUSTER_VERSION_MAX + 1, deadline()).await;
    assert!(matches!(answer, Err(ClusterError::Rejected(Rejection::ClusterVersion { .. }))), "{answer:?}");
    replica.hold_cluster_version(admin(), true, deadline()).await.unwrap();
    assert!(replica.cluster(deadline()).await.version_held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minority_answers_nothing() {
    let mut cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    for at in (0..3).filter(|at| *at != leader) {
        cluster.seats[at].kill().await;
    }
    let replica = cluster.seats[leader].get();
    let soon = Instant::now() + Duration::from_secs(4);
    assert!(replica.read_barrier(soon).await.is_err());
    let command = Command { actor: admin(), operation: enqueue("q", 1) };
    let answer = replica.propose(command, Instant::now() + Duration::from_secs(2)).await;
    assert!(matches!(answer, Err(ProposeError::Unknown | ProposeError::NotLeader { .. })), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_command_is_not_proposed() {
    let cluster = Cluster::of(1).await;
    let command = Command { actor: admin(), operation: enqueue("q", 1) };
    let answer = cluster.seats[0].get().propose(command, Instant::now()).await;
    assert!(matches!(answer, Err(ProposeError::DeadlineExceeded)), "{answer:?}");
    cluster.propose(enqueue("q", 1)).await;
    assert_eq!(cluster.seats[0].get().read(|state| state.job_count()), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_lapse_and_start_by_time_alone() {
    let cluster = Cluster::of(3).await;
    let mut later = new_job("q", b"later");
    later.start = ag_core::command::Start::After(300);
    cluster.propose(Operation::Enqueue(Enqueue { jobs: vec![later], request_id: None })).await;
    let leader = cluster.seats[cluster.leader().await].get().clone();
    let mut claim = claim_of("q", "w1");
    claim.lease_ms = Some(300);
    let wait = Duration::from_secs(20);
    let first = leader.claim(admin(), claim, wait, deadline()).await;
    assert_eq!(claimed(&first), 1);
    // Nobody says a word; the claim lapses and the job goes to the next.
    let second = leader.claim(admin(), claim_of("q", "w2"), wait, deadline()).await.unwrap();
    let Outcome::Claimed(jobs) = second.outcome else { panic!() };
    assert_eq!(jobs[0].attempts, 2);
}
