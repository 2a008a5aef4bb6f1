//! The one way of a call: bytes in, bytes out. Both fronts, gRPC and HTTP, and calls that other replicas pass on end
//! here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ag_auth::{Caller, Roles};
use ag_core::name::LogPosition;
use ag_replica::{ForwardAnswer, Forwarded, ProposeError, Replica, RequestHandler};
use bytes::Bytes;
use futures::future::BoxFuture;
use tonic::Code;

use crate::failure::Failure;
use crate::handlers;
use crate::method::{Method, Place};
use crate::metrics::Metrics;

/// One call.
#[derive(Clone, Debug)]
pub struct Call {
    /// Who calls.
    pub caller: Caller,
    /// When nobody waits any more.
    pub deadline: Instant,
}

/// A call that went well.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// The encoded answer.
    pub body: Bytes,
    /// Where it was applied, or what it reflects.
    pub applied_at: Option<LogPosition>,
}

/// Why a call could not be run here.
#[derive(Debug)]
pub enum NotRun {
    /// It failed, for good.
    Failed(Failure),
    /// This replica does not lead, and nothing was done.
    NotLeader,
}

impl From<Failure> for NotRun {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<ag_core::name::FieldError> for NotRun {
    fn from(error: ag_core::name::FieldError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<ProposeError> for NotRun {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::NotLeader { .. } => Self::NotLeader,
            other => Self::Failed(Failure::propose(&other)),
        }
    }
}

/// The methods of the contract, on this replica.
#[derive(Clone)]
pub struct Service {
    pub(crate) replica: Replica,
    pub(crate) metrics: Arc<Metrics>,
}

const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_millis(200);

impl Service {
    /// The methods on this replica. Calls that other replicas pass on are run too, from here on.
    pub fn new(replica: Replica, metrics: Arc<Metrics>) -> Self {
        let service = Self { replica: replica.clone(), metrics };
        replica.set_request_handler(Arc::new(service.clone()));
        service
    }

    /// Runs a call here, or where it belongs.
    pub async fn handle(&self, method: Method, body: Bytes, call: Call) -> Result<Reply, Failure> {
        if !call.caller.may(method.permission()) {
            let (name, principal) = (method.name(), &call.caller.principal);
            let message = format!("{principal} may not call {name}");
            return Err(Failure::new(Code::PermissionDenied, "PERMISSION_DENIED", message));
        }
        match method.place() {
            Place::Here => handlers::here(self, method, &body, &call).await,
            Place::Reader => handlers::read(self, method, &body, &call).await,
            Place::Leader => self.lead(method, body, call).await,
        }
    }

    /// Runs a call on the leader, wherever it is. Only a call of which nothing was done is tried again.
    async fn lead(&self, method: Method, body: Bytes, call: Call) -> Result<Reply, Failure> {
        let mut backoff = BACKOFF_MIN;
        loop {
            let outcome = if self.replica.is_leader() {
                handlers::lead(self, method, &body, &call).await
            } else {
                self.pass_on(method, &body, &call).await
            };
            match outcome {
                Ok(reply) => return Ok(reply),
                Err(NotRun::Failed(failure)) => return Err(failure),
                Err(NotRun::NotLeader) => {}
            }
            if Instant::now() + backoff >= call.deadline {
                return Err(Failure::propose(&ProposeError::NotLeader { leader: None }));
            }
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    async fn pass_on(&self, method: Method, body: &Bytes, call: &Call) -> Result<Reply, NotRun> {
        let request = Forwarded {
            method: method.path().to_owned(),
            body: body.clone(),
            principal: call.caller.principal.clone(),
            roles: call.caller.roles.bits(),
            deadline: call.deadline,
        };
        let answer = self.replica.forward(request).await?;
        if answer.code == 0 {
            return Ok(Reply { body: answer.body, applied_at: answer.applied_at });
        }
        if answer.code == NOT_LEADER {
            return Err(NotRun::NotLeader);
        }
        let retry_after = answer.retry_after_ms.map(Duration::from_millis);
        let mut failure = Failure::of_status(answer.code, answer.message, answer.details, retry_after);
        failure.applied_at = answer.applied_at;
        Err(failure.into())
    }
}

/// Between replicas only: the replica that was taken for the leader does not lead, and nothing was done. No gRPC code.
const NOT_LEADER: i32 = -1;

impl RequestHandler for Service {
    fn handle(&self, request: Forwarded) -> BoxFuture<'static, ForwardAnswer> {
        let service = self.clone();
        Box::pin(async move { service.forwarded(request).await })
    }
}

impl Service {
    async fn forwarded(&self, request: Forwarded) -> ForwardAnswer {
        let Some(method) = Method::of_path(&request.method) else {
            return failed(&unknown_method(&request.method));
        };
        let caller = Caller { principal: request.principal, roles: Roles::from_bits(request.roles) };
        if !caller.may(method.permission()) {
            return failed(&Failure::new(Code::PermissionDenied, "PERMISSION_DENIED", "not permitted"));
        }
        let call = Call { caller, deadline: request.deadline };
        match handlers::lead(self, method, &request.body, &call).await {
            Ok(reply) => ForwardAnswer { body: reply.body, applied_at: reply.applied_at, ..ForwardAnswer::default() },
            Err(NotRun::NotLeader) => ForwardAnswer { code: NOT_LEADER, ..ForwardAnswer::default() },
            Err(NotRun::Failed(failure)) => failed(&failure),
        }
    }
}

/// There is no such method.
pub fn unknown_method(path: &str) -> Failure {
    Failure::new(Code::Unimplemented, "", format!("there is no method {path}"))
}

fn failed(failure: &Failure) -> ForwardAnswer {
    let status = failure.status();
    ForwardAnswer {
        code: status.code() as i32,
        message: status.message().to_owned(),
        details: Bytes::copy_from_slice(status.details()),
        body: Bytes::new(),
        applied_at: failure.applied_at,
        retry_after_ms: failure.retry_after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
    }
}

/// The message of a request.
pub(crate) fn decode<M: prost::Message + Default>(body: &[u8]) -> Result<M, Failure> {
    M::decode(body).map_err(|error| {
        Failure::new(
            Code::InvalidArgument,
            "INVALID_FIELD",
            format!("the request is not the message it should be: {error}"),
        )
    })
}

/// The bytes of an answer.
pub(crate) fn reply(message: &impl prost::Message, applied_at: Option<LogPosition>) -> Reply {
    Reply { body: message.encode_to_vec().into(), applied_at }
}
