//! What each cluster version brought. The state machine branches on nothing else: the releases of a cluster apply the
//! same entries to the same state, whichever they are.

/// From this version on the state machine compares fencing tokens, and queues can require them.
pub const FENCING: u32 = 2;
