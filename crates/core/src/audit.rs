//! The audit log: one hash chain, the same bytes on every replica.
//!
//! A record's canonical bytes are, in this order:
//!
//! | field | form |
//! | --- | --- |
//! | format | 1 byte, 1 |
//! | sequence | 8 bytes |
//! | term, log index, wall time in milliseconds | 8 bytes each |
//! | actor | 1 byte, 0 the cluster itself, 1 a principal; then text |
//! | verb, outcome | text each |
//! | job id | 8 bytes, 0 for none |
//! | queue | text, empty for none |
//! | attempts | 4 bytes |
//! | worker, request id | text each, empty for none |
//! | details | 4 bytes, how many; then key and value, text each, in the order of the keys |
//!
//! Numbers are big-endian; a text is its length in 4 bytes and its UTF-8. The record's hash is SHA-256 over the hash of
//! the record before (32 zero bytes for the first) followed by the canonical bytes. Test vectors stand in
//! `docs/semantics/audit.md` and are checked by a test.

use std::collections::BTreeMap;

use crate::command::Actor;
use crate::digest::Digest;
use crate::name::{FieldError, JobId, LogPosition, PrincipalName};
use crate::time::WallTime;

const FORMAT: u8 = 1;

/// One record of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    /// Rises by one, from 1.
    pub sequence: u64,
    /// Where in the log it was applied.
    pub applied_at: LogPosition,
    /// The entry's wall time.
    pub wall_now: WallTime,
    /// What happened.
    pub event: AuditEvent,
    /// The hash of the record before; zeros for the first.
    pub previous_hash: Digest,
    /// This record's hash.
    pub hash: Digest,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEvent {
    /// Who asked.
    pub actor: Actor,
    /// What was asked.
    pub verb: String,
    /// `done`, or the reason of the refusal.
    pub outcome: String,
    /// The job, if it concerns one.
    pub job_id: Option<JobId>,
    /// The queue, empty if it concerns none.
    pub queue: String,
    /// `attempts` of the job after an accepted change; 0 in a refusal.
    pub attempts: u32,
    /// The worker label of the call, empty if it had none.
    pub worker: String,
    /// The request id of the call, empty if it had none.
    pub request_id: String,
    /// Verb-specific facts.
    pub details: BTreeMap<String, String>,
}

impl AuditEvent {
    /// An event with nothing but these.
    pub fn new(actor: &Actor, verb: &str, outcome: &str) -> Self {
        Self {
            actor: actor.clone(),
            verb: verb.into(),
            outcome: outcome.into(),
            job_id: None,
            queue: String::new(),
            attempts: 0,
            worker: String::new(),
            request_id: String::new(),
            details: BTreeMap::new(),
        }
    }

    /// With one more fact.
    pub fn detail(mut self, key: &str, value: impl ToString) -> Self {
        self.details.insert(key.into(), value.to_string());
        self
    }
}

/// The newest record's number and hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditHead {
    /// 0: no record yet.
    pub sequence: u64,
    /// Zeros: no record yet.
    pub hash: Digest,
}

impl AuditRecord {
    /// The record that follows `head`.
    pub fn after(head: AuditHead, applied_at: LogPosition, wall_now: WallTime, event: AuditEvent) -> Self {
        let mut record = Self {
            sequence: head.sequence + 1,
            applied_at,
            wall_now,
            event,
            previous_hash: head.hash,
            hash: Digest::default(),
        };
        record.hash = Digest::of_two(&head.hash.0, &record.canonical());
        record
    }

    /// This record as the head of the chain.
    pub fn head(&self) -> AuditHead {
        AuditHead { sequence: self.sequence, hash: self.hash }
    }

    /// The bytes over which the hash goes.
    pub fn canonical(&self) -> Vec<u8> {
        let event = &self.event;
        let mut out = Vec::with_capacity(192);
        out.push(FORMAT);
        for number in [self.sequence, self.applied_at.term, self.applied_at.log_index, self.wall_now.0] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        match &event.actor {
            Actor::System => {
                out.push(0);
                put_text(&mut out, "");
            }
            Actor::Principal(principal) => {
                out.push(1);
                put_text(&mut out, principal.as_str());
            }
        }
        put_text(&mut out, &event.verb);
        put_text(&mut out, &event.outcome);
        out.extend_from_slice(&event.job_id.map_or(0, |job_id| job_id.0).to_be_bytes());
        put_text(&mut out, &event.queue);
        out.extend_from_slice(&event.attempts.to_be_bytes());
        put_text(&mut out, &event.worker);
        put_text(&mut out, &event.request_id);
        out.extend_from_slice(&(event.details.len() as u32).to_be_bytes());
        for (key, value) in &event.details {
            put_text(&mut out, key);
            put_text(&mut out, value);
        }
        out
    }

