//! Every bound of this crate, in one place. Bytes where the name ends in `_BYTES`, milliseconds in `_MS`.

use std::time::Duration;

/// Most commands that wait to be proposed; beyond, callers are told to come back.
pub const QUEUED_COMMANDS_MAX: usize = 16_384;
/// Most bytes of commands that wait to be proposed.
pub const QUEUED_BYTES_MAX: usize = 128 << 20;
/// Most commands in one entry.
pub const ENTRY_COMMANDS_MAX: usize = ag_core::limits::ENTRY_COMMANDS_MAX;
/// Most bytes in one entry, unless a single command is larger.
pub const ENTRY_BYTES_MAX: usize = 1 << 20;
/// Most entries on their way at once. More would make each of them smaller, not the whole faster.
pub const ENTRIES_IN_FLIGHT_MAX: usize = 8;

/// Most claims that wait for jobs.
pub const WAITERS_MAX: usize = 100_000;

/// Most bytes of entries that are read from the log at once, unless a single entry is larger.
pub const LOG_READ_BYTES_MAX: usize = 1 << 20;
/// Most bytes of the newest entries that are kept in memory, beside the newest one itself.
pub const LOG_CACHE_BYTES_MAX: usize = 32 << 20;
/// Most entries that are applied in one batch.
pub const APPLY_ENTRIES_MAX: usize = 256;
/// Most bytes of entries that are applied in one batch, unless a single entry is larger.
pub const APPLY_BYTES_MAX: usize = 4 << 20;
/// State hashes of this many last applied entries are kept, to compare replicas at a common index.
pub const HASHES_KEPT: usize = 8_192;

/// Largest message between replicas. One entry of the largest command fits.
pub const PEER_MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Most calls at once on one connection between replicas.
pub const PEER_STREAMS_MAX: u32 = 4_096;
/// Most TLS handshakes at once.
pub const PEER_HANDSHAKES_MAX: usize = 256;
/// Most appends of one follower that are answered later than the next is sent.
pub const APPENDS_IN_FLIGHT_MAX: usize = 64;
/// Bytes of a file in one message of a snapshot.
pub const SNAPSHOT_CHUNK_BYTES: usize = 512 << 10;
/// Most files of one snapshot.
pub const SNAPSHOT_FILES_MAX: usize = 100_000;

/// How long a connection may take to be made, TLS included.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// After how much silence a connection is probed.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// How long a probe may stay unanswered before the connection is closed.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(4);
/// How long the parts of a snapshot may take to make progress.
pub const SNAPSHOT_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a replica may take to answer a status question.
pub const STATUS_TIMEOUT: Duration = Duration::from_millis(800);
/// How long a replica may take to answer who it is, or to join.
pub const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
/// While claims are held, lease time advances at least this often.
pub const TICK_INTERVAL: Duration = Duration::from_millis(500);
/// What a forwarded request leaves of its deadline for the way back.
pub const FORWARD_MARGIN: Duration = Duration::from_millis(20);
/// What a waiting claim leaves of its deadline to be answered.
pub const CLAIM_MARGIN: Duration = Duration::from_millis(250);
/// A voter this many entries behind is not handed the leadership.
pub const TRANSFER_LAG_MAX: u64 = 1_000;
