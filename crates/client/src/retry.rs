//! When a call is sent again, and after which pause.

use std::time::Duration;

use crate::error::{ClientError, Fate};

/// Reasons in errors of the service that say: nothing was proposed, so that the call cannot have had any effect.
pub const NOT_PROPOSED_REASONS: [&str; 6] =
    ["NO_LEADER", "NOT_LEADER", "NO_CLUSTER", "OVERLOADED", "SHUTTING_DOWN", "DISK_RESERVE"];

const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
const PAUSE_ASKED_MAX: Duration = Duration::from_secs(5);

/// Which errors a call may be repeated after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Any that is not final: a second effect is impossible, or the same.
    Freely,
    /// Only those that prove that nothing was proposed.
    IfNotProposed,
}

impl Repeat {
    /// Whether a call is sent again after this error.
    pub fn after(self, error: &ClientError) -> bool {
        match (error.fate(), self) {
            (Fate::Final, _) => false,
            (Fate::NotProposed, _) => true,
            (Fate::Unknown, Self::Freely) => true,
            (Fate::Unknown, Self::IfNotProposed) => false,
        }
    }
}

/// The pause before a try, where `rounds` is how often all addresses have failed in a row (from 0) and `asked` is what
/// the service asks for. A random part of it, so that clients that failed together do not come back together.
pub(crate) fn pause(rounds: u32, asked: Option<Duration>) -> Duration {
    let most = PAUSE_FIRST.saturating_mul(1 << rounds.min(10)).min(PAUSE_MAX);
    let asked = asked.unwrap_or_default().min(PAUSE_ASKED_MAX);
    asked + most.mul_f64(0.25 + 0.75 * rand::random::<f64>())
}

/// A new random request id.
pub fn new_request_id() -> String {
    format!("c-{:032x}", rand::random::<u128>())
}

/// Puts in a random request id where there is none.
pub(crate) fn fill(request_id: &mut String) {
    if request_id.is_empty() {
        *request_id = new_request_id();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_heed_what_is_asked() {
        for rounds in 0..40 {
            let most = Duration::from_millis(20 * (1 << rounds.min(6))).min(PAUSE_MAX);
            let drawn = pause(rounds, None);
            assert!(drawn <= most && drawn * 4 >= most, "{rounds}: {drawn:?}");
        }
        let asked = Duration::from_millis(300);
        assert!((asked..asked + PAUSE_FIRST * 2).contains(&pause(0, Some(asked))));
        assert!(pause(40, Some(Duration::MAX)) <= PAUSE_ASKED_MAX + PAUSE_MAX);
    }

    #[test]
    fn request_ids_are_filled_in_only_where_there_is_none() {
        let (mut given, mut empty) = ("mine".to_owned(), String::new());
        fill(&mut given);
        fill(&mut empty);
        assert_eq!(given, "mine");
        assert!((1..=128).contains(&empty.len()));
        assert_ne!(empty, new_request_id());
    }
}
