//! Tests of the state machine, through its public face.

// A helper of a test that unwraps fails the test with the right line.
#![allow(clippy::unwrap_used)]

mod audit;
mod cancel_races;
mod claim_order;
mod cluster;
mod common;
mod dedupe_keys;
mod fence;
mod leases;
mod names;
mod queues;
mod random_histories;
mod request_ids;
mod retry_budget;
mod rows;
mod vectors;
mod verb_table;
