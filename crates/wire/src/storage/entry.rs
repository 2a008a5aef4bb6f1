//! Entries of the log.

use ag_core::command::{Actor, Command, Entry};
use ag_core::name::PrincipalName;
use ag_core::time::{LeaseTime, WallTime};
use ag_proto::storage_v1 as stored;

use super::{DecodeError, command, decode, encode};
use crate::version::CLUSTER_VERSION_MAX;

/// The bytes of an entry.
pub fn encode_entry(entry: &Entry) -> Vec<u8> {
    encode(&stored::Entry {
        lease_now_ms: entry.lease_now.0,
        wall_now_ms: entry.wall_now.0,
        commands: entry.commands.iter().map(envelope).collect(),
    })
}

/// The entry of these bytes. A command that this release does not know is an error.
pub fn decode_entry(bytes: &[u8]) -> Result<Entry, DecodeError> {
    let entry: stored::Entry = decode(bytes)?;
    Ok(Entry {
        lease_now: LeaseTime(entry.lease_now_ms),
        wall_now: WallTime(entry.wall_now_ms),
        commands: entry.commands.iter().map(open).collect::<Result<_, _>>()?,
    })
}

fn envelope(command: &Command) -> stored::Command {
    let (kind, body) = command::encode(&command.operation);
    let principal = match &command.actor {
        Actor::System => String::new(),
        Actor::Principal(principal) => principal.as_str().to_owned(),
    };
    stored::Command { kind: (kind as i32).cast_unsigned(), min_version: 1, principal, body: body.into() }
}

fn open(command: &stored::Command) -> Result<Command, DecodeError> {
    let unknown = DecodeError::UnknownCommand { kind: command.kind, min_version: command.min_version };
    if command.min_version > CLUSTER_VERSION_MAX {
        return Err(unknown);
    }
    let kind = i32::try_from(command.kind).ok().and_then(|kind| stored::CommandKind::try_from(kind).ok());
    let Some(kind) = kind else { return Err(unknown) };
    let actor = match command.principal.as_str() {
        "" => Actor::System,
        name => Actor::Principal(PrincipalName::parse("principal", name).map_err(DecodeError::Field)?),
    };
    match command::decode(kind, &command.body)? {
        Some(operation) => Ok(Command { actor, operation }),
        None => Err(unknown),
    }
}
