//! What a caller gets.

use ag_core::name::LogPosition;
use ag_core::outcome::Outcome;

/// What a command came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Never [`Outcome::Replayed`]: a repeated call is given its first answer.
    pub outcome: Outcome,
    /// Where it was applied; for a repeated call, where the first one was. A batch of completions, of which each
    /// entry is a call of its own, says where the batch was applied.
    pub applied_at: LogPosition,
}
