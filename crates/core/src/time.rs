//! The two clocks, both carried in the replicated entry and never read while applying it.

/// A point on the lease clock, in milliseconds. It never jumps: the last applied lease time plus what the leader's
/// monotonic clock has counted since it was elected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseTime(pub u64);

/// A point on the wall clock, in milliseconds since 1970 in UTC, as the leader stamped it. It may go back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WallTime(pub u64);

impl LeaseTime {
    /// This point, `ms` milliseconds later.
    pub fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }
}

impl WallTime {
    /// This point, `ms` milliseconds later, at most [`crate::limits::WALL_MS_MAX`].
    pub fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms).min(crate::limits::WALL_MS_MAX))
    }
}
