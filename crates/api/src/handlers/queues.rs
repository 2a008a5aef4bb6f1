//! Queues.

use ag_core::State;
use ag_core::cluster_version;
use ag_core::command::Operation;
use ag_core::digest::Digest;
use ag_core::name::QueueName;
use ag_core::outcome::Outcome;
use ag_core::queue::Fencing;
use ag_core::rejection::Rejection;
use ag_core::time::WallTime;
use ag_proto::v1;
use ag_wire::{answer, request};
use tonic::Code;

use super::{barrier, page, propose, unexpected};
use crate::failure::{Failure, Verb};
use crate::service::{Call, NotRun, Reply, Service, reply};

fn show(state: &State, name: &QueueName, wall_now: WallTime) -> Option<v1::Queue> {
    let (policy, counts) = state.queue(name)?;
    Some(answer::queue(name.as_str(), policy, counts, state.oldest_ready(name), wall_now))
}

fn wall_now() -> WallTime {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    WallTime(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

pub(super) async fn list_queues(
    service: &Service,
    call: &Call,
    request: &v1::ListQueuesRequest,
) -> Result<Reply, Failure> {
    let page_size = request::page_size(request.page_size)?;
    let asked_for = Digest::of(b"queues");
    let after = page::open(&request.page_token, &asked_for)?;
    let after = after.map(|name| QueueName::parse("page_token", &name)).transpose().map_err(|_| page::made_up())?;
    let at = barrier(service, call, request.stale).await?;
    let (queues, more) = service.replica.read(|state| {
        let mut names = state.queues_after(after.as_ref());
        let queues: Vec<_> = names.by_ref().take(page_size).filter_map(|name| show(state, name, wall_now())).collect();
        (queues, names.next().is_some())
    });
    let last = queues.last().filter(|_| more).map(|queue| page::seal(&queue.queue, &asked_for));
    Ok(reply(&v1::ListQueuesResponse { queues, next_page_token: last.unwrap_or_default() }, at))
}

pub(super) async fn get_queue(service: &Service, call: &Call, request: &v1::GetQueueRequest) -> Result<Reply, Failure> {
    let name = QueueName::parse("queue", &request.queue)?;
    let at = barrier(service, call, request.stale).await?;
    let queue = service.replica.read(|state| show(state, &name, wall_now()));
    let queue = queue.ok_or_else(|| Failure::new(Code::NotFound, "QUEUE_NOT_FOUND", "there is no such queue"))?;
    Ok(reply(&queue, at))
}

pub(super) async fn update_queue(
    service: &Service,
    call: &Call,
    request: &v1::UpdateQueueRequest,
) -> Result<Reply, NotRun> {
    let update = request::update_queue(request)?;
    let name = update.queue.clone();
    let requires_fence = update.patch.fencing == Some(Fencing::Required);
    let is_too_low = |cluster_version: u32| cluster_version < cluster_version::FENCING;
    if let Some(cluster_version) = service.replica.proposing_version().filter(|v| requires_fence && is_too_low(*v)) {
        return Err(fencing_not_supported(service, cluster_version).into());
    }
    let operation = Operation::UpdateQueue(update);
    match propose(service, call, operation, Verb::UpdateQueue).await? {
        // It was proposed by an older version's rules, which leave it out.
        (Outcome::Queue(policy), _) if requires_fence && policy.fencing != Fencing::Required => {
            let cluster_version = service.replica.read(|state| state.meta().cluster_version);
            Err(fencing_not_supported(service, cluster_version).into())
        }
        (Outcome::Queue(policy), at) => {
            let shown = service.replica.read(|state| show(state, &name, wall_now()));
            let shown = shown.map(|queue| v1::Queue {
                policy: answer::queue("", &policy, Default::default(), None, WallTime(0)).policy,
                ..queue
            });
            Ok(reply(&shown.unwrap_or_default(), Some(at)))
        }
        (other, _) => Err(unexpected(&other).into()),
    }
}

fn fencing_not_supported(service: &Service, cluster_version: u32) -> Failure {
    let rejection = Rejection::FencingNotSupported { cluster_version };
    service.metrics.refused(Verb::UpdateQueue, &rejection);
    Failure::rejection(&rejection, Verb::UpdateQueue, None)
}
