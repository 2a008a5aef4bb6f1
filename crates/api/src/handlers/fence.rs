//! The fence, while the cluster version is too low for the state machine to have it: replicas of an earlier release
//! would apply the same entries without it, so the proposer leaves fencing tokens out, and what the leader's own
//! applied state already shows to be stale is refused here. That is best effort, and no answer calls it fenced.

use std::collections::BTreeSet;

use ag_core::command::{Actor, Operation};
use ag_core::rejection::Rejection;

use crate::failure::{Failure, Verb};
use crate::service::{Call, Service};

/// The positions of an operation's entries that are to be refused as stale. From the fence's cluster version on there
/// are none: the state machine decides.
pub(super) fn stale(service: &Service, call: &Call, operation: &Operation) -> BTreeSet<usize> {
    let is_too_low = |cluster_version| operation.min_version() > cluster_version;
    if !service.replica.proposing_version().is_some_and(is_too_low) {
        return BTreeSet::new();
    }
    let actor = Actor::Principal(call.caller.principal.clone());
    service.replica.read(|state| state.stale_entries(&actor, operation)).into_iter().collect()
}

/// The same, for an operation on one claim.
pub(super) fn one(service: &Service, call: &Call, operation: &Operation, verb: Verb) -> Result<(), Failure> {
    if stale(service, call, operation).is_empty() {
        return Ok(());
    }
    Err(refusal(service, verb))
}

/// A stale call. The state machine was not asked.
pub(super) fn refusal(service: &Service, verb: Verb) -> Failure {
    service.metrics.refused(verb, &Rejection::StaleFencingToken);
    Failure::rejection(&Rejection::StaleFencingToken, verb, None)
}
