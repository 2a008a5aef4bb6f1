//! The only translation between the state machine's types and messages: what is stored, what is sent between replicas, and
//! what clients see.

pub mod storage;
pub mod version;
