//! The settings of the consensus.

use std::time::Duration;

use openraft::{Config, SnapshotPolicy};

use crate::config::Timings;
use crate::error::ReplicaError;
use crate::limits;

/// How long all of a snapshot may take. A stalled one is given up far earlier, see
/// [`limits::SNAPSHOT_STALL_TIMEOUT`].
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(3_600);

/// The settings for these timings.
pub(crate) fn config(timings: &Timings) -> Result<Config, ReplicaError> {
    let config = Config {
        cluster_name: "ag".to_owned(),
        heartbeat_interval: millis(timings.heartbeat),
        // A follower that has just answered an append needs no heartbeat beside it.
        heartbeat_min_interval: Some(millis(timings.heartbeat)),
        election_timeout_min: millis(timings.election_min),
        election_timeout_max: millis(timings.election_max),
        install_snapshot_timeout: millis(SNAPSHOT_TIMEOUT),
        max_payload_entries: 128,
        max_append_entries: Some(1_024),
        replication_lag_threshold: timings.snapshot_entries.max(timings.kept_entries / 2),
        snapshot_policy: SnapshotPolicy::LogsSinceLast(timings.snapshot_entries),
        max_in_snapshot_log_to_keep: timings.kept_entries,
        // Purging one by one would leave a range tombstone for each entry.
        purge_batch_size: 2_048.min(timings.kept_entries.max(1)),
        enable_pre_vote: Some(true),
        // Leases do not survive a restart, so neither does leadership.
        enable_leader_restore: Some(false),
        // A follower whose log went back has lost acknowledged entries: it must be replaced, not filled up again.
        allow_log_reversion: None,
        ..Config::default()
    };
    config.validate().map_err(|error| ReplicaError::Consensus { why: format!("its settings do not fit: {error}") })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

const _: () = assert!(limits::SNAPSHOT_STALL_TIMEOUT.as_secs() < SNAPSHOT_TIMEOUT.as_secs());
