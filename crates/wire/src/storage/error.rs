//! Stored bytes that cannot be understood.

use ag_core::audit::AuditDecodeError;
use ag_core::name::FieldError;

use crate::version;

/// Stored bytes that this release cannot understand. They are never skipped and never guessed at.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Not even a format byte.
    #[error("a stored {what} is empty")]
    Empty {
        /// What was to be decoded.
        what: &'static str,
    },
    /// Of a format that this release does not know.
    #[error(
        "a stored {what} has format {found}, but this release ({}) reads only format {}: install a newer release",
        version::RELEASE,
        super::FORMAT
    )]
    Format {
        /// What was to be decoded.
        what: &'static str,
        /// The format byte.
        found: u8,
    },
    /// No message of its kind.
    #[error("a stored {what} is malformed")]
    Malformed {
        /// What was to be decoded.
        what: &'static str,
        /// Why.
        #[source]
        source: prost::DecodeError,
    },
    /// A field breaks its bound.
    #[error("a stored {what} has a field that can not be")]
    Field {
        /// What was to be decoded.
        what: &'static str,
        /// Which.
        #[source]
        source: FieldError,
    },
    /// A record of the audit log that is none.
    #[error("a stored record of the audit log can not be read")]
    Audit(#[source] AuditDecodeError),
    /// A command of a newer release. Skipping it would make this replica differ from the others.
    #[error(
        "the log holds a command of kind {kind} for cluster version {min_version}, but this release ({}) supports \
         cluster versions up to {}: this replica stops here instead of skipping it; install a newer release of ag \
         on it",
        version::RELEASE,
        version::CLUSTER_VERSION_MAX
    )]
    UnknownCommand {
        /// Its kind.
        kind: u32,
        /// The lowest cluster version that understands it.
        min_version: u32,
    },
}

impl DecodeError {
    /// A field of `what` that must be `bound`.
    pub(super) fn field(what: &'static str, field: &str, bound: &str) -> Self {
        Self::Field { what, source: FieldError::new(field, bound) }
    }

    /// Says of which value a field breaks its bound.
    pub(super) fn of(what: &'static str) -> impl Fn(FieldError) -> Self {
        move |source| Self::Field { what, source }
    }
}
