//! Bytes of log entries and of stored rows. Every value starts with a format byte; its layout never changes, later releases
//! only add fields. The messages are those of `proto/agwp/storage/v1`.

mod command;
mod entry;
mod row;

pub use entry::{decode_entry, encode_entry};
pub use row::{
    decode_answer, decode_attestation, decode_audit, decode_job, decode_member, decode_meta, decode_queue,
    decode_reply, encode_answer, encode_attestation, encode_audit, encode_job, encode_member, encode_meta,
    encode_queue, encode_reply,
};

/// The messages themselves, for the store's own.
pub use ag_proto::storage_v1 as stored;
pub use prost::Message as StoredMessage;

use ag_core::audit::AuditDecodeError;
use ag_core::name::FieldError;
use prost::Message;

use crate::version::{CLUSTER_VERSION_MAX, RELEASE};

/// The format byte that this release writes.
const FORMAT: u8 = 1;

/// Bytes that are not what they should be. The replica that meets one stops: it must not guess.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The value is empty.
    #[error("stored value is empty")]
    Empty,
    /// The value has a format that this release does not know.
    #[error("stored value has format {0}, release {RELEASE} reads format {FORMAT}: run a newer release")]
    Format(u8),
    /// Not an encoded message.
    #[error("stored value is not a message")]
    Message(#[source] prost::DecodeError),
    /// A field is not what it should be.
    #[error("stored value has a field that can not be")]
    Field(#[source] FieldError),
    /// A field is missing, or has a number that stands for nothing.
    #[error("stored value: {0}")]
    Value(&'static str),
    /// Not an audit record.
    #[error("stored value is not an audit record")]
    Audit(#[source] AuditDecodeError),
    /// A command that this release does not know. It must never be skipped.
    #[error(
        "the log holds a command of kind {kind} for cluster version {min_version}; release {RELEASE} supports up to \
         {CLUSTER_VERSION_MAX}: run a newer release of ag on this replica"
    )]
    UnknownCommand {
        /// See `CommandKind`.
        kind: u32,
        /// The lowest cluster version at which it may be proposed.
        min_version: u32,
    },
}

fn encode(message: &impl Message) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + message.encoded_len());
    bytes.push(FORMAT);
    message.encode_raw(&mut bytes);
    bytes
}

fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, DecodeError> {
    match bytes.split_first() {
        None => Err(DecodeError::Empty),
        Some((&FORMAT, message)) => M::decode(message).map_err(DecodeError::Message),
        Some((&format, _)) => Err(DecodeError::Format(format)),
    }
}

fn array<const N: usize>(bytes: &[u8], what: &'static str) -> Result<[u8; N], DecodeError> {
    bytes.try_into().map_err(|_| DecodeError::Value(what))
}

/// Encodes a message of the store's own, with the format byte.
pub fn encode_message(message: &impl Message) -> Vec<u8> {
    encode(message)
}

/// Decodes what [`encode_message`] wrote.
pub fn decode_message<M: Message + Default>(bytes: &[u8]) -> Result<M, DecodeError> {
    decode(bytes)
}
