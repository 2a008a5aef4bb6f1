//! The leader's clocks.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use ag_core::time::{LeaseTime, WallTime};

/// The lease clock of one term: the last applied lease time, plus what the monotonic clock has counted since.
///
/// It is made when all entries of earlier terms are applied, so it starts at or after every stamp of theirs; and it
/// reads a clock that never goes back, so its own stamps rise. Between two leaders it stands still, which only makes
/// leases longer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseClock {
    anchor: LeaseTime,
    since: Instant,
}

impl LeaseClock {
    /// A clock that goes on from `anchor`, now.
    pub fn starting_at(anchor: LeaseTime) -> Self {
        Self { anchor, since: Instant::now() }
    }

    /// The time on it.
    pub fn now(&self) -> LeaseTime {
        self.at(Instant::now())
    }

    fn at(&self, instant: Instant) -> LeaseTime {
        let elapsed = instant.saturating_duration_since(self.since).as_millis();
        self.anchor.plus_ms(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }
}

/// The wall clock. It may go back.
pub(crate) fn wall_now() -> WallTime {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WallTime(0).plus_ms(u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lease_time_goes_on_from_its_anchor_and_never_back() {
        let clock = LeaseClock::starting_at(LeaseTime(5_000));
        assert_eq!(clock.at(clock.since), LeaseTime(5_000));
        assert_eq!(clock.at(clock.since + Duration::from_millis(250)), LeaseTime(5_250));
        let before = clock.since.checked_sub(Duration::from_secs(1)).unwrap_or(clock.since);
        assert_eq!(clock.at(before), LeaseTime(5_000));
    }
}
