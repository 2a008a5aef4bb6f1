//! Names and numbers of things, each parsed once at the edge and trusted from there on.

use std::fmt;
use std::sync::Arc;

use crate::limits;

/// A field that does not keep its bound. `Display` names the field and the bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {bound}")]
pub struct FieldError {
    /// The field's name on the wire, such as `jobs[3].queue`.
    pub field: String,
    /// What it must be, such as `1–128 bytes`.
    pub bound: String,
}

impl FieldError {
    /// An error for `field`, which must be `bound`.
    pub fn new(field: impl Into<String>, bound: impl Into<String>) -> Self {
        Self { field: field.into(), bound: bound.into() }
    }
}

fn check_name(field: &str, text: &str) -> Result<(), FieldError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
    let good = (1..=limits::NAME_BYTES_MAX).contains(&text.len())
        && text.chars().all(allowed)
        && !text.starts_with('/')
        && !text.ends_with('/');
    if good {
        return Ok(());
    }
    let bound = "must be 1–128 bytes of ASCII letters, digits, `.`, `_`, `-`, `/`, without `/` at either end";
    Err(FieldError::new(field, bound))
}

fn check_text(field: &str, text: &str, bytes_max: usize) -> Result<(), FieldError> {
    if (1..=bytes_max).contains(&text.len()) && !text.chars().any(char::is_control) {
        return Ok(());
    }
    Err(FieldError::new(field, format!("must be 1–{bytes_max} bytes of UTF-8 without control characters")))
}

macro_rules! text_type {
    ($(#[$doc:meta])* $name:ident, $inner:ty, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($inner);

        impl $name {
            /// Parses `text`, or says which bound `field` breaks.
            pub fn parse(field: &str, text: &str) -> Result<Self, FieldError> {
                let check: fn(&str, &str) -> Result<(), FieldError> = $check;
                check(field, text)?;
                Ok(Self(text.into()))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
    };
}

text_type!(
    /// The name of a queue: 1–128 bytes of letters, digits, `.`, `_`, `-`, `/`.
    QueueName, Arc<str>, check_name
);
text_type!(
    /// The name of a caller: as a queue's name. Invariant: contains no `|`.
    PrincipalName, Arc<str>, check_name
);
text_type!(
    /// What a worker calls itself: 1–256 bytes of UTF-8 without control characters. `|` is allowed.
    WorkerLabel, Box<str>, |field, text| check_text(field, text, limits::WORKER_LABEL_BYTES_MAX)
);
text_type!(
    /// The business's own uniqueness of a job within its queue: 1–256 bytes without control characters.
    DedupeKey, Box<str>, |field, text| check_text(field, text, limits::DEDUPE_KEY_BYTES_MAX)
);
text_type!(
    /// A caller's name for one call, to repeat it safely: 1–128 bytes without control characters.
    RequestId, Box<str>, |field, text| check_text(field, text, limits::REQUEST_ID_BYTES_MAX)
);
text_type!(
    /// The media type of an attestation: 1–256 bytes without control characters.
    AttestationType, Box<str>, |field, text| check_text(field, text, limits::ATTESTATION_TYPE_BYTES_MAX)
);
text_type!(
    /// A network address of a replica, `host:port`: 1–256 bytes without control characters.
    Addr, Box<str>, |field, text| check_text(field, text, limits::ADDR_BYTES_MAX)
);

/// Who holds a claim: `<principal>|<worker label>`. The first `|` splits the two, since a principal contains none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimedBy(Box<str>);

impl ClaimedBy {
    /// The holder that `worker` of `principal` is.
    pub fn new(principal: &PrincipalName, worker: &WorkerLabel) -> Self {
        Self(format!("{principal}|{worker}").into())
    }

    /// Takes a stored value as it is, or says that it has no `|`.
    pub fn from_stored(text: &str) -> Result<Self, FieldError> {
        match text.contains('|') {
            true => Ok(Self(text.into())),
            false => Err(FieldError::new("claimed_by", "must be `<principal>|<worker label>`")),
        }
    }

    /// `<principal>|<worker label>`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The worker label.
    pub fn worker(&self) -> &str {
        self.0.split_once('|').map_or("", |(_, worker)| worker)
    }
}

/// The number of a job: the shard in the upper 16 bits, a sequence in the lower 48. Never used twice.
/// Shown as `j` and 16 lowercase hex digits, so that the order of the texts is the order of the numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

impl JobId {
    /// Parses the form that `Display` writes. `None`: no job has this id.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix('j').filter(|digits| digits.len() == 16)?;
        let canonical = digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if canonical { u64::from_str_radix(digits, 16).ok().map(Self) } else { None }
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "j{:016x}", self.0)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The number of a replica, given by the cluster and never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u64);

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The random id of a cluster. All zeros: no cluster yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClusterId(pub [u8; 16]);

impl ClusterId {
    /// Whether the cluster has been made.
    pub fn is_set(&self) -> bool {
        self.0 != [0; 16]
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A place in the replicated log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPosition {
    /// The term of the leader that proposed the entry.
    pub term: u64,
    /// The entry's index, from 0.
    pub log_index: u64,
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.term, self.log_index)
    }
}
