//! One member of the cluster: consensus, transport between replicas, proposals, reads, membership, upgrades.
//!
//! A [`Replica`] takes commands on the leader and puts many into one entry of the log, stamped by the leader's clocks.
//! Once a majority has the entry on disk, every replica applies it to the same state machine, stores what it came to in
//! one batch, and the leader answers. Reads are served by any replica, after a [`Replica::read_barrier`].
//!
//! # Errors
//!
//! [`ProposeError`] says whether anything may have been done: only [`ProposeError::Unknown`] may have, and a command
//! may be repeated after it only with the same request id. An error of the disk, an entry that is not understood, and
//! damaged data stop the replica for good: [`Replica::failed`] resolves, and all else answers [`ProposeError::Failed`].

mod announce;
mod answered;
mod applied;
mod barrier;
mod claim;
mod clock;
mod cluster;
mod command_bytes;
mod config;
mod error;
mod failure;
mod forward;
mod hashes;
mod identity;
mod inner;
mod leadership;
pub mod limits;
mod metrics;
mod peer;
mod proposer;
mod raft;
mod replica;
mod running;
mod ticker;
mod view;
mod waiters;

pub use ag_store::StateReader;
pub use answered::Answered;
pub use config::{ReplicaConfig, Timings};
pub use error::{ClusterError, LeaderHint, ProposeError, ReplicaError};
pub use forward::{ForwardAnswer, Forwarded, RequestHandler};
pub use metrics::ReplicaMetrics;
pub use replica::Replica;
pub use view::{ClusterView, ReplicaView};
