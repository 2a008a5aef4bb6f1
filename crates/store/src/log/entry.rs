//! One entry of the log as a value of the table.
//!
//! | field | form |
//! | --- | --- |
//! | format | 1 byte, 1 |
//! | kind | 1 byte |
//! | term, leader | 8 bytes each, big-endian |
//! | payload | the rest |
//!
//! The key is the index, 8 bytes, big-endian. The value is sealed.

use ag_wire::storage::{DecodeError, EntryId, FORMAT};
use bytes::Bytes;

use crate::StoreError;
use crate::seal::{Table, seal, unseal};

/// Bytes before the payload.
const HEAD_BYTES: usize = 18;

/// One entry of the log. What kind and payload mean is the consensus layer's business.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Which one.
    pub entry_id: EntryId,
    /// What the payload is.
    pub kind: u8,
    /// Opaque.
    pub payload: Bytes,
}

impl LogEntry {
    /// About how many bytes it takes up in a message or on disk.
    pub fn bytes(&self) -> usize {
        HEAD_BYTES + self.payload.len()
    }

    /// Replaces `value` with the stored form.
    pub(super) fn encode(&self, value: &mut Vec<u8>) {
        value.clear();
        value.reserve(self.bytes() + 4);
        value.push(FORMAT);
        value.push(self.kind);
        value.extend_from_slice(&self.entry_id.position.term.to_be_bytes());
        value.extend_from_slice(&self.entry_id.leader.0.to_be_bytes());
        value.extend_from_slice(&self.payload);
        seal(Table::LogEntries, &key(self.entry_id.log_index()), value);
    }

    /// The entry at `log_index` with this stored form.
    pub(super) fn decode(log_index: u64, value: Box<[u8]>) -> Result<Self, StoreError> {
        let (entry_id, kind, payload) = split(log_index, &value)?;
        let end = HEAD_BYTES + payload.len();
        Ok(Self { entry_id, kind, payload: Bytes::from(value).slice(HEAD_BYTES..end) })
    }

    /// Which entry this stored form is.
    pub(super) fn decode_id(log_index: u64, value: &[u8]) -> Result<EntryId, StoreError> {
        split(log_index, value).map(|(entry_id, ..)| entry_id)
    }
}

fn split(log_index: u64, value: &[u8]) -> Result<(EntryId, u8, &[u8]), StoreError> {
    let what = || format!("log entry {log_index}");
    let value = unseal(Table::LogEntries, &key(log_index), value)
        .map_err(|_| StoreError::corrupt(what(), "its checksum does not hold"))?;
    let short = || StoreError::corrupt(what(), "it is too short");
    let (head, payload) = value.split_first_chunk::<HEAD_BYTES>().ok_or_else(short)?;
    if head[0] != FORMAT {
        let source = DecodeError::Format { what: "log entry", found: head[0] };
        return Err(StoreError::Decode { what: what(), source });
    }
    let number = |at: usize| u64::from_be_bytes(head[at..at + 8].try_into().expect("a slice of 8 bytes has 8 bytes"));
    Ok((EntryId::new(number(2), number(10), log_index), head[1], payload))
}

/// The key of an entry.
pub(super) fn key(log_index: u64) -> [u8; 8] {
    log_index.to_be_bytes()
}
