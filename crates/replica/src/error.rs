//! What can go wrong. Refusals by the state machine are no errors: they are [`ag_core::outcome::Outcome::Rejected`].

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use ag_core::name::{Addr, ReplicaId};
use ag_core::rejection::Rejection;
use ag_store::StoreError;

/// Why a replica cannot start, or has stopped.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReplicaError {
    /// Its data cannot be opened, read or written.
    #[error("cannot {operation} in the data directory")]
    Store {
        /// What was attempted.
        operation: &'static str,
        /// Why it failed.
        #[source]
        source: Arc<StoreError>,
    },
    /// The peer port cannot be opened.
    #[error("cannot listen for peers on {listen}")]
    Listen {
        /// Where.
        listen: SocketAddr,
        /// Why not.
        #[source]
        source: Arc<io::Error>,
    },
    /// The cluster is at a version that this release does not support.
    #[error(
        "the cluster is at version {cluster_version}, and this release supports {min} to {max}: install a release that \
         supports {cluster_version}"
    )]
    ClusterVersion {
        /// The cluster's.
        cluster_version: u32,
        /// The lowest that is supported.
        min: u32,
        /// The highest that is supported.
        max: u32,
    },
    /// An entry of the log cannot be understood.
    #[error("cannot apply entry {log_index} of the log, and never skips one")]
    Entry {
        /// Which.
        log_index: u64,
        /// Why, and what to do.
        #[source]
        source: Arc<ag_wire::storage::DecodeError>,
    },
    /// The data contradicts itself.
    #[error("the data of this replica is damaged: {what}; remove this replica and add a fresh one")]
    Damaged {
        /// What is wrong.
        what: String,
    },
    /// The consensus has stopped.
    #[error("the consensus of this replica has stopped: {why}")]
    Consensus {
        /// Why.
        why: String,
    },
    /// It was told to stop.
    #[error("the replica was told to stop")]
    ShutDown,
}

/// Where the leader is, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderHint {
    /// Its id.
    pub replica_id: ReplicaId,
    /// Where clients reach it.
    pub addr: Addr,
}

/// Why a command was not answered.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ProposeError {
    /// This replica does not lead, or cannot show that it still does. Nothing was done.
    #[error("this replica is not the leader")]
    NotLeader {
        /// Who is, as far as is known.
        leader: Option<LeaderHint>,
    },
    /// It may have been done, or may still be. Only a call with a request id can be repeated safely.
    #[error("the outcome is unknown: the leader was lost before it answered")]
    Unknown,
    /// Too much is waiting. Nothing was done.
    #[error("overloaded: more than {limit} commands are waiting")]
    Overloaded {
        /// How many may wait.
        limit: usize,
    },
    /// The deadline passed. Nothing was done.
    #[error("the deadline has passed")]
    DeadlineExceeded,
    /// This replica is stopping. Nothing was done.
    #[error("the replica is shutting down")]
    ShuttingDown,
    /// This replica is in no cluster yet. Nothing was done.
    #[error("this replica is in no cluster yet")]
    NoCluster,
    /// This replica has stopped after an error.
    #[error("this replica has stopped after an error")]
    Failed,
}

/// Why a change of the cluster was not made.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClusterError {
    /// A command could not be proposed, or its outcome is unknown.
    #[error("cannot {operation}")]
    Propose {
        /// What was attempted.
        operation: &'static str,
        /// Why it failed.
        #[source]
        source: ProposeError,
    },
    /// The state machine refused.
    #[error("refused")]
    Rejected(#[source] Rejection),
    /// Another replica does not answer.
    #[error("cannot reach the replica at {peer_addr}: {why}")]
    Unreachable {
        /// Where.
        peer_addr: Addr,
        /// Why.
        why: String,
    },
    /// Something about the cluster or a replica does not allow it.
    #[error("{why}")]
    Refused {
        /// What.
        why: String,
    },
    /// It has not come about in time; it may still do.
    #[error("{what} took too long; it goes on, look at the cluster's state before trying again")]
    TimedOut {
        /// What.
        what: String,
    },
    /// The data directory cannot be written.
    #[error("cannot write who this replica is")]
    Store(#[source] Arc<StoreError>),
}
