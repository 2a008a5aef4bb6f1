//! Durations on the wire.

use std::time::Duration;

/// As the wire says it. `None` only for what no setting of a worker can be.
pub(crate) fn duration(duration: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(duration).ok()
}

/// As the wire said it; `None` for a negative one.
pub(crate) fn from_duration(duration: &prost_types::Duration) -> Option<Duration> {
    Duration::try_from(*duration).ok()
}
