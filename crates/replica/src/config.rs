//! What a replica is told when it starts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ag_core::name::Addr;

/// What a replica is told when it starts.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// Its data; made if it does not exist. One process at a time.
    pub data_dir: PathBuf,
    /// Where clients reach it, as told to clients and other replicas.
    pub addr: Addr,
    /// Where its peers reach it, as told to them.
    pub peer_addr: Addr,
    /// Where it listens for its peers.
    pub peer_listen: SocketAddr,
    /// TLS between replicas; `None`: none, which is only for a network that nobody else is on.
    pub peer_tls: Option<ag_auth::PeerTls>,
    /// Timeouts, and how much log is kept.
    pub timings: Timings,
    /// Whether the log is flushed to disk before it is acknowledged. `false` loses acknowledged jobs at a power cut; it
    /// is there for the control run of the test that shows this.
    pub fsync: bool,
}

/// Timeouts between replicas, and how much log is kept. The defaults fit replicas on one machine or in one region.
#[derive(Clone, Debug)]
pub struct Timings {
    /// How often the leader says that it is there. Must exceed what a slow flush to disk takes, since followers answer
    /// an append only after it.
    pub heartbeat: Duration,
    /// A follower that hears nothing for this long stands for election, at the earliest …
    pub election_min: Duration,
    /// … and at the latest after this.
    pub election_max: Duration,
    /// After how many entries a snapshot is taken.
    pub snapshot_entries: u64,
    /// How many entries that are in a snapshot stay in the log, for followers that are behind.
    pub kept_entries: u64,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(250),
            election_min: Duration::from_millis(1_000),
            election_max: Duration::from_millis(2_000),
            snapshot_entries: 20_000,
            kept_entries: 50_000,
        }
    }
}
