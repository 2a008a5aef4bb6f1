//! What each method does.

mod audit;
mod batch;
mod cluster;
mod fence;
mod jobs;
mod page;
mod queues;

use ag_core::command::{Actor, Command, Operation};
use ag_core::name::LogPosition;
use ag_core::outcome::Outcome;

use crate::failure::{Failure, Verb};
use crate::method::Method;
use crate::service::{Call, NotRun, Reply, Service, decode};

/// Runs a method here, on the leader.
pub(crate) async fn lead(service: &Service, method: Method, body: &[u8], call: &Call) -> Result<Reply, NotRun> {
    match method {
        Method::EnqueueJob => jobs::enqueue_job(service, call, decode(body)?).await,
        Method::EnqueueJobs => jobs::enqueue_jobs(service, call, decode(body)?).await,
        Method::ClaimJob => jobs::claim_job(service, call, &decode(body)?).await,
        Method::ClaimJobs => jobs::claim_jobs(service, call, &decode(body)?).await,
        Method::HeartbeatJob => jobs::heartbeat_job(service, call, decode(body)?).await,
        Method::HeartbeatJobs => jobs::heartbeat_jobs(service, call, decode(body)?).await,
        Method::CompleteJob => jobs::complete_job(service, call, decode(body)?).await,
        Method::CompleteJobs => jobs::complete_jobs(service, call, decode(body)?).await,
        Method::FailJob => jobs::fail_job(service, call, decode(body)?).await,
        Method::ReleaseJob => jobs::release_job(service, call, &decode(body)?).await,
        Method::CancelJob => jobs::cancel_job(service, call, &decode(body)?).await,
        Method::RetryJob => jobs::retry_job(service, call, &decode(body)?).await,
        Method::UpdateQueue => queues::update_queue(service, call, &decode(body)?).await,
        Method::AddReplica => cluster::add_replica(service, call, &decode(body)?).await,
        Method::RemoveReplica => cluster::remove_replica(service, call, &decode(body)?).await,
        Method::TransferLeadership => cluster::transfer_leadership(service, call, &decode(body)?).await,
        Method::SetClusterVersion => cluster::set_cluster_version(service, call, &decode(body)?).await,
        Method::GetJob
        | Method::ListJobs
        | Method::ListQueues
        | Method::GetQueue
        | Method::ListAuditRecords
        | Method::GetAuditHead
        | Method::GetAttestation => Ok(read(service, method, body, call).await?),
        Method::GetCluster | Method::InitCluster => Ok(here(service, method, body, call).await?),
    }
}

/// Runs a method that reads, on any replica.
pub(crate) async fn read(service: &Service, method: Method, body: &[u8], call: &Call) -> Result<Reply, Failure> {
    match method {
        Method::GetJob => jobs::get_job(service, call, &decode(body)?).await,
        Method::ListJobs => jobs::list_jobs(service, call, &decode(body)?).await,
        Method::ListQueues => queues::list_queues(service, call, &decode(body)?).await,
        Method::GetQueue => queues::get_queue(service, call, &decode(body)?).await,
        Method::ListAuditRecords => audit::list_records(service, call, &decode(body)?).await,
        Method::GetAuditHead => audit::get_head(service, call, &decode(body)?).await,
        Method::GetAttestation => audit::get_attestation(service, call, &decode(body)?).await,
        _ => Err(crate::service::unknown_method(method.path())),
    }
}

/// Runs a method that any replica answers for itself.
pub(crate) async fn here(service: &Service, method: Method, body: &[u8], call: &Call) -> Result<Reply, Failure> {
    match method {
        Method::GetCluster => cluster::get_cluster(service, call).await,
        Method::InitCluster => cluster::init_cluster(service, call, &decode(body)?).await,
        _ => Err(crate::service::unknown_method(method.path())),
    }
}

/// Proposes a command. A refusal is a failure, with the code that `verb` gives it.
async fn propose(
    service: &Service,
    call: &Call,
    operation: Operation,
    verb: Verb,
) -> Result<(Outcome, LogPosition), NotRun> {
    let command = Command { actor: Actor::Principal(call.caller.principal.clone()), operation };
    let answered = service.replica.propose(command, call.deadline).await?;
    accept(service, answered.outcome, answered.applied_at, verb)
}

fn accept(
    service: &Service,
    outcome: Outcome,
    applied_at: LogPosition,
    verb: Verb,
) -> Result<(Outcome, LogPosition), NotRun> {
    match outcome {
        Outcome::Rejected(rejection) => {
            service.metrics.refused(verb, &rejection);
            Err(Failure::rejection(&rejection, verb, Some(applied_at)).into())
        }
        outcome => Ok((outcome, applied_at)),
    }
}

/// An outcome that does not belong to the command. It cannot happen; if it does, it must be seen.
fn unexpected(outcome: &Outcome) -> Failure {
    tracing::error!(?outcome, "a command came to an outcome of another");
    Failure::new(tonic::Code::Internal, "", "the command came to an outcome of another")
}

/// Waits until this replica may answer a read, and says what the read reflects.
async fn barrier(service: &Service, call: &Call, stale: bool) -> Result<Option<LogPosition>, Failure> {
    if stale {
        return Ok(service.replica.applied());
    }
    let mut backoff = std::time::Duration::from_millis(10);
    loop {
        match service.replica.read_barrier(call.deadline).await {
            Ok(at) => return Ok(Some(at)),
            Err(ag_replica::ProposeError::NotLeader { .. } | ag_replica::ProposeError::Unknown)
                if std::time::Instant::now() + backoff < call.deadline =>
            {
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(std::time::Duration::from_millis(200));
            }
            Err(error) => return Err(Failure::propose(&error)),
        }
    }
}

/// A storage error while reading. The replica latches those of its own; here the caller learns that there was one.
fn unreadable(error: &(dyn std::error::Error + 'static)) -> Failure {
    tracing::error!(error, "a stored value cannot be read");
    Failure::new(tonic::Code::Internal, "STORAGE", "a stored value cannot be read; see the replica's log")
}
