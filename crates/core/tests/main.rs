//! Tests of the state machine, through its public face.

// A helper of a test that unwraps fails the test with the right line.
#![allow(clippy::unwrap_used)]

mod common;
mod verb_table;
mod leases;
mod retry_budget;
mod request_ids;
mod dedupe_keys;
mod cancel_races;
mod claim_order;
mod queues;
mod random_histories;
