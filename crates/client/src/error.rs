//! Why a call failed.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use tonic::{Code, ConnectError, Status};
use tonic_types::StatusExt as _;

use crate::answer::{self, Applied};
use crate::retry::NOT_PROPOSED_REASONS;

/// A field that does not keep its bound, as the service named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldViolation {
    /// The field, such as `jobs[3].queue`.
    pub field: String,
    /// What it must be.
    pub bound: String,
}

/// Why a call failed. `Display` gives the method, the code, the reason and the message; never a bearer token.
#[derive(Debug)]
pub struct ClientError(Box<Inner>);

#[derive(Debug)]
struct Inner {
    method: &'static str,
    addr: String,
    code: Code,
    reason: String,
    message: String,
    metadata: BTreeMap<String, String>,
    fields: Vec<FieldViolation>,
    retry_after: Option<Duration>,
    applied: Option<Applied>,
    fate: Fate,
    tries: u32,
    source: Option<tonic::transport::Error>,
}

/// What became of one try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The service has decided; another try would get the same.
    Final,
    /// It is certain that nothing was proposed.
    NotProposed,
    /// It may have had its effect.
    Unknown,
}

impl ClientError {
    /// The gRPC code; [`Code::Unavailable`] for errors of the connection, [`Code::DeadlineExceeded`] for the deadline.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// The reason for programs, such as `CLAIM_LOST`; empty when the service gave none.
    pub fn reason(&self) -> &str {
        &self.0.reason
    }

    /// The message for people.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Further facts from the service, such as the `limit` that was reached.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.0.metadata
    }

    /// The fields that do not keep their bounds.
    pub fn fields(&self) -> &[FieldViolation] {
        &self.0.fields
    }

    /// How long the service asks to wait before another try.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Where in the log the refusal was applied. `None`: it never got that far, or nobody knows.
    pub fn applied(&self) -> Option<Applied> {
        self.0.applied
    }

    /// Whether the call may have had its effect.
    pub fn is_unknown(&self) -> bool {
        self.0.fate == Fate::Unknown
    }

    /// Whether it is certain that nothing was proposed, and so nothing changed.
    pub fn is_not_proposed(&self) -> bool {
        self.0.fate == Fate::NotProposed
    }

    /// How often the call was sent.
    pub fn tries(&self) -> u32 {
        self.0.tries
    }

    pub(crate) fn fate(&self) -> Fate {
        self.0.fate
    }

    pub(crate) fn after_tries(mut self, tries: u32) -> Self {
        self.0.tries = tries;
        self
    }

    fn new(method: &'static str, addr: &str, code: Code, message: String, fate: Fate) -> Self {
        Self(Box::new(Inner {
            method,
            addr: addr.into(),
            code,
            reason: String::new(),
            message,
            metadata: BTreeMap::new(),
            fields: Vec::new(),
            retry_after: None,
            applied: None,
            fate,
            tries: 1,
            source: None,
        }))
    }

    pub(crate) fn connect(method: &'static str, addr: &str, source: tonic::transport::Error) -> Self {
        let message = "cannot connect".into();
        let mut error = Self::new(method, addr, Code::Unavailable, message, Fate::NotProposed);
        error.0.source = Some(source);
        error
    }

    /// The time of one try is over. Nothing is known about it, unless the connection was still being made.
    pub(crate) fn timed_out(method: &'static str, addr: &str, fate: Fate) -> Self {
        Self::new(method, addr, Code::DeadlineExceeded, "no answer in time".into(), fate)
    }

    pub(crate) fn status(method: &'static str, addr: &str, status: &Status) -> Self {
        let code = if status.source().is_some() { Code::Unavailable } else { status.code() };
        let mut error = Self::new(method, addr, code, status.message().into(), Fate::Unknown);
        let inner = &mut *error.0;
        if let Some(info) = status.get_details_error_info() {
            inner.reason = info.reason;
            inner.metadata = info.metadata.into_iter().collect();
        }
        inner.fields = fields(status, &inner.metadata);
        inner.retry_after = status.get_details_retry_info().and_then(|info| info.retry_delay);
        inner.applied = answer::applied(status.metadata());
        inner.fate = fate(status, &inner.reason, inner.applied);
        error
    }
}

/// Fields in the form of `google.rpc.BadRequest`, else the one that the facts of the reason name.
fn fields(status: &Status, metadata: &BTreeMap<String, String>) -> Vec<FieldViolation> {
    if let Some(bad) = status.get_details_bad_request() {
        let violations = bad.field_violations.into_iter();
        return violations.map(|bad| FieldViolation { field: bad.field, bound: bad.description }).collect();
    }
    let fact = |name| metadata.get(name).cloned();
    let named = fact("field").zip(fact("bound")).map(|(field, bound)| FieldViolation { field, bound });
    named.into_iter().collect()
}

/// A status with a source was made on this side, out of an error of the connection; one without came from the service.
fn fate(status: &Status, reason: &str, applied: Option<Applied>) -> Fate {
    if applied.is_some() {
        return Fate::Final;
    }
    if let Some(source) = status.source() {
        return if is_connect(source) { Fate::NotProposed } else { Fate::Unknown };
    }
    let says_not_proposed = NOT_PROPOSED_REASONS.contains(&reason);
    match status.code() {
        Code::Unavailable if says_not_proposed => Fate::NotProposed,
        Code::ResourceExhausted if says_not_proposed => Fate::NotProposed,
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => Fate::Unknown,
        Code::Ok
        | Code::Unknown
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss
        | Code::Unauthenticated => Fate::Final,
    }
}

fn is_connect(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<ConnectError>() {
            return true;
        }
        next = error.source();
    }
    false
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { method, addr, code, reason, message, tries, .. } = &*self.0;
        write!(f, "{method} at {addr}: {code:?}")?;
        if !reason.is_empty() {
            write!(f, " {reason}")?;
        }
        if !message.is_empty() {
            write!(f, ": {message}")?;
        }
        if *tries > 1 {
            write!(f, " (after {tries} tries)")?;
        }
        Ok(())
    }
}

impl StdError for ClientError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| source as _)
    }
}
