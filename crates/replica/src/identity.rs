//! Which replica of which cluster this is. Written once, never changed.

pub(crate) use ag_store::Identity;
