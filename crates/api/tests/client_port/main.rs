//! The client port of a real replica, from outside.

mod bad_input;
mod forms;
mod limits;
mod server;
