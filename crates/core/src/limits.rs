//! Every bound of the state machine and of its inputs, in one place. Each has a test at the bound and one beyond it.
//!
//! Bytes are bytes of UTF-8 where the value is text; milliseconds where the name ends in `_ms`.

/// Longest queue, repository or principal name.
pub const NAME_BYTES_MAX: usize = 128;
/// Longest worker label.
pub const WORKER_LABEL_BYTES_MAX: usize = 256;
/// Most label pairs on a job.
pub const LABELS_MAX: usize = 64;
/// Longest key of a label pair.
pub const LABEL_KEY_BYTES_MAX: usize = 128;
/// Longest value of a label pair.
pub const LABEL_VALUE_BYTES_MAX: usize = 1_024;
/// Longest dedupe key.
pub const DEDUPE_KEY_BYTES_MAX: usize = 256;
/// Longest request id.
pub const REQUEST_ID_BYTES_MAX: usize = 128;
/// Largest payload of a job.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Largest result of a completion.
pub const RESULT_BYTES_MAX: usize = 1 << 20;
/// Largest attestation.
pub const ATTESTATION_BYTES_MAX: usize = 256 << 10;
/// Longest media type of an attestation.
pub const ATTESTATION_TYPE_BYTES_MAX: usize = 256;
/// Largest progress of a heartbeat.
pub const PROGRESS_BYTES_MAX: usize = 64 << 10;
/// Longest reason of a failure.
pub const REASON_BYTES_MAX: usize = 16 << 10;
/// Shortest lease.
pub const LEASE_MS_MIN: u64 = 100;
/// Longest lease: 24 hours.
pub const LEASE_MS_MAX: u64 = 24 * 3_600_000;
/// Longest wait of a claim.
pub const WAIT_MS_MAX: u64 = 60_000;
/// Longest delay, retry pause, retention, and distance of `run_at` ahead of now: 10 years of 365.25 days.
pub const DELAY_MS_MAX: u64 = 315_576_000_000;
/// Latest wall time that is accepted or kept: the end of the year 9999, the last that the wire's timestamp can say.
pub const WALL_MS_MAX: u64 = 253_402_300_799_999;
/// Largest retry budget that a request may name.
pub const MAX_ATTEMPTS_MAX: u32 = 1_000_000;
/// Most entries of a batch.
pub const BATCH_ENTRIES_MAX: usize = 1_000;
/// Most queues that one claim may name.
pub const CLAIM_QUEUES_MAX: usize = 100;
/// Largest page.
pub const PAGE_SIZE_MAX: u32 = 1_000;
/// Page size when none is named.
pub const PAGE_SIZE_DEFAULT: u32 = 100;
/// Most bytes of payload, progress, labels and texts that one batch claim hands out; the first job is handed out
/// whatever its size.
pub const CLAIM_BATCH_BYTES_MAX: u64 = 3 << 20;
/// Most queues in a cluster.
pub const QUEUES_MAX: usize = 10_000;
/// Most replicas, learners included.
pub const REPLICAS_MAX: usize = 32;
/// Longest network address of a replica.
pub const ADDR_BYTES_MAX: usize = 256;

/// Lease of claims when neither the call, nor the job, nor the queue's policy names one.
pub const LEASE_MS_DEFAULT: u64 = 30_000;
/// Retry budget when neither the job nor the queue's policy names one.
pub const MAX_ATTEMPTS_DEFAULT: u32 = 20;
/// How long finished jobs are kept when the queue's policy does not say: 7 days.
pub const RETENTION_MS_DEFAULT: u64 = 7 * 24 * 3_600_000;

/// A reply is kept at least this long, on lease time …
pub const REPLY_KEPT_MS_MIN: u64 = 600_000;
/// … and at least while it is among this many newest. Only one that is older than both is dropped.
pub const REPLIES_KEPT_MIN: usize = 100_000;
/// Most replies that are kept; beyond, calls with a request id are refused.
pub const REPLIES_MAX: usize = 10_000_000;

/// Most jobs that become ready, lapse, or are dropped by the passing of time while one entry is applied, for each of
/// these. What is left over is taken up by the next entry.
pub const SWEEP_JOBS_MAX: usize = 1_000;
/// Most commands in one entry.
pub const ENTRY_COMMANDS_MAX: usize = 256;

const _: () = assert!(LEASE_MS_MIN <= LEASE_MS_DEFAULT && LEASE_MS_DEFAULT <= LEASE_MS_MAX);
const _: () = assert!(LEASE_MS_MAX <= u32::MAX as u64);
const _: () = assert!(PAYLOAD_BYTES_MAX as u64 <= CLAIM_BATCH_BYTES_MAX);
