//! The state machine, as the consensus sees it.

use std::io;
use std::sync::Arc;

use ag_store::{AppliedMark, Checkpoint, Snapshots};
use bytes::Bytes;
use futures::{FutureExt as _, Stream, StreamExt as _};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{OptionalSend, RaftSnapshotBuilder};
use prost::Message as _;

use super::log_store::{apply_bytes, log_id};
use super::snapshot::SnapshotFiles;
use super::{Entry, LogId, Payload, SnapshotMeta, StoredMembership, TypeConfig, codec};
use crate::applied::{AppliedState, ToApply, ToApplyPayload, store};
use crate::error::ReplicaError;
use crate::failure::{Failure, causes};
use crate::limits;

type Snapshot = openraft::alias::SnapshotOf<TypeConfig, SnapshotFiles>;

/// The state machine.
pub(crate) struct StateMachine {
    pub applied: Arc<AppliedState>,
    pub snapshots: Snapshots,
    pub failure: Failure,
}

impl StateMachine {
    /// Latches an error, and gives it in the form of the consensus, which stops at it too.
    fn fail(&self, error: ReplicaError) -> io::Error {
        let stopped = io::Error::other(causes(&error));
        self.failure.latch(error);
        stopped
    }

    fn apply_batch(&self, batch: Vec<EntryResponder<TypeConfig>>) -> Result<(), ReplicaError> {
        let mut entries = Vec::with_capacity(batch.len());
        let mut responders = Vec::with_capacity(batch.len());
        for (entry, responder) in batch {
            entries.push(to_apply(entry, responder.is_some())?);
            responders.push(responder);
        }
        let answers = self.applied.apply(entries)?;
        for (responder, answered) in responders.into_iter().zip(answers) {
            if let Some(responder) = responder {
                responder.send(answered);
            }
        }
        Ok(())
    }
}

/// An entry's commands are decoded here, once, before the state is locked. One that is not known stops the replica.
fn to_apply(entry: Entry, is_awaited: bool) -> Result<ToApply, ReplicaError> {
    let log_index = entry.log_id.index;
    let payload = match entry.payload {
        Payload::Blank => ToApplyPayload::Blank,
        Payload::Normal(bytes) => {
            let decoded = ag_wire::storage::decode_entry(&bytes.0);
            let refused = |source| ReplicaError::Entry { log_index, source: Arc::new(source) };
            ToApplyPayload::Commands(decoded.map_err(refused)?)
        }
        Payload::Membership(body) => ToApplyPayload::Membership(codec::membership(&body).encode_to_vec().into()),
    };
    Ok(ToApply { log_id: entry.log_id, payload, is_awaited })
}

/// What the mark says, in the terms of the consensus.
pub(crate) fn parse_mark(mark: &AppliedMark) -> Result<(Option<LogId>, StoredMembership), ReplicaError> {
    let applied = mark.applied.as_ref().map(log_id);
    if mark.membership.is_empty() {
        return Ok((applied, StoredMembership::default()));
    }
    let damaged = |error: &dyn std::fmt::Display| ReplicaError::Damaged {
        what: format!("the membership of the state cannot be read: {error}"),
    };
    let message = ag_proto::peer_v1::Membership::decode(Bytes::clone(&mark.membership)).map_err(|e| damaged(&e))?;
    let membership = codec::parse_membership(&message).map_err(|e| damaged(&e))?;
    Ok((applied, StoredMembership::new(mark.membership_at.as_ref().map(log_id), membership)))
}

fn snapshot(files: ag_store::Snapshot) -> Result<Snapshot, ReplicaError> {
    let (last_log_id, last_membership) = parse_mark(&files.meta().mark)?;
    Ok(Snapshot { meta: SnapshotMeta { last_log_id, last_membership }, snapshot: SnapshotFiles(files) })
}

/// The snapshot that a received one is.
pub(crate) fn received(files: ag_store::Snapshot) -> io::Result<Snapshot> {
    snapshot(files).map_err(|error| io::Error::other(causes(&error)))
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = SnapshotFiles;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        parse_mark(&self.applied.mark()).map_err(|error| self.fail(error))
    }

    /// Entries that are at hand are applied in one batch, up to its bounds; a batch is stored before it is answered.
    async fn apply<Strm>(&mut self, entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        // Looked at again after its end, when the last batch is taken.
        let mut entries = entries.fuse();
        while let Some(first) = entries.next().await {
            let first = first?;
            let mut bytes = apply_bytes(&first.0);
            let mut batch = vec![first];
            while batch.len() < limits::APPLY_ENTRIES_MAX && bytes < limits::APPLY_BYTES_MAX {
                let Some(Some(next)) = entries.next().now_or_never() else { break };
                let next = next?;
                bytes += apply_bytes(&next.0);
                batch.push(next);
            }
            self.apply_batch(batch).map_err(|error| self.fail(error))?;
        }
        Ok(())
    }

    /// Called with no apply on its way, so the checkpoint made here is of one index.
    async fn try_create_snapshot_builder(&mut self, _force: bool) -> Option<SnapshotBuilder> {
        Some(self.get_snapshot_builder().await)
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        let checkpoint = self.applied.rocks().begin_checkpoint(&self.snapshots);
        SnapshotBuilder {
            checkpoint: Some(checkpoint.map_err(store("make a checkpoint"))),
            failure: self.failure.clone(),
        }
    }

    async fn install_snapshot(&mut self, _meta: &SnapshotMeta, SnapshotFiles(files): SnapshotFiles) -> io::Result<()> {
        let (rocks, snapshots) = (self.applied.rocks(), self.snapshots.clone());
        // Reads the whole state, which may take minutes.
        let install = move || {
            let files = super::snapshot::adopt(&snapshots, files)?;
            rocks.install(&files, &mut |_| {})
        };
        let installed = tokio::task::spawn_blocking(install).await;
        let installed = installed.map_err(|error| io::Error::other(error.to_string()))?;
        let replaced = installed.map_err(store("install a snapshot"));
        tracing::info!(jobs = replaced.as_ref().map_or(0, |(_, state)| state.job_count()), "a snapshot is installed");
        replaced.and_then(|(rocks, state)| self.applied.replace(rocks, state)).map_err(|error| self.fail(error))
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        let newest = self.snapshots.newest().map(snapshot).transpose();
        newest.map_err(|error| self.fail(error))
    }
}

/// Makes a snapshot of a checkpoint.
pub(crate) struct SnapshotBuilder {
    checkpoint: Option<Result<Checkpoint, ReplicaError>>,
    failure: Failure,
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    type SnapshotData = SnapshotFiles;

    /// Durable when it returns: from then on the log before it may be purged.
    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let taken = self.checkpoint.take().ok_or_else(|| io::Error::other("the snapshot was made already"))?;
        let finish = |checkpoint: Checkpoint| async {
            let finished = tokio::task::spawn_blocking(move || checkpoint.finish()).await;
            let finished = finished.map_err(|error| ReplicaError::Consensus { why: error.to_string() })?;
            snapshot(finished.map_err(store("finish a snapshot"))?)
        };
        let built = match taken {
            Ok(checkpoint) => finish(checkpoint).await,
            Err(error) => Err(error),
        };
        built.map_err(|error| {
            let stopped = io::Error::other(causes(&error));
            self.failure.latch(error);
            stopped
        })
    }
}
