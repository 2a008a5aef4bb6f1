//! What each replica says of itself to the leader, and how the cluster version rises.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ag_core::State;
use ag_core::command::{Actor, Command, Member, Operation};
use ag_core::name::{Addr, FieldError, ReplicaId};
use ag_core::outcome::Outcome;
use ag_proto::peer_v1 as peer;
use ag_wire::version::{CLUSTER_VERSION_MAX, CLUSTER_VERSION_MIN, RELEASE};
use openraft::async_runtime::WatchReceiver as _;
use tokio::sync::watch;

use crate::applied::AppliedState;
use crate::config::ReplicaConfig;
use crate::identity::Identity;
use crate::leadership::Leadership;
use crate::peer::connect::Connector;
use crate::peer::header::Header;
use crate::proposer::Proposer;
use crate::raft::Raft;

/// How often a replica looks whether the cluster knows what it is.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long telling it may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What this replica says of itself.
pub(crate) fn member(config: &ReplicaConfig, replica_id: ReplicaId) -> Member {
    Member {
        replica_id,
        addr: config.addr.clone(),
        peer_addr: config.peer_addr.clone(),
        release: RELEASE.to_owned(),
        min_version: CLUSTER_VERSION_MIN,
        max_version: CLUSTER_VERSION_MAX,
    }
}

/// The member as a message.
pub(crate) fn announcement(member: &Member) -> peer::Announcement {
    peer::Announcement {
        replica_id: member.replica_id.0,
        addr: member.addr.as_str().to_owned(),
        peer_addr: member.peer_addr.as_str().to_owned(),
        release: member.release.clone(),
        min_version: member.min_version,
        max_version: member.max_version,
    }
}

/// The member in a message.
pub(crate) fn parse_announcement(message: &peer::Announcement) -> Result<Member, FieldError> {
    if message.release.len() > 64 {
        return Err(FieldError::new("release", "at most 64 bytes"));
    }
    Ok(Member {
        replica_id: ReplicaId(message.replica_id),
        addr: Addr::parse("addr", &message.addr)?,
        peer_addr: Addr::parse("peer_addr", &message.peer_addr)?,
        release: message.release.clone(),
        min_version: message.min_version,
        max_version: message.max_version,
    })
}

/// The task that keeps the cluster's knowledge of this replica up to date.
pub(crate) struct Announcer {
    pub here: Identity,
    pub member: Member,
    pub raft: Raft,
    pub connector: Arc<Connector>,
    pub applied: Arc<AppliedState>,
    pub proposer: Proposer,
    pub leadership: watch::Receiver<Leadership>,
}

