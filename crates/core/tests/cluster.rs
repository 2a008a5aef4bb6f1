//! Members and the cluster version.

use ag_core::command::{InitCluster, Member, Operation};
use ag_core::limits;
use ag_core::name::{Addr, ClusterId, ReplicaId};
use ag_core::outcome::Outcome;
use ag_core::rejection::Rejection;

use crate::common::{PRINCIPAL, World};

fn member(replica_id: u64) -> Member {
    let addr = |port: u16| Addr::parse("addr", &format!("replica{replica_id}.example:{port}")).unwrap();
    Member {
        replica_id: ReplicaId(replica_id),
        addr: addr(7400),
        peer_addr: addr(8400),
        release: "0.1.0".into(),
        min_version: 1,
        max_version: 1,
    }
}

fn cluster_of(replicas: u64) -> World {
    let mut world = World::new();
    let init = InitCluster { cluster_id: ClusterId([7; 16]), members: (1..=replicas).map(member).collect() };
    assert_eq!(world.ask(PRINCIPAL, Operation::InitCluster(init)), Outcome::Done);
    world
}

fn refused(outcome: Outcome) -> Rejection {
    match outcome {
        Outcome::Rejected(rejection) => rejection,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_cluster_is_made_once() {
    let mut world = cluster_of(3);
    let before = world.rows.clone();
    let init = InitCluster { cluster_id: ClusterId([8; 16]), members: vec![member(1)] };
    assert_eq!(refused(world.ask(PRINCIPAL, Operation::InitCluster(init))), Rejection::ClusterExists);
    assert_eq!((world.state.meta().cluster_id, &world.rows), (ClusterId([7; 16]), &before));
    assert_eq!(world.reloaded(), world.state);
}

#[test]
fn replica_ids_are_taken_once_and_never_come_back() {
    let mut world = cluster_of(3);
    let allocate = |world: &mut World| match world.ask(PRINCIPAL, Operation::AllocateReplica) {
        Outcome::ReplicaAllocated(replica_id) => replica_id,
        other => panic!("{other:?}"),
    };
    assert_eq!(allocate(&mut world), ReplicaId(4));
    assert_eq!(world.ask(PRINCIPAL, Operation::RegisterReplica(member(4))), Outcome::Done);
    assert_eq!(world.ask(PRINCIPAL, Operation::ForgetReplica(ReplicaId(4))), Outcome::Done);
    assert_eq!(refused(world.ask(PRINCIPAL, Operation::ForgetReplica(ReplicaId(4)))), Rejection::ReplicaNotFound);
    assert_eq!(allocate(&mut world), ReplicaId(5));
    assert_eq!(refused(world.ask(PRINCIPAL, Operation::RegisterReplica(member(6)))), Rejection::ReplicaNotFound);
}

#[test]
fn the_last_replica_that_fits_is_registered_and_the_next_is_refused() {
    let full = limits::REPLICAS_MAX as u64;
    let mut world = cluster_of(full - 1);
    assert_eq!(world.ask(PRINCIPAL, Operation::AllocateReplica), Outcome::ReplicaAllocated(ReplicaId(full)));
    assert_eq!(world.ask(PRINCIPAL, Operation::AllocateReplica), Outcome::ReplicaAllocated(ReplicaId(full + 1)));
    assert_eq!(world.ask(PRINCIPAL, Operation::RegisterReplica(member(full))), Outcome::Done);
    let too_many = Rejection::TooManyReplicas { max: full };
    assert_eq!(refused(world.ask(PRINCIPAL, Operation::RegisterReplica(member(full + 1)))), too_many);
    assert_eq!(refused(world.ask(PRINCIPAL, Operation::AllocateReplica)), too_many);
    // Who is a member already may say something new.
    let newer = Member { release: "0.1.1".into(), ..member(full) };
    assert_eq!(world.ask(PRINCIPAL, Operation::RegisterReplica(newer)), Outcome::Done);
    let mut empty = World::new();
    let init = InitCluster { cluster_id: ClusterId([7; 16]), members: (1..=full + 1).map(member).collect() };
    assert_eq!(refused(empty.ask(PRINCIPAL, Operation::InitCluster(init))), too_many);
}

/// Where several refusals apply, the one with the lowest number is given.
#[test]
fn a_registration_is_refused_for_the_first_of_several_reasons() {
    let full = limits::REPLICAS_MAX as u64;
    let mut world = cluster_of(full);
    let unknown = member(full + 1);
    let unsupported = Member { min_version: 2, max_version: 3, ..unknown.clone() };
    let rejection = refused(world.ask(PRINCIPAL, Operation::RegisterReplica(unsupported)));
    assert!(matches!(&rejection, Rejection::ClusterVersion { wanted: 3, .. }), "{rejection}");
    let rejection = refused(world.ask(PRINCIPAL, Operation::RegisterReplica(unknown.clone())));
    assert_eq!(rejection, Rejection::TooManyReplicas { max: full });
    _ = world.ask(PRINCIPAL, Operation::ForgetReplica(ReplicaId(1)));
    assert_eq!(refused(world.ask(PRINCIPAL, Operation::RegisterReplica(unknown))), Rejection::ReplicaNotFound);
}

#[test]
fn a_registration_that_says_nothing_new_is_not_recorded() {
    let mut world = cluster_of(3);
    let records = world.audit.len();
    assert_eq!(world.ask(PRINCIPAL, Operation::RegisterReplica(member(2))), Outcome::Done);
    assert_eq!(world.audit.len(), records);
}

/// Every rule of the cluster version: it is raised only when all replicas support it, not while it is held, never down.
#[test]
fn the_cluster_version_is_raised_when_all_support_it_and_never_lowered() {
    let mut world = cluster_of(3);
    let set = |world: &mut World, wanted| world.ask(PRINCIPAL, Operation::SetClusterVersion(wanted));
    let newer = |replica_id| Member { release: "0.2.0".into(), max_version: 2, ..member(replica_id) };
    for replica_id in 1..=2 {
        assert_eq!(world.ask(PRINCIPAL, Operation::RegisterReplica(newer(replica_id))), Outcome::Done);
    }
    let why = "replica 3 runs release 0.1.0, which supports at most 1".to_string();
    assert_eq!(refused(set(&mut world, 2)), Rejection::ClusterVersion { wanted: 2, why });
    _ = world.ask(PRINCIPAL, Operation::RegisterReplica(newer(3)));
    assert_eq!(world.ask(PRINCIPAL, Operation::HoldClusterVersion(true)), Outcome::Done);
    assert!(matches!(refused(set(&mut world, 2)), Rejection::ClusterVersion { .. }));
    assert_eq!(set(&mut world, 1), Outcome::Done, "where it is");
    assert_eq!(world.ask(PRINCIPAL, Operation::HoldClusterVersion(false)), Outcome::Done);
    assert_eq!(set(&mut world, 2), Outcome::Done);
    assert_eq!(world.state.meta().cluster_version, 2);
    assert!(matches!(refused(set(&mut world, 1)), Rejection::ClusterVersion { wanted: 1, .. }));
    // Now a replica of the earlier release is not let in again.
    let rejection = refused(world.ask(PRINCIPAL, Operation::RegisterReplica(member(3))));
    assert!(matches!(rejection, Rejection::ClusterVersion { wanted: 1, .. }));
    assert_eq!(world.reloaded(), world.state);
}
