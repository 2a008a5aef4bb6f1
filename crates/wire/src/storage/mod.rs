//! Bytes on disk and in the log.
//!
//! Every value is one byte, its format ([`FORMAT`]), followed by a message of `agwp.storage.v1`, or by plain bytes
//! where its function says so. The checksums around it are the store's.
//!
//! Formats only grow: a later release adds fields and kinds, whose defaults are not encoded, so that what an earlier
//! release wrote stays the same, byte for byte. `tests/frozen/` holds it fast.

mod body;
mod entry;
mod error;
mod kind;
mod mark;
mod row;

pub use entry::{decode_entry, encode_entry, encode_entry_into, encoded_entry_len};
pub use error::DecodeError;
pub use mark::{AppliedMark, EntryId, Identity, SnapshotFile, SnapshotMeta, Vote};
pub use mark::{decode_applied_mark, decode_entry_id, decode_identity, decode_snapshot_meta, decode_vote};
pub use mark::{encode_applied_mark, encode_entry_id, encode_identity, encode_snapshot_meta, encode_vote};
pub use row::{decode_answer, decode_attestation, decode_audit, decode_blob, decode_job, decode_member, decode_meta};
pub use row::{decode_queue, decode_reply, encode_answer, encode_attestation, encode_audit, encode_blob, encode_job};
pub use row::{encode_member, encode_meta, encode_queue, encode_reply};

/// The format of every value that this release writes.
pub const FORMAT: u8 = 1;

/// Appends the format and the message.
fn put(out: &mut Vec<u8>, message: &impl prost::Message) {
    out.reserve(1 + message.encoded_len());
    out.push(FORMAT);
    message.encode_raw(out);
}

/// What follows the format byte of a value that is `what`.
fn unframe<'a>(what: &'static str, bytes: &'a [u8]) -> Result<&'a [u8], DecodeError> {
    match bytes.split_first() {
        Some((&FORMAT, rest)) => Ok(rest),
        Some((&found, _)) => Err(DecodeError::Format { what, found }),
        None => Err(DecodeError::Empty { what }),
    }
}

/// The message after the format byte.
fn take<M: prost::Message + Default>(what: &'static str, bytes: &[u8]) -> Result<M, DecodeError> {
    M::decode(unframe(what, bytes)?).map_err(|source| DecodeError::Malformed { what, source })
}
