//! The messages and services of ag, generated from `proto/` by `cargo xtask codegen`. No logic lives here: `ag-wire` is
//! the only translation between these and `ag-core`.

/// `agwp.v1`: what producers, workers and operators speak.
#[allow(clippy::all, clippy::pedantic, missing_docs)]
pub mod v1 {
    include!("generated/agwp.v1.rs");
}

/// `agwp.storage.v1`: what lies on disk, in the log and in snapshots.
#[allow(clippy::all, clippy::pedantic, missing_docs)]
pub mod storage_v1 {
    include!("generated/agwp.storage.v1.rs");
}

/// `agwp.peer.v1`: what replicas say to each other.
#[allow(clippy::all, clippy::pedantic, missing_docs)]
pub mod peer_v1 {
    include!("generated/agwp.peer.v1.rs");
}

/// The encoded `FileDescriptorSet` of `agwp.v1` and of all that it imports, with the `google.api.http` annotations and
/// the comments.
pub const DESCRIPTOR_SET: &[u8] = include_bytes!("generated/agwp.v1.binpb");
