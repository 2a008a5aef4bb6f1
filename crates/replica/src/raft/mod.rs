//! The only module that names openraft. None of its types is sent, stored or shown outside of this crate: what goes
//! over the wire or to disk is encoded by [`codec`].

pub(crate) mod codec;
mod config;
mod log_cache;
mod log_store;
mod log_thread;
mod network;
pub(crate) mod service;
mod snapshot;
mod state_machine;
#[cfg(test)]
mod suite;

use std::fmt;

use ag_core::name::LogPosition;
use bytes::Bytes;

use crate::answered::Answered;

pub(crate) use config::config;
pub(crate) use log_store::{LogStore, entry_id, log_id};
pub(crate) use network::NetworkFactory;
pub(crate) use state_machine::StateMachine;

openraft::declare_raft_types!(
    /// What the consensus deals in.
    pub(crate) TypeConfig:
        D = EntryBytes,
        R = Vec<Answered>,
        NodeId = u64,
        Node = openraft::BasicNode,
);

/// An entry of the log, as the wire crate encoded it. It is decoded once, when it is applied.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct EntryBytes(pub Bytes);

impl fmt::Debug for EntryBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for EntryBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

pub(crate) type Raft = openraft::Raft<TypeConfig, StateMachine>;
pub(crate) type LeaderId = openraft::alias::LeaderIdOf<TypeConfig>;
pub(crate) type LogId = openraft::alias::LogIdOf<TypeConfig>;
pub(crate) type Vote = openraft::alias::VoteOf<TypeConfig>;
pub(crate) type Entry = openraft::alias::EntryOf<TypeConfig>;
pub(crate) type Payload = openraft::alias::EntryPayloadOf<TypeConfig>;
pub(crate) type Membership = openraft::Membership<u64, openraft::BasicNode>;
pub(crate) type StoredMembership = openraft::alias::StoredMembershipOf<TypeConfig>;
pub(crate) type SnapshotMeta = openraft::alias::SnapshotMetaOf<TypeConfig>;

/// A place in the log, as the state machine knows it.
pub(crate) fn position(log_id: &LogId) -> LogPosition {
    LogPosition { term: log_id.leader_id.term, log_index: log_id.index }
}
