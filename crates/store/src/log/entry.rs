//! One entry of the log as a value of the table.
//!
//! | field | form |
//! | --- | --- |
//! | format | 1 byte, 1 |
//! | kind | 1 byte |
//! | term, leader | 8 bytes each, big-endian |
//! | link | 4 bytes: the checksum of the entry before, 0 for the first of all |
//! | payload | the rest |
//!
//! The key is the index, 8 bytes, big-endian. The value is sealed. The link is there because a database that has lost
//! its newest files can show older entries, each whole, between newer ones.

use ag_wire::storage::{DecodeError, EntryId, FORMAT};
use bytes::Bytes;

use crate::StoreError;
use crate::seal::{Table, checksum_of, seal, unseal};

/// Bytes before the payload.
const HEAD_BYTES: usize = 22;

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

    /// Replaces `value` with the stored form. Gives its checksum, which links the next entry to it.
    pub(super) fn encode(&self, link: u32, value: &mut Vec<u8>) -> u32 {
        value.clear();
        value.reserve(self.bytes() + 4);
        value.push(FORMAT);
        value.push(self.kind);
        value.extend_from_slice(&self.entry_id.position.term.to_be_bytes());
        value.extend_from_slice(&self.entry_id.leader.0.to_be_bytes());
        value.extend_from_slice(&link.to_be_bytes());
        value.extend_from_slice(&self.payload);
        seal(Table::LogEntries, &key(self.entry_id.log_index()), value)
    }
}

/// What stands before the payload of a stored entry, and its checksum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub entry_id: EntryId,
    pub kind: u8,
    /// The checksum of the entry before.
    pub link: u32,
    /// Its own checksum.
    pub checksum: u32,
}

impl Head {
    /// The head of the stored form at `log_index`, which is checked as a whole.
    pub fn decode(log_index: u64, sealed: &[u8]) -> Result<Self, StoreError> {
        let what = || format!("log entry {log_index}");
        let broken = |_| StoreError::corrupt(what(), "its checksum does not hold");
        let value = unseal(Table::LogEntries, &key(log_index), sealed).map_err(broken)?;
        let short = || StoreError::corrupt(what(), "it is too short");
        let head = value.first_chunk::<HEAD_BYTES>().ok_or_else(short)?;
        if head[0] != FORMAT {
            let source = DecodeError::Format { what: "log entry", found: head[0] };
            return Err(StoreError::Decode { what: what(), source });
        }
        let long = |at: usize| u64::from_be_bytes(head[at..at + 8].try_into().expect("a slice of 8 bytes has 8 bytes"));
        let link = u32::from_be_bytes(head[18..22].try_into().expect("a slice of 4 bytes has 4 bytes"));
        let entry_id = EntryId::new(long(2), long(10), log_index);
        Ok(Self { entry_id, kind: head[1], link, checksum: checksum_of(sealed) })
    }

    /// The entry whose stored form has this head.
    pub fn with_payload(self, sealed: Box<[u8]>) -> LogEntry {
        let end = sealed.len() - 4;
        let payload = Bytes::from(sealed).slice(HEAD_BYTES..end);
        LogEntry { entry_id: self.entry_id, kind: self.kind, payload }
    }
}

/// The key of an entry.
pub(super) fn key(log_index: u64) -> [u8; 8] {
    log_index.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn entry() -> LogEntry {
        LogEntry { entry_id: EntryId::new(5, 2, 77), kind: 3, payload: Bytes::from_static(b"payload") }
    }

    #[test]
    fn the_stored_form_is_as_it_was() {
        let mut value = b"left over".to_vec();
        let checksum = entry().encode(0xdead_beef, &mut value);
        let frozen = "010300000000000000050000000000000002deadbeef7061796c6f61645c4ac0ea";
        assert_eq!(hex(&value), frozen);
        let head = Head::decode(77, &value).unwrap();
        assert_eq!((head.entry_id, head.link, head.checksum), (entry().entry_id, 0xdead_beef, checksum));
        assert_eq!(head.with_payload(value.into()), entry());
    }

    #[test]
    fn any_changed_bit_and_any_other_place_is_found() {
        let mut value = Vec::new();
        entry().encode(1, &mut value);
        for bit in 0..value.len() * 8 {
            value[bit / 8] ^= 1 << (bit % 8);
            assert!(Head::decode(77, &value).unwrap_err().is_corruption(), "bit {bit}");
            value[bit / 8] ^= 1 << (bit % 8);
        }
        for length in 0..value.len() {
            assert!(Head::decode(77, &value[..length]).is_err());
        }
        assert!(Head::decode(78, &value).is_err());
    }
}
