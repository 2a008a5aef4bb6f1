//! The client port of a real replica, from outside.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bad_input;
mod forms;
mod limits;
mod server;
