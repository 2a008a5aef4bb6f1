//! What both fronts share: who calls, until when, and how much at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ag_auth::{Authenticator, Caller};
use ag_core::name::FieldError;
use ag_replica::Replica;
use bytes::Bytes;
use tokio::sync::Semaphore;
use tonic::Code;

use crate::failure::Failure;
use crate::limits;
use crate::method::Method;
use crate::metrics::Metrics;
use crate::service::{Call, Reply, Service};

/// The way into the service.
pub struct Front {
    pub(crate) service: Service,
    pub(crate) replica: Replica,
    pub(crate) metrics: Arc<Metrics>,
    authenticator: Arc<Authenticator>,
    calls: Semaphore,
    waiting: Semaphore,
    draining: tokio_util::sync::CancellationToken,
}

/// The deadline of a gRPC call.
pub(crate) fn deadline_of_grpc(timeout: Option<Duration>) -> Option<Instant> {
    timeout.map(|timeout| crate::grpc::deadline(timeout.min(limits::DEADLINE_MAX)))
}

impl Front {
    /// The way into the service of this replica.
    pub fn new(
        replica: Replica,
        authenticator: Arc<Authenticator>,
        metrics: Arc<Metrics>,
        draining: tokio_util::sync::CancellationToken,
    ) -> Self {
        let service = Service::new(replica.clone(), Arc::clone(&metrics));
        let calls = Semaphore::new(limits::CALLS_IN_FLIGHT_MAX);
        let waiting = Semaphore::new(limits::WAITING_CALLS_MAX);
        Self { service, replica, metrics, authenticator, calls, waiting, draining }
    }

    /// Where the leader's clients are, as far as is known.
    pub(crate) fn leader_addr(&self) -> Option<String> {
        self.replica.leader().map(|leader| leader.addr.as_str().to_owned())
    }

    /// Who calls.
    pub(crate) fn authenticate(&self, authorization: Option<&str>) -> Result<Caller, Failure> {
        let caller = self.authenticator.authenticate(authorization);
        caller.map_err(|error| Failure::new(Code::Unauthenticated, "UNAUTHENTICATED", error.to_string()))
    }

    /// Runs a call: takes a place, and ends it at its deadline.
    pub(crate) async fn run(
        &self,
        method: Method,
        form: &'static str,
        caller: Caller,
        body: Bytes,
        deadline: Option<Instant>,
    ) -> Result<Reply, Failure> {
        let from = Instant::now();
        let outcome = self.admit(method, caller, body, deadline).await;
        let code = outcome.as_ref().map_or_else(|failure| failure.code_name(), |_| "OK");
        self.metrics.called(method, form, code, from.elapsed());
        outcome
    }

    async fn admit(
        &self,
        method: Method,
        caller: Caller,
        body: Bytes,
        deadline: Option<Instant>,
    ) -> Result<Reply, Failure> {
        if body.len() > limits::MESSAGE_BYTES_MAX {
            return Err(too_large());
        }
        if self.draining.is_cancelled() {
            return Err(Failure::propose(&ag_replica::ProposeError::ShuttingDown));
        }
        let is_claim = matches!(method, Method::ClaimJob | Method::ClaimJobs);
        let (places, limit) = match is_claim {
            true => (&self.waiting, limits::WAITING_CALLS_MAX),
            false => (&self.calls, limits::CALLS_IN_FLIGHT_MAX),
        };
        let Ok(_place) = places.try_acquire() else {
            let message = format!("too many calls at once: this replica takes {limit}");
            let mut failure = Failure::new(Code::ResourceExhausted, "TOO_MANY_CALLS", message);
            failure.facts = vec![("limit".into(), limit.to_string())];
            failure.retry_after = Some(Duration::from_millis(100));
            return Err(failure);
        };
        let longest = if is_claim { Duration::from_millis(ag_core::limits::WAIT_MS_MAX) } else { Duration::ZERO };
        let deadline = deadline.unwrap_or_else(|| crate::grpc::deadline(limits::DEADLINE_DEFAULT + longest));
        let run = self.service.handle(method, body, Call { caller, deadline });
        tokio::select! {
            outcome = run => outcome,
            () = tokio::time::sleep_until(deadline.into()) => Err(too_late()),
            () = self.draining.cancelled(), if is_claim => {
                Err(Failure::propose(&ag_replica::ProposeError::ShuttingDown))
            }
        }
    }
}

/// The request is larger than any may be, as JSON or as a message.
pub(crate) fn too_large() -> Failure {
    let bound = format!("must be at most {} bytes as a message", limits::MESSAGE_BYTES_MAX);
    FieldError::new("request", bound).into()
}

/// The deadline passed while the call ran: what came of it is not known.
fn too_late() -> Failure {
    let message =
        "the deadline has passed; whether the call was applied is unknown: repeat it with the same request_id";
    Failure::new(Code::DeadlineExceeded, "DEADLINE_EXCEEDED", message)
}
