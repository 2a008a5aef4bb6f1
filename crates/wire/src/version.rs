//! What this release is, and which versions and formats it understands.

/// The release, such as `0.1.0`.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// The lowest cluster version that this release can take part in.
pub const CLUSTER_VERSION_MIN: u32 = 1;
/// The highest cluster version that this release can take part in.
pub const CLUSTER_VERSION_MAX: u32 = 2;
/// The format of a data directory that this release writes, and the highest that it reads.
pub const DATA_FORMAT: u32 = 1;

const _: () = assert!(CLUSTER_VERSION_MIN <= CLUSTER_VERSION_MAX);
