//! Entries of the log: [`Entry`] as `agwp.storage.v1.Entry`.
//!
//! Encoding writes the message by hand where it holds bulk bytes, so that a payload is copied once, into the result.

use ag_core::command::{Actor, Command, Entry, Operation};
use ag_core::name::PrincipalName;
use ag_core::time::{LeaseTime, WallTime};
use ag_proto::storage_v1 as pb;
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

use super::body::{self, Body};
use super::kind::CommandKind;
use super::{DecodeError, FORMAT};
use crate::version::CLUSTER_VERSION_MAX;

const WHAT: &str = "log entry";
/// The fields of `Entry` and `Command` that are written by hand.
const COMMANDS: u32 = 3;
const BODY: u32 = 4;

/// The bytes of an entry.
pub fn encode_entry(entry: &Entry) -> Vec<u8> {
    let mut out = Vec::new();
    encode_entry_into(entry, &mut out);
    out
}

/// Appends the bytes of an entry.
pub fn encode_entry_into(entry: &Entry, out: &mut Vec<u8>) {
    let parts = Parts::of(entry);
    out.reserve(1 + parts.bytes);
    out.push(FORMAT);
    parts.head.encode_raw(out);
    for command in &parts.commands {
        encode_key(COMMANDS, WireType::LengthDelimited, out);
        encode_varint(command.bytes as u64, out);
        command.head.encode_raw(out);
        if command.body_bytes > 0 {
            encode_key(BODY, WireType::LengthDelimited, out);
            encode_varint(command.body_bytes as u64, out);
            command.body.put(out);
        }
    }
}

/// How many bytes [`encode_entry`] gives, without encoding bulk bytes.
pub fn encoded_entry_len(entry: &Entry) -> usize {
    1 + Parts::of(entry).bytes
}

/// The entry of these bytes.
pub fn decode_entry(bytes: &[u8]) -> Result<Entry, DecodeError> {
    let entry: pb::Entry = super::take(WHAT, bytes)?;
    Ok(Entry {
        lease_now: LeaseTime(entry.lease_now_ms),
        wall_now: WallTime(entry.wall_now_ms),
        commands: entry.commands.into_iter().map(decode_command).collect::<Result<_, _>>()?,
    })
}

fn decode_command(command: pb::Command) -> Result<Command, DecodeError> {
    let pb::Command { kind, min_version, principal, body } = command;
    let known = CommandKind::from_number(kind).filter(|_| min_version <= CLUSTER_VERSION_MAX);
    let known = known.ok_or(DecodeError::UnknownCommand { kind, min_version })?;
    let actor = match principal.is_empty() {
        true => Actor::System,
        false => PrincipalName::parse("principal", &principal).map(Actor::Principal).map_err(DecodeError::of(WHAT))?,
    };
    Ok(Command { actor, operation: body::decode(known, body)? })
}

/// An entry on its way into bytes.
struct Parts<'a> {
    head: pb::Entry,
    commands: Vec<CommandPart<'a>>,
    bytes: usize,
}

struct CommandPart<'a> {
    head: pb::Command,
    body: Box<dyn Body + 'a>,
    body_bytes: usize,
    bytes: usize,
}

impl<'a> Parts<'a> {
    fn of(entry: &'a Entry) -> Self {
        let head = pb::Entry { lease_now_ms: entry.lease_now.0, wall_now_ms: entry.wall_now.0, commands: Vec::new() };
        let commands: Vec<_> = entry.commands.iter().map(CommandPart::of).collect();
        let bytes = head.encoded_len() + commands.iter().map(|part| delimited_len(COMMANDS, part.bytes)).sum::<usize>();
        Self { head, commands, bytes }
    }
}

impl<'a> CommandPart<'a> {
    fn of(command: &'a Command) -> Self {
        let operation: &Operation = &command.operation;
        let kind = CommandKind::of(operation);
        let principal = match &command.actor {
            Actor::System => String::new(),
            Actor::Principal(principal) => principal.as_str().to_owned(),
        };
        let head = pb::Command {
            kind: kind as u32,
            min_version: operation.min_version(),
            principal,
            body: Default::default(),
        };
        let body = body::of(operation);
        let body_bytes = body.bytes();
        let body_field = if body_bytes > 0 { delimited_len(BODY, body_bytes) } else { 0 };
        let bytes = head.encoded_len() + body_field;
        Self { head, body, body_bytes, bytes }
    }
}

/// How many bytes a length-delimited field takes whose contents take `bytes`.
pub(super) fn delimited_len(tag: u32, bytes: usize) -> usize {
    key_len(tag) + encoded_len_varint(bytes as u64) + bytes
}
