//! The commands, one file each.

pub mod audit;
pub mod bench;
pub mod cluster;
pub mod dev;
pub mod job;
pub mod local;
pub mod principal;
pub mod queue;
pub mod serve;
