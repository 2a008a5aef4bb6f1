//! Failures of calls, and the one table from refusals and errors to codes.

use ag_core::name::{FieldError, LogPosition};
use ag_core::rejection::Rejection;
use ag_proto::v1;
use ag_replica::ProposeError;
use bytes::Bytes;
use std::time::Duration;
use tonic::Code;
use tonic_types::{ErrorDetail, ErrorDetails, StatusExt as _};

/// The domain of all reasons.
pub const DOMAIN: &str = "agwp.v1";

/// A call that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The gRPC code.
    pub code: Code,
    /// For people.
    pub message: String,
    /// For programs.
    pub reason: String,
    /// Facts beside the reason, such as the field.
    pub facts: Vec<(String, String)>,
    /// When to try again.
    pub retry_after: Option<Duration>,
    /// Where the state machine refused.
    pub applied_at: Option<LogPosition>,
}

/// What is asked of the state machine: the same refusal has another code for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Enqueue,
    Claim,
    Heartbeat,
    Complete,
    Fail,
    Release,
    Cancel,
    Retry,
    Get,
    UpdateQueue,
    Cluster,
}

impl Verb {
    /// As in the audit log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Enqueue => "enqueue",
            Self::Claim => "claim",
            Self::Heartbeat => "heartbeat",
            Self::Complete => "complete",
            Self::Fail => "fail",
            Self::Release => "release",
            Self::Cancel => "cancel",
            Self::Retry => "retry",
            Self::Get => "get",
            Self::UpdateQueue => "update_queue",
            Self::Cluster => "cluster",
        }
    }

    /// To these a claim that was lost is not there, rather than in the wrong state.
    fn is_of_a_claim(self) -> bool {
        matches!(self, Self::Heartbeat | Self::Fail | Self::Release)
    }
}

impl Failure {
    /// A failure with nothing but these.
    pub fn new(code: Code, reason: &str, message: impl Into<String>) -> Self {
        let (message, reason) = (message.into(), reason.to_owned());
        Self { code, message, reason, facts: Vec::new(), retry_after: None, applied_at: None }
    }

    /// A field that breaks its bound.
    pub fn field(error: &FieldError) -> Self {
        let is_token = error.field.ends_with("fencing_token") || error.field.ends_with("fencingToken");
        let reason = if is_token { "INVALID_FENCING_TOKEN" } else { "INVALID_FIELD" };
        let mut failure = Self::new(Code::InvalidArgument, reason, error.to_string());
        failure.facts = vec![("field".into(), error.field.clone()), ("bound".into(), error.bound.clone())];
        failure
    }

    /// A refusal by the state machine, applied there.
    pub fn rejection(rejection: &Rejection, verb: Verb, applied_at: Option<LogPosition>) -> Self {
        let code = code_of(rejection, verb);
        let mut failure = Self::new(code, rejection.reason(), rejection.to_string());
        failure.applied_at = applied_at;
        match rejection {
            Rejection::RequestIdReused => {
                failure.facts = vec![
                    ("field".into(), "request_id".into()),
                    ("bound".into(), "must not be used again for a call with other content".into()),
                ];
            }
            Rejection::AlreadyCompleted { by_caller } => {
                failure.facts = vec![("completedByCaller".into(), by_caller.to_string())];
            }
            Rejection::TooManyReplies { max }
            | Rejection::TooManyQueues { max }
            | Rejection::TooManyReplicas { max } => failure.facts = vec![("limit".into(), max.to_string())],
            Rejection::JobNotFound
            | Rejection::FencingTokenRequired
            | Rejection::StaleFencingToken
            | Rejection::ClaimLost
            | Rejection::JobNotRetryable
            | Rejection::DedupeKeyTaken
            | Rejection::ClusterExists
            | Rejection::ClusterVersion { .. }
            | Rejection::FencingNotSupported { .. }
            | Rejection::ReplicaNotFound => {}
        }
        failure
    }

    /// A command that was not answered.
    pub fn propose(error: &ProposeError) -> Self {
        let soon = Some(Duration::from_millis(200));
        let (code, reason, retry_after) = match error {
            ProposeError::NotLeader { .. } => (Code::Unavailable, "NO_LEADER", soon),
            ProposeError::Unknown => (Code::Unavailable, "OUTCOME_UNKNOWN", soon),
            ProposeError::Overloaded { .. } => (Code::ResourceExhausted, "OVERLOADED", soon),
            ProposeError::DeadlineExceeded => (Code::DeadlineExceeded, "DEADLINE_EXCEEDED", None),
            ProposeError::ShuttingDown => (Code::Unavailable, "SHUTTING_DOWN", soon),
            ProposeError::NoCluster => (Code::Unavailable, "NO_CLUSTER", Some(Duration::from_secs(1))),
            ProposeError::Failed => (Code::Unavailable, "REPLICA_FAILED", None),
        };
        let message = match error {
            ProposeError::Unknown => {
                "the outcome is unknown: the call may or may not have been applied; repeat it with the same request_id"
                    .into()
            }
            ProposeError::NotLeader { .. } => "there is no leader at the moment; nothing was done".into(),
            ProposeError::Overloaded { .. }
            | ProposeError::DeadlineExceeded
            | ProposeError::ShuttingDown
            | ProposeError::NoCluster
            | ProposeError::Failed => error.to_string(),
        };
        Self { retry_after, ..Self::new(code, reason, message) }
    }

