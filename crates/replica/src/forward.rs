//! Requests of clients that are passed on to the leader, once.

use std::time::{Duration, Instant};

use ag_core::name::{LogPosition, PrincipalName, ReplicaId};
use ag_proto::peer_v1 as peer;
use bytes::Bytes;
use futures::future::BoxFuture;
use tonic::Code;

use crate::error::ProposeError;
use crate::leadership::Leadership;
use crate::limits;
use crate::peer::connect::was_not_sent;
use crate::peer::header::Header;
use crate::running::Running;

/// Longest time that a forwarded request is worked on.
pub(crate) const TIMEOUT_MS_MAX: u64 = 10 * 60_000;

/// Runs forwarded requests, on the leader. If the future is dropped, the caller is gone.
pub trait RequestHandler: Send + Sync + 'static {
    /// Runs `request` here; it must not be passed on again.
    fn handle(&self, request: Forwarded) -> BoxFuture<'static, ForwardAnswer>;
}

/// A client's request on its way to the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// The gRPC method, such as `/agwp.v1.JobService/ClaimJob`.
    pub method: String,
    /// The request's bytes as they came, so that fields of newer clients survive.
    pub body: Bytes,
    /// Who asks, authenticated by the replica that passes it on.
    pub principal: PrincipalName,
    /// The caller's roles, as the bits of `ag_auth::Roles`.
    pub roles: u32,
    /// When nobody waits any more.
    pub deadline: Instant,
}

/// The leader's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardAnswer {
    /// The gRPC status code; 0 is a success.
    pub code: i32,
    /// The status message.
    pub message: String,
    /// The encoded `google.rpc.Status`; empty without details.
    pub details: Bytes,
    /// The answer's bytes; empty for an error.
    pub body: Bytes,
    /// Where it was applied, or what it reflects.
    pub applied_at: Option<LogPosition>,
    /// When to try again, in milliseconds.
    pub retry_after_ms: Option<u64>,
}

/// Passes a request on to the leader.
pub(crate) async fn forward(running: &Running, request: Forwarded) -> Result<ForwardAnswer, ProposeError> {
    let now = Instant::now();
    let Some(left) = request
        .deadline
        .checked_duration_since(now)
        .and_then(|left| left.checked_sub(limits::FORWARD_MARGIN).filter(|left| !left.is_zero()))
    else {
        return Err(ProposeError::DeadlineExceeded);
    };
    let leader = running.leader().filter(|(replica_id, _)| *replica_id != running.here.replica_id);
    let Some((leader, peer_addr)) = leader else { return Err(ProposeError::NotLeader { leader: None }) };
    let message = peer::ForwardRequest {
        method: request.method,
        body: request.body,
        principal: request.principal.as_str().to_owned(),
        roles: request.roles,
        timeout_ms: millis(left),
    };
    let header = Header { from: running.here, to: leader };
    let mut client = running.connector.shared(&peer_addr);
    let forwarded = client.forward(header.request(message));
    let answered = tokio::select! {
        answered = tokio::time::timeout(left + limits::FORWARD_MARGIN, forwarded) => answered,
        () = superseded(running, leader) => {
            tracing::debug!(%leader, "another replica leads now; a request that was passed on has no answer");
            return Err(ProposeError::Unknown);
        }
    };
    match answered {
        Ok(Ok(response)) => Ok(parse_answer(response.into_inner())),
        // Refused before anybody looked at it, or never sent.
        Ok(Err(status)) if status.code() == Code::FailedPrecondition || was_not_sent(&status) => {
            tracing::debug!(%status, %leader, "a request was not passed on");
            Err(ProposeError::NotLeader { leader: running.applied.hint(Some(leader.0)) })
        }
        Ok(Err(status)) => {
            tracing::debug!(%status, %leader, "a request that was passed on has no answer");
            Err(ProposeError::Unknown)
        }
        Err(_) => Err(ProposeError::Unknown),
    }
}

/// Another replica leads. A leader that was stopped, or cut off, may never answer; one that handed over in good order
/// still does, for which there is a little time.
async fn superseded(running: &Running, leader: ReplicaId) {
    let mut leadership = running.leadership.clone();
    let is_over = leadership.wait_for(|now| match now {
        Leadership::Following { leader: Some(now) } => *now != leader.0,
        Leadership::Following { leader: None } => false,
        Leadership::Rising | Leadership::Leading(_) | Leadership::Stopped => true,
    });
    let _ = is_over.await;
    tokio::time::sleep(limits::FORWARD_MARGIN).await;
}

/// The answer as a message.
pub(crate) fn answer_message(answer: ForwardAnswer) -> peer::ForwardResponse {
    let applied_at = answer.applied_at.map(|at| peer::LogId { term: at.term, leader_id: 0, log_index: at.log_index });
    peer::ForwardResponse {
        code: answer.code,
        message: answer.message,
        details: answer.details,
        body: answer.body,
        applied_at,
        retry_after_ms: answer.retry_after_ms,
    }
}

fn parse_answer(message: peer::ForwardResponse) -> ForwardAnswer {
    ForwardAnswer {
        code: message.code,
        message: message.message,
        details: message.details,
        body: message.body,
        applied_at: message.applied_at.map(|at| LogPosition { term: at.term, log_index: at.log_index }),
        retry_after_ms: message.retry_after_ms,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
