//! The log of one replica, its vote, and the mark of what was reported durable.

mod entry;
mod mark;
mod open;
mod table;

pub use entry::LogEntry;
pub use table::LogTable;