    /// The gRPC status, with `google.rpc.ErrorInfo`.
    pub fn status(&self) -> tonic::Status {
        let mut details = ErrorDetails::new();
        if !self.reason.is_empty() {
            details.set_error_info(
                self.reason.clone(),
                DOMAIN,
                self.facts.iter().cloned().collect::<std::collections::HashMap<_, _>>(),
            );
        }
        if let Some(retry_after) = self.retry_after {
            details.set_retry_info(Some(retry_after));
        }
        tonic::Status::with_error_details(self.code, self.message.clone(), details)
    }

    /// The failure that a status of another replica tells of.
    pub fn of_status(code: i32, message: String, details: Bytes, retry_after: Option<Duration>) -> Self {
        let status = tonic::Status::with_details(Code::from_i32(code), message, details);
        let mut failure = Self::new(status.code(), "", status.message());
        failure.retry_after = retry_after;
        for detail in status.get_error_details_vec() {
            match detail {
                ErrorDetail::ErrorInfo(info) => {
                    failure.reason = info.reason;
                    failure.facts = info.metadata.into_iter().collect();
                    failure.facts.sort();
                }
                ErrorDetail::RetryInfo(info) => failure.retry_after = info.retry_delay.or(retry_after),
                _ => {}
            }
        }
        failure
    }

    /// The status of one entry of a batch.
    pub fn entry_status(self) -> v1::EntryStatus {
        v1::EntryStatus { code: self.code as i32, message: self.message, reason: self.reason }
    }

    /// The HTTP status of the contract's table.
    pub fn http_status(&self) -> http::StatusCode {
        match self.code {
            Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => http::StatusCode::BAD_REQUEST,
            Code::Unauthenticated => http::StatusCode::UNAUTHORIZED,
            Code::PermissionDenied => http::StatusCode::FORBIDDEN,
            Code::NotFound => http::StatusCode::NOT_FOUND,
            Code::AlreadyExists | Code::Aborted => http::StatusCode::CONFLICT,
            Code::ResourceExhausted => http::StatusCode::TOO_MANY_REQUESTS,
            Code::Unavailable => http::StatusCode::SERVICE_UNAVAILABLE,
            Code::DeadlineExceeded => http::StatusCode::GATEWAY_TIMEOUT,
            Code::Unimplemented => http::StatusCode::NOT_IMPLEMENTED,
            Code::Cancelled => http::StatusCode::REQUEST_TIMEOUT,
            Code::Ok | Code::Unknown | Code::Internal | Code::DataLoss => http::StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The name of the gRPC code, as in JSON errors.
    pub fn code_name(&self) -> &'static str {
        match self.code {
            Code::Ok => "OK",
            Code::Cancelled => "CANCELLED",
            Code::Unknown => "UNKNOWN",
            Code::InvalidArgument => "INVALID_ARGUMENT",
            Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Code::NotFound => "NOT_FOUND",
            Code::AlreadyExists => "ALREADY_EXISTS",
            Code::PermissionDenied => "PERMISSION_DENIED",
            Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Code::FailedPrecondition => "FAILED_PRECONDITION",
            Code::Aborted => "ABORTED",
            Code::OutOfRange => "OUT_OF_RANGE",
            Code::Unimplemented => "UNIMPLEMENTED",
            Code::Internal => "INTERNAL",
            Code::Unavailable => "UNAVAILABLE",
            Code::DataLoss => "DATA_LOSS",
            Code::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

impl From<FieldError> for Failure {
    fn from(error: FieldError) -> Self {
        Self::field(&error)
    }
}

/// A lost claim, and an older one, is a failed precondition to a completion, and a claim that is not there to the other
/// verbs.
fn code_of(rejection: &Rejection, verb: Verb) -> Code {
    match rejection {
        Rejection::RequestIdReused => Code::InvalidArgument,
        Rejection::TooManyReplies { .. } | Rejection::TooManyQueues { .. } | Rejection::TooManyReplicas { .. } => {
            Code::ResourceExhausted
        }
        Rejection::JobNotFound | Rejection::ReplicaNotFound => Code::NotFound,
        Rejection::ClaimLost | Rejection::StaleFencingToken if verb.is_of_a_claim() => Code::NotFound,
        Rejection::ClaimLost | Rejection::StaleFencingToken | Rejection::FencingTokenRequired => {
            Code::FailedPrecondition
        }
        Rejection::AlreadyCompleted { .. }
        | Rejection::JobNotRetryable
        | Rejection::ClusterVersion { .. }
        | Rejection::FencingNotSupported { .. } => Code::FailedPrecondition,
        Rejection::DedupeKeyTaken | Rejection::ClusterExists => Code::AlreadyExists,
    }
}
