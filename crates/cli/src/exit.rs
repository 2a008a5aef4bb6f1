//! Exit codes, and which error gets which.

use ag_client::{ClientError, Code};
use ag_replica::ReplicaError;
use ag_wire::storage::DecodeError;

/// Done.
pub const OK: u8 = 0;
/// Anything that has no code of its own.
pub const FAILED: u8 = 1;
/// The command line, the configuration or a field of the call is not good.
pub const USAGE: u8 = 2;
/// What was asked for does not exist.
pub const NOT_FOUND: u8 = 3;
/// The state machine refused.
pub const REFUSED: u8 = 4;
/// No replica answered in time, or there is no leader.
pub const UNAVAILABLE: u8 = 5;
/// Credentials are missing, wrong, or do not permit the call.
pub const NOT_PERMITTED: u8 = 6;
/// `ag serve`: the data is damaged or has lost acknowledged entries.
pub const DAMAGED: u8 = 10;
/// `ag serve`: the cluster or the data needs a newer release.
pub const NEEDS_NEWER_RELEASE: u8 = 11;
/// `ag serve`: an address cannot be listened on.
pub const ADDRESS: u8 = 12;
/// `ag serve`: another process has the data folder open.
pub const DATA_IN_USE: u8 = 13;

/// Shown by `ag help`.
pub const HELP: &str = "\
Exit codes: 0 done · 1 failed · 2 usage, or a field of the call is not good · 3 not found · 4 refused by the state \
machine · 5 unavailable, or the deadline passed · 6 not authenticated or not permitted. `ag serve` and what runs it: \
10 the data is damaged or has lost acknowledged entries · 11 a newer release is needed · 12 an address cannot be \
listened on · 13 the data directory is in use.";

/// An error that ends the program with a code of its own.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Exit {
    /// See the constants.
    pub code: u8,
    /// For people.
    pub message: String,
}

impl Exit {
    /// An error about how the program was called.
    pub fn usage(message: impl Into<String>) -> anyhow::Error {
        Self { code: USAGE, message: message.into() }.into()
    }
}

/// The exit code of an error.
pub fn code_of(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if let Some(exit) = cause.downcast_ref::<Exit>() {
            return exit.code;
        }
        if let Some(error) = cause.downcast_ref::<ClientError>() {
            return of_call(error);
        }
        if let Some(error) = cause.downcast_ref::<ReplicaError>() {
            return of_replica(error);
        }
    }
    FAILED
}

fn of_call(error: &ClientError) -> u8 {
    // `not_found` for some verbs, `failed_precondition` for others, and a refusal for all of them.
    if error.reason() == "CLAIM_LOST" {
        return REFUSED;
    }
    match error.code() {
        Code::Ok => OK,
        Code::InvalidArgument | Code::OutOfRange => USAGE,
        Code::NotFound => NOT_FOUND,
        Code::FailedPrecondition | Code::AlreadyExists | Code::Aborted | Code::ResourceExhausted => REFUSED,
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => UNAVAILABLE,
        Code::Unauthenticated | Code::PermissionDenied => NOT_PERMITTED,
        // Not what the service said: the connection broke, or the other side speaks something else.
        Code::Unknown | Code::Internal if error.is_unknown() => UNAVAILABLE,
        Code::Unknown | Code::Unimplemented | Code::Internal | Code::DataLoss => FAILED,
    }
}

fn of_replica(error: &ReplicaError) -> u8 {
    match error {
        ReplicaError::Listen { .. } => ADDRESS,
        ReplicaError::ClusterVersion { .. } => NEEDS_NEWER_RELEASE,
        ReplicaError::Entry { source, .. } => match source.as_ref() {
            DecodeError::UnknownCommand { .. } | DecodeError::Format { .. } => NEEDS_NEWER_RELEASE,
            DecodeError::Empty { .. }
            | DecodeError::Malformed { .. }
            | DecodeError::Field { .. }
            | DecodeError::Audit(_) => DAMAGED,
        },
        ReplicaError::Damaged { .. } => DAMAGED,
        ReplicaError::Store { source, .. } => match source.as_ref() {
            ag_store::StoreError::Locked { .. } => DATA_IN_USE,
            ag_store::StoreError::NewerFormat { .. } => NEEDS_NEWER_RELEASE,
            other if other.is_corruption() => DAMAGED,
            _ => FAILED,
        },
        ReplicaError::Consensus { .. } | ReplicaError::ShutDown => FAILED,
    }
}