    /// The record whose canonical bytes these are, after one with the hash `previous_hash`.
    pub fn from_canonical(previous_hash: Digest, canonical: &[u8]) -> Result<Self, AuditDecodeError> {
        let mut reader = Reader { rest: canonical };
        let [format] = reader.array()?;
        if format != FORMAT {
            return Err(AuditDecodeError::Format(format));
        }
        let sequence = reader.number()?;
        let applied_at = LogPosition { term: reader.number()?, log_index: reader.number()? };
        let wall_now = WallTime(reader.number()?);
        let event = reader.event()?;
        if !reader.rest.is_empty() {
            return Err(AuditDecodeError::TrailingBytes);
        }
        let hash = Digest::of_two(&previous_hash.0, canonical);
        Ok(Self { sequence, applied_at, wall_now, event, previous_hash, hash })
    }
}

/// Canonical bytes that are none.
#[derive(Debug, thiserror::Error)]
pub enum AuditDecodeError {
    /// Of a format that this release does not know.
    #[error("audit record of format {0}; this release reads format 1")]
    Format(u8),
    /// Cut off.
    #[error("audit record is cut off")]
    CutOff,
    /// More bytes than the fields take.
    #[error("audit record has trailing bytes")]
    TrailingBytes,
    /// A text is not UTF-8, keys are not in order, or a kind of actor is unknown.
    #[error("audit record is not canonical")]
    NotCanonical,
    /// The actor is no principal's name.
    #[error("audit record names an actor that can not be")]
    Actor(#[source] FieldError),
}

/// Why a chain does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// A record is missing, or out of order.
    #[error("record {found} stands where record {expected} should")]
    Sequence {
        /// The number that should stand there.
        expected: u64,
        /// The number that does.
        found: u64,
    },
    /// A record, or one before it, was changed.
    #[error("record {0}: its hash does not follow from its content and the record before")]
    Hash(u64),
    /// The chain ends before, or runs beside, a head that was seen earlier.
    #[error("the chain does not contain the earlier head {0}")]
    EarlierHead(u64),
}

/// Verifies records that follow `start`, in order. Gives the head after the last of them.
pub fn verify_chain<'a>(
    start: AuditHead,
    records: impl IntoIterator<Item = &'a AuditRecord>,
) -> Result<AuditHead, ChainError> {
    let mut head = start;
    for record in records {
        if record.sequence != head.sequence + 1 {
            return Err(ChainError::Sequence { expected: head.sequence + 1, found: record.sequence });
        }
        let hash = Digest::of_two(&head.hash.0, &record.canonical());
        if record.previous_hash != head.hash || record.hash != hash {
            return Err(ChainError::Hash(record.sequence));
        }
        head = AuditHead { sequence: record.sequence, hash };
    }
    Ok(head)
}

/// Verifies as [`verify_chain`] does, and that the chain goes through `earlier`, a head that was seen before. This
/// finds a tail that was cut off, and a chain that was written anew. `earlier` must not lie before `start`.
pub fn verify_chain_through<'a>(
    start: AuditHead,
    records: impl IntoIterator<Item = &'a AuditRecord>,
    earlier: AuditHead,
) -> Result<AuditHead, ChainError> {
    let mut head = start;
    let mut met = earlier == start;
    for record in records {
        head = verify_chain(head, [record])?;
        met |= head == earlier;
    }
    if met { Ok(head) } else { Err(ChainError::EarlierHead(earlier.sequence)) }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], AuditDecodeError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(AuditDecodeError::CutOff)?;
        self.rest = rest;
        Ok(*head)
    }

    fn number(&mut self) -> Result<u64, AuditDecodeError> {
        self.array().map(u64::from_be_bytes)
    }

    fn small(&mut self) -> Result<u32, AuditDecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    fn text(&mut self) -> Result<String, AuditDecodeError> {
        let length = self.small()? as usize;
        let (head, rest) = self.rest.split_at_checked(length).ok_or(AuditDecodeError::CutOff)?;
        self.rest = rest;
        String::from_utf8(head.to_vec()).map_err(|_| AuditDecodeError::NotCanonical)
    }

    fn actor(&mut self) -> Result<Actor, AuditDecodeError> {
        let [kind] = self.array()?;
        let name = self.text()?;
        match (kind, name.is_empty()) {
            (0, true) => Ok(Actor::System),
            (1, _) => PrincipalName::parse("actor", &name).map(Actor::Principal).map_err(AuditDecodeError::Actor),
            _ => Err(AuditDecodeError::NotCanonical),
        }
    }

    fn event(&mut self) -> Result<AuditEvent, AuditDecodeError> {
        let actor = self.actor()?;
        let (verb, outcome) = (self.text()?, self.text()?);
        let job_id = Some(JobId(self.number()?)).filter(|job_id| job_id.0 != 0);
        let queue = self.text()?;
        let attempts = self.small()?;
        let (worker, request_id) = (self.text()?, self.text()?);
        let mut details = BTreeMap::new();
        for _ in 0..self.small()? {
            let (key, value) = (self.text()?, self.text()?);
            if details.last_key_value().is_some_and(|(last, _)| *last >= key) {
                return Err(AuditDecodeError::NotCanonical);
            }
            details.insert(key, value);
        }
        Ok(AuditEvent { actor, verb, outcome, job_id, queue, attempts, worker, request_id, details })
    }
}
