//! What a replica keeps beside the replicated state.

use ag_core::name::{ClusterId, LogPosition, ReplicaId};
use ag_proto::storage_v1 as pb;
use bytes::Bytes;

use super::{DecodeError, put, take};

/// Which entry of the log: its place, and the leader that proposed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryId {
    /// Term and index.
    pub position: LogPosition,
    /// The leader of the term.
    pub leader: ReplicaId,
}

impl EntryId {
    /// The entry at `term` and `log_index`, proposed by `leader`.
    pub fn new(term: u64, leader: u64, log_index: u64) -> Self {
        Self { position: LogPosition { term, log_index }, leader: ReplicaId(leader) }
    }

    /// Its index.
    pub fn log_index(&self) -> u64 {
        self.position.log_index
    }
}

impl std::fmt::Display for EntryId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.position.fmt(f)
    }
}

/// Who a replica is. Set once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its id.
    pub replica_id: ReplicaId,
    /// Its cluster.
    pub cluster_id: ClusterId,
}

/// A replica's vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vote {
    /// The term.
    pub term: u64,
    /// Whom it voted for.
    pub replica_id: ReplicaId,
    /// That one was elected.
    pub committed: bool,
}

/// How far a state has applied the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppliedMark {
    /// The last applied entry; `None`: none yet.
    pub applied: Option<EntryId>,
    /// The last applied membership, in a form of the consensus layer.
    pub membership: Bytes,
    /// The entry that set it; `None`: the initial one.
    pub membership_at: Option<EntryId>,
}

/// What a snapshot holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotMeta {
    /// The state that it is.
    pub mark: AppliedMark,
    /// The cluster version of that state.
    pub cluster_version: u32,
    /// The format of the data in the files.
    pub data_format: u32,
    /// All files, in the order of their names.
    pub files: Vec<SnapshotFile>,
}

/// One file of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFile {
    /// Its name, without a folder. Not checked here.
    pub name: String,
    /// How many bytes it has.
    pub bytes: u64,
    /// CRC-32 (IEEE) of them.
    pub crc32: u32,
}

/// Appends an entry's id.
pub fn encode_entry_id(entry_id: &EntryId, out: &mut Vec<u8>) {
    put(out, &entry_id_message(entry_id));
}

/// The entry's id in these bytes.
pub fn decode_entry_id(bytes: &[u8]) -> Result<EntryId, DecodeError> {
    take("entry id", bytes).map(entry_id_of)
}

/// Appends an identity.
pub fn encode_identity(identity: &Identity, out: &mut Vec<u8>) {
    let cluster_id = Bytes::copy_from_slice(&identity.cluster_id.0);
    put(out, &pb::Identity { replica_id: identity.replica_id.0, cluster_id });
}

/// The identity in these bytes.
pub fn decode_identity(bytes: &[u8]) -> Result<Identity, DecodeError> {
    let what = "identity";
    let identity: pb::Identity = take(what, bytes)?;
    let cluster_id = identity.cluster_id.as_ref().try_into();
    let cluster_id = cluster_id.map_err(|_| DecodeError::field(what, "cluster_id", "must be 16 bytes"))?;
    Ok(Identity { replica_id: ReplicaId(identity.replica_id), cluster_id: ClusterId(cluster_id) })
}

/// Appends a vote.
pub fn encode_vote(vote: &Vote, out: &mut Vec<u8>) {
    put(out, &pb::Vote { term: vote.term, replica_id: vote.replica_id.0, committed: vote.committed });
}

/// The vote in these bytes.
pub fn decode_vote(bytes: &[u8]) -> Result<Vote, DecodeError> {
    let vote: pb::Vote = take("vote", bytes)?;
    Ok(Vote { term: vote.term, replica_id: ReplicaId(vote.replica_id), committed: vote.committed })
}

/// Appends an applied mark.
pub fn encode_applied_mark(mark: &AppliedMark, out: &mut Vec<u8>) {
    put(out, &mark_message(mark));
}

/// The applied mark in these bytes.
pub fn decode_applied_mark(bytes: &[u8]) -> Result<AppliedMark, DecodeError> {
    take("applied mark", bytes).map(mark_of)
}

/// Appends what a snapshot holds.
pub fn encode_snapshot_meta(meta: &SnapshotMeta, out: &mut Vec<u8>) {
    let file = |file: &SnapshotFile| pb::SnapshotFile { name: file.name.clone(), bytes: file.bytes, crc32: file.crc32 };
    let message = pb::SnapshotMeta {
        mark: Some(mark_message(&meta.mark)),
        cluster_version: meta.cluster_version,
        data_format: meta.data_format,
        files: meta.files.iter().map(file).collect(),
    };
    put(out, &message);
}

/// What the snapshot with these bytes holds.
pub fn decode_snapshot_meta(bytes: &[u8]) -> Result<SnapshotMeta, DecodeError> {
    let what = "snapshot's description";
    let meta: pb::SnapshotMeta = take(what, bytes)?;
    let file = |file: pb::SnapshotFile| SnapshotFile { name: file.name, bytes: file.bytes, crc32: file.crc32 };
    let mark = meta.mark.ok_or_else(|| DecodeError::field(what, "mark", "must be present"))?;
    Ok(SnapshotMeta {
        mark: mark_of(mark),
        cluster_version: meta.cluster_version,
        data_format: meta.data_format,
        files: meta.files.into_iter().map(file).collect(),
    })
}

fn entry_id_message(entry_id: &EntryId) -> pb::EntryId {
    let LogPosition { term, log_index } = entry_id.position;
    pb::EntryId { term, leader_id: entry_id.leader.0, log_index }
}

fn entry_id_of(message: pb::EntryId) -> EntryId {
    EntryId::new(message.term, message.leader_id, message.log_index)
}

fn mark_message(mark: &AppliedMark) -> pb::AppliedMark {
    pb::AppliedMark {
        applied: mark.applied.as_ref().map(entry_id_message),
        membership: mark.membership.clone(),
        membership_at: mark.membership_at.as_ref().map(entry_id_message),
    }
}

fn mark_of(message: pb::AppliedMark) -> AppliedMark {
    AppliedMark {
        applied: message.applied.map(entry_id_of),
        membership: message.membership,
        membership_at: message.membership_at.map(entry_id_of),
    }
}
