//! Members and the cluster version.

use super::Decision;
use crate::audit::AuditEvent;
use crate::change::Change;
use crate::command::{Actor, InitCluster, Member, Operation};
use crate::limits;
use crate::name::ReplicaId;
use crate::outcome::Outcome;
use crate::rejection::Rejection;
use crate::state::State;

type Verdict = Decision<Result<Outcome, Rejection>>;

/// Decides on a command about the cluster; gives `Done` for any other.
pub(crate) fn cluster(state: &State, actor: &Actor, operation: Operation) -> Verdict {
    match operation {
        Operation::InitCluster(init) => init_cluster(state, actor, init),
        Operation::RegisterReplica(member) => register(state, actor, member),
        Operation::AllocateReplica => allocate(state, actor),
        Operation::ForgetReplica(replica_id) => forget(state, actor, replica_id),
        Operation::SetClusterVersion(wanted) => set_version(state, actor, wanted),
        Operation::HoldClusterVersion(held) => hold_version(state, actor, held),
        Operation::Enqueue(_)
        | Operation::Claim(_)
        | Operation::Heartbeat(_)
        | Operation::Complete(_)
        | Operation::Fail(_)
        | Operation::Release(_)
        | Operation::ReleaseUndelivered(_)
        | Operation::Cancel(_)
        | Operation::Retry(_)
        | Operation::UpdateQueue(_) => unchanged(),
    }
}

fn unchanged() -> Verdict {
    Decision::nothing(Ok(Outcome::Done))
}

fn refuse(rejection: Rejection) -> Verdict {
    Decision::nothing(Err(rejection))
}

fn done(outcome: Outcome, changes: Vec<Change>, event: AuditEvent) -> Verdict {
    Decision { value: Ok(outcome), changes, event: Some(event) }
}

fn init_cluster(state: &State, actor: &Actor, init: InitCluster) -> Verdict {
    if state.meta().cluster_id.is_set() {
        return refuse(Rejection::ClusterExists);
    }
    if init.members.len() > limits::REPLICAS_MAX {
        return refuse(Rejection::TooManyReplicas { max: limits::REPLICAS_MAX as u64 });
    }
    let mut event = AuditEvent::new(actor, "init_cluster", "done").detail("cluster_id", init.cluster_id);
    for member in &init.members {
        let Member { replica_id, addr, peer_addr, release, min_version, max_version } = member;
        let told = format!("{addr} {peer_addr} {release} {min_version}-{max_version}");
        event = event.detail(&format!("replica_{replica_id}"), told);
    }
    let last = init.members.iter().map(|member| member.replica_id.0).max().unwrap_or(0);
    let mut changes = vec![Change::ClusterId(init.cluster_id), Change::NextReplicaId(ReplicaId(last + 1))];
    changes.extend(init.members.into_iter().map(Change::PutMember));
    done(Outcome::Done, changes, event)
}

fn register(state: &State, actor: &Actor, member: Member) -> Verdict {
    if state.member(member.replica_id) == Some(&member) {
        return unchanged();
    }
    let current = state.meta().cluster_version;
    if !(member.min_version..=member.max_version).contains(&current) {
        let why = format!("the cluster is at {current}, replica {} does not support it", member.replica_id);
        return refuse(Rejection::ClusterVersion { wanted: member.max_version, why });
    }
    if state.member(member.replica_id).is_none() && state.members.len() >= limits::REPLICAS_MAX {
        return refuse(Rejection::TooManyReplicas { max: limits::REPLICAS_MAX as u64 });
    }
    if member.replica_id >= state.meta().next_replica_id {
        return refuse(Rejection::ReplicaNotFound);
    }
    let event = AuditEvent::new(actor, "register_replica", "done")
        .detail("replica_id", member.replica_id)
        .detail("addr", &member.addr)
        .detail("peer_addr", &member.peer_addr)
        .detail("release", &member.release)
        .detail("min_version", member.min_version)
        .detail("max_version", member.max_version);
    done(Outcome::Done, vec![Change::PutMember(member)], event)
}

fn allocate(state: &State, actor: &Actor) -> Verdict {
    if state.members.len() >= limits::REPLICAS_MAX {
        return refuse(Rejection::TooManyReplicas { max: limits::REPLICAS_MAX as u64 });
    }
    let replica_id = state.meta().next_replica_id;
    let event = AuditEvent::new(actor, "allocate_replica", "done").detail("replica_id", replica_id);
    let changes = vec![Change::NextReplicaId(ReplicaId(replica_id.0 + 1))];
    done(Outcome::ReplicaAllocated(replica_id), changes, event)
}

fn forget(state: &State, actor: &Actor, replica_id: ReplicaId) -> Verdict {
    if state.member(replica_id).is_none() {
        return refuse(Rejection::ReplicaNotFound);
    }
    let event = AuditEvent::new(actor, "forget_replica", "done").detail("replica_id", replica_id);
    done(Outcome::Done, vec![Change::DropMember(replica_id)], event)
}

fn set_version(state: &State, actor: &Actor, wanted: u32) -> Verdict {
    let meta = state.meta();
    let why = if wanted < meta.cluster_version {
        Some(format!("it is {} and never goes down", meta.cluster_version))
    } else if wanted > meta.cluster_version && meta.version_held {
        Some("it is held; let go of it first".into())
    } else {
        let behind = state.members().find(|member| member.max_version < wanted);
        behind.map(|member| {
            let (replica_id, release, max) = (member.replica_id, &member.release, member.max_version);
            format!("replica {replica_id} runs release {release}, which supports at most {max}")
        })
    };
    match why {
        Some(why) => refuse(Rejection::ClusterVersion { wanted, why }),
        None if wanted == meta.cluster_version => unchanged(),
        None => {
            let event = AuditEvent::new(actor, "set_cluster_version", "done").detail("cluster_version", wanted);
            done(Outcome::Done, vec![Change::ClusterVersion(wanted)], event)
        }
    }
}

fn hold_version(state: &State, actor: &Actor, held: bool) -> Verdict {
    if state.meta().version_held == held {
        return unchanged();
    }
    let event = AuditEvent::new(actor, "hold_cluster_version", "done").detail("held", held);
    done(Outcome::Done, vec![Change::VersionHeld(held)], event)
}
