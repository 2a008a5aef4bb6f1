//! Every bound of the client port, in one place.

use std::time::Duration;

/// Largest request, and largest answer, of one call.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// A request as JSON may be larger than its message: bytes are base64.
pub const JSON_BYTES_MAX: usize = 6 << 20;
/// Longest query string.
pub const QUERY_BYTES_MAX: usize = 16 << 10;
/// Most pages' bytes of jobs or audit records in one answer.
pub const PAGE_BYTES_MAX: u64 = 3 << 20;
/// Most jobs that one listing looks at.
pub const SCAN_JOBS_MAX: usize = 50_000;
/// Most calls at once in this process, long polls aside.
pub const CALLS_IN_FLIGHT_MAX: usize = 4_096;
/// Most calls at once that wait for jobs.
pub const WAITING_CALLS_MAX: usize = 50_000;
/// Most connections.
pub const CONNECTIONS_MAX: usize = 20_000;
/// Most TLS handshakes at once.
pub const HANDSHAKES_MAX: usize = 256;
/// Longest TLS handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for the head of an HTTP/1.1 request.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for the body of a request.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest head of an HTTP/2 request.
pub const HEADER_LIST_BYTES_MAX: u32 = 16 << 10;
/// Most HTTP/2 streams at once on one connection.
pub const STREAMS_MAX: u32 = 1_024;
/// Most resets of one connection that may wait.
pub const PENDING_RESETS_MAX: usize = 20;
/// After how much silence a connection is probed …
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// … and how long the probe may stay unanswered.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Deadline of a call that names none; a claim's `wait` comes on top.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(30);
/// Longest deadline that is honoured.
pub const DEADLINE_MAX: Duration = Duration::from_secs(600);
/// Most queues whose counts the metrics show.
pub const METRICS_QUEUES_MAX: usize = 200;