impl Announcer {
    /// Runs until the replica stops.
    pub async fn run(mut self) {
        loop {
            if self.is_news() {
                self.announce().await;
            }
            if self.leadership.borrow_and_update().term().is_some() {
                raise_version(&self.proposer, &self.applied).await;
            }
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                changed = self.leadership.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Whether this is a member of which the cluster, as far as it is known here, knows something else or nothing.
    fn is_news(&self) -> bool {
        let known = self.applied.read(|state| state.member(self.member.replica_id).cloned());
        let membership = self.raft.server_metrics().borrow_watched().membership_config.clone();
        known.as_ref() != Some(&self.member) && membership.get_node(&self.here.replica_id.0).is_some()
    }

    /// Tells the leader; if it cannot be told, or is not known, all others: perhaps a new one looks for this replica
    /// where it was before.
    async fn announce(&self) {
        let metrics = self.raft.server_metrics().borrow_watched().clone();
        let leader = metrics.current_leader;
        if leader == Some(self.here.replica_id.0) {
            register(&self.proposer, &self.applied, self.member.clone()).await;
            return;
        }
        let mut others: Vec<_> = metrics.membership_config.nodes().collect();
        others.retain(|(other, _)| **other != self.here.replica_id.0);
        others.sort_by_key(|(other, _)| Some(**other) != leader);
        for (other, at_first) in others {
            let peer_addr = self.applied.peer_addr(*other).unwrap_or_else(|| at_first.addr.clone());
            let header = Header { from: self.here, to: ReplicaId(*other) };
            let message = peer::AnnounceRequest { announcement: Some(announcement(&self.member)) };
            let mut client = self.connector.shared(&peer_addr);
            match tokio::time::timeout(TIMEOUT, client.announce(header.request(message))).await {
                Ok(Ok(_)) => return,
                Ok(Err(status)) => tracing::debug!(%status, to = other, "not told what this replica is"),
                Err(_) => tracing::debug!(to = other, "not told what this replica is: no answer"),
            }
        }
    }
}

/// On the leader: makes what a replica says of itself known, if it is news. Only members are listened to.
pub(crate) async fn register(proposer: &Proposer, applied: &AppliedState, member: Member) -> bool {
    let known = applied.read(|state| state.member(member.replica_id).cloned());
    match known {
        None => return false,
        Some(known) if known == member => return true,
        Some(_) => {}
    }
    let replica_id = member.replica_id;
    let done = propose(proposer, Operation::RegisterReplica(member)).await;
    if done {
        tracing::info!(%replica_id, "a replica says something new of itself");
    }
    done
}

/// On the leader: raises the cluster version to the highest that all members support, unless it is held.
async fn raise_version(proposer: &Proposer, applied: &AppliedState) {
    if let Some(wanted) = applied.read(version_to_raise_to)
        && propose(proposer, Operation::SetClusterVersion(wanted)).await
    {
        tracing::info!(cluster_version = wanted, "the cluster version has risen");
    }
}

fn version_to_raise_to(state: &State) -> Option<u32> {
    let meta = state.meta();
    let supported = state.members().map(|member| member.max_version).min()?;
    (!meta.version_held && meta.cluster_id.is_set() && supported > meta.cluster_version).then_some(supported)
}

async fn propose(proposer: &Proposer, operation: Operation) -> bool {
    let command = Command { actor: Actor::System, operation };
    match proposer.propose(command, Instant::now() + TIMEOUT).await {
        Ok(answered) => !matches!(answered.outcome, Outcome::Rejected(_)),
        Err(error) => {
            tracing::debug!(%error, "a command of the cluster itself was not answered; trying again");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use ag_core::command::{Entry, InitCluster};
    use ag_core::name::{ClusterId, LogPosition};
    use ag_core::time::{LeaseTime, WallTime};

    use super::*;

    fn member(replica_id: u64, max_version: u32) -> Member {
        let addr = Addr::parse("addr", "h:1").unwrap();
        let (peer_addr, release) = (addr.clone(), "1.2.3".to_owned());
        Member { replica_id: ReplicaId(replica_id), addr, peer_addr, release, min_version: 1, max_version }
    }

    fn state(max_versions: &[u32], extra: Option<Operation>) -> State {
        let members = (1..).zip(max_versions).map(|(replica_id, max)| member(replica_id, *max)).collect();
        let init = Operation::InitCluster(InitCluster { cluster_id: ClusterId([1; 16]), members });
        let commands = std::iter::once(init).chain(extra);
        let commands = commands.map(|operation| Command { actor: Actor::System, operation }).collect();
        let mut state = State::default();
        let entry = Entry { lease_now: LeaseTime(1), wall_now: WallTime(1), commands };
        let _ = state.apply(LogPosition { term: 1, log_index: 1 }, entry);
        state
    }

    #[test]
    fn the_version_rises_to_what_all_members_support() {
        assert_eq!(version_to_raise_to(&state(&[3, 2, 4], None)), Some(2));
        assert_eq!(version_to_raise_to(&state(&[3, 1, 4], None)), None);
        assert_eq!(version_to_raise_to(&State::default()), None);
    }

    #[test]
    fn a_held_version_does_not_rise() {
        assert_eq!(version_to_raise_to(&state(&[2, 2], Some(Operation::HoldClusterVersion(true)))), None);
    }

    #[test]
    fn an_announcement_comes_back_as_it_was() {
        assert_eq!(parse_announcement(&announcement(&member(7, 3))).unwrap(), member(7, 3));
        let bad = peer::Announcement { addr: String::new(), ..announcement(&member(7, 3)) };
        assert_eq!(parse_announcement(&bad).unwrap_err().field, "addr");
    }
}
