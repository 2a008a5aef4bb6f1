//! The peer port: connections between replicas, and who may speak on them.

pub(crate) mod connect;
pub(crate) mod header;
pub(crate) mod listen;
pub(crate) mod service;
mod stream;
