//! The state machine of `ag`: jobs, claims, queues, replies, members and the audit log.
//!
//! It is deterministic and does nothing else: it reads no clock, no file and no socket, draws no random number, starts
//! no thread and logs nothing. Time, actors and random values come in with the [`command::Entry`].
//!
//! # Duties of the host
//!
//! 1. It gives each entry of the replicated log to [`State::apply`], in log order, each once.
//! 2. It stores [`outcome::Applied::changes`], [`State::meta`] and the entry's place in the log in ONE atomic batch,
//!    and only THEN tells anyone the outcomes.
//! 3. When it starts, it gives the stored rows to a [`load::Loader`], and goes on with the first entry after the stored
//!    place. If the loader finds that the rows are not the ones that were stored, it MUST NOT serve.
//! 4. Only the leader stamps entries. `lease_now` is the last applied lease time plus what its monotonic clock has
//!    counted since it was elected.
//! 5. When [`State::next_lease_event`] or [`State::next_wall_event`] has come and no other command is at hand, the
//!    leader proposes an entry without commands.
//!
//! `apply` decides (reads the state, gives an outcome and changes) and evolves (carries the changes out). Applying the
//! changes alone to a copy of the state gives the same state.

mod apply;
pub mod audit;
mod canonical;
pub mod change;
pub mod cluster_version;
pub mod command;
mod decide;
pub mod digest;
mod evolve;
pub mod hash;
pub mod invariant;
pub mod job;
pub mod limits;
pub mod load;
pub mod name;
pub mod outcome;
pub mod queue;
mod ready;
pub mod rejection;
mod state;
pub mod time;

pub use state::{Meta, State};
