//! What this release is, and what it can read and write.

/// This release, such as `0.1.0`.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// The lowest cluster version that this release can run at.
pub const CLUSTER_VERSION_MIN: u32 = 1;

/// The highest cluster version that this release can run at.
pub const CLUSTER_VERSION_MAX: u32 = 1;

/// The format of the data folder that this release writes, and the newest that it reads.
pub const DATA_FORMAT: u32 = 1;
