//! Policies of queues.

use super::Decision;
use crate::audit::AuditEvent;
use crate::change::Change;
use crate::cluster_version;
use crate::command::{Actor, UpdateQueue};
use crate::limits;
use crate::queue::{Fencing, QueuePolicy};
use crate::rejection::Rejection;
use crate::state::State;

/// Changes a queue's policy; makes the queue if it does not exist.
pub(crate) fn update(state: &State, actor: &Actor, update: UpdateQueue) -> Decision<Result<QueuePolicy, Rejection>> {
    let existing = state.queue(&update.queue).map(|(policy, _)| policy.clone());
    if existing.is_none() && state.queues.len() >= limits::QUEUES_MAX {
        return Decision::nothing(Err(Rejection::TooManyQueues { max: limits::QUEUES_MAX as u64 }));
    }
    let may_fence = state.meta().cluster_version >= cluster_version::FENCING;
    if !may_fence && update.patch.fencing == Some(Fencing::Required) {
        return Decision::nothing(Err(Rejection::FencingNotSupported {
            cluster_version: state.meta().cluster_version,
        }));
    }
    let is_new = existing.is_none();
    let before = existing.unwrap_or_default();
    let patch = update.patch;
    let policy = QueuePolicy {
        paused: patch.paused.unwrap_or(before.paused),
        default_lease_ms: patch.default_lease_ms.unwrap_or(before.default_lease_ms),
        max_attempts: patch.max_attempts.unwrap_or(before.max_attempts),
        retention_ms: patch.retention_ms.unwrap_or(before.retention_ms),
        concurrency_limit: match patch.concurrency_limit {
            None => before.concurrency_limit,
            Some(limit) => Some(limit).filter(|limit| *limit > 0),
        },
        fencing: patch.fencing.unwrap_or(before.fencing),
    };
    if policy == before && !is_new {
        return Decision::nothing(Ok(policy));
    }
    let mut event = AuditEvent::new(actor, "update_queue", "done")
        .detail("paused", policy.paused)
        .detail("default_lease_ms", policy.default_lease_ms)
        .detail("max_attempts", policy.max_attempts)
        .detail("retention_ms", policy.retention_ms)
        .detail("concurrency_limit", policy.concurrency_limit.unwrap_or(0));
    if may_fence {
        event = event.detail("fencing", policy.fencing.name());
    }
    event.queue = update.queue.as_str().into();
    let changes = vec![Change::PutQueue { queue: update.queue, policy: policy.clone() }];
    Decision { value: Ok(policy), changes, event: Some(event) }
}
