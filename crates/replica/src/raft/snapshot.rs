//! Snapshots on their way between replicas: their files, in chunks, one after the other.

use std::io::{self, Read as _};

use ag_proto::peer_v1 as peer;
use ag_proto::peer_v1::snapshot_part::Part;
use ag_store::{Snapshot, SnapshotReader, SnapshotReceiver, Snapshots, StoreError};
use bytes::Bytes;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::{Vote, codec};
use crate::failure::causes;
use crate::limits;

/// The files of a snapshot.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotFiles(pub Snapshot);

/// Sends a snapshot. Ends early when nobody takes the parts any more, or too slowly.
pub(crate) async fn send(
    vote: Vote,
    SnapshotFiles(snapshot): SnapshotFiles,
    parts: mpsc::Sender<peer::SnapshotPart>,
) -> io::Result<()> {
    let head = peer::SnapshotHead { vote: Some(codec::vote(&vote)), description: snapshot.description(), shard: 0 };
    put(&parts, Part::Head(head)).await?;
    for (file_number, file) in (0..).zip(&snapshot.meta().files) {
        let mut reader = Some(snapshot.read(file).map_err(|error| io::Error::other(causes(&error)))?);
        while let Some(open) = reader.take() {
            let (still_open, bytes) = tokio::task::spawn_blocking(|| chunk(open)).await.map_err(io::Error::other)??;
            if !bytes.is_empty() {
                put(&parts, Part::Chunk(peer::SnapshotChunk { file_number, bytes })).await?;
            }
            reader = still_open;
        }
    }
    Ok(())
}

async fn put(parts: &mpsc::Sender<peer::SnapshotPart>, part: Part) -> io::Result<()> {
    let sent = parts.send_timeout(peer::SnapshotPart { part: Some(part) }, limits::SNAPSHOT_STALL_TIMEOUT).await;
    sent.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the other replica takes no more of the snapshot"))
}

/// The next bytes, and the reader unless it is at the end, where it has checked what it read.
fn chunk(mut reader: SnapshotReader) -> io::Result<(Option<SnapshotReader>, Bytes)> {
    let mut bytes = vec![0; limits::SNAPSHOT_CHUNK_BYTES];
    let mut filled = 0;
    while filled < bytes.len() {
        let count = reader.read(&mut bytes[filled..])?;
        filled += count;
        if count == 0 {
            bytes.truncate(filled);
            return Ok((None, bytes.into()));
        }
    }
    Ok((Some(reader), bytes.into()))
}

/// Receives a snapshot: all of its files, checked and durable.
pub(crate) async fn receive(
    snapshots: &Snapshots,
    mut parts: Streaming<peer::SnapshotPart>,
) -> Result<(Vote, Snapshot), Status> {
    let Some(Part::Head(head)) = next(&mut parts).await? else {
        return Err(Status::invalid_argument("a snapshot begins with its head"));
    };
    let vote = codec::parse_vote(&head.vote).map_err(|malformed| Status::invalid_argument(malformed.to_string()))?;
    let mut receiver = snapshots.receive(&head.description).map_err(status)?;
    while let Some(part) = next(&mut parts).await? {
        let Part::Chunk(chunk) = part else {
            return Err(Status::invalid_argument("a snapshot has one head"));
        };
        receiver = blocking(move || write(receiver, &chunk)).await?;
    }
    let snapshot = blocking(move || receiver.finish()).await?;
    Ok((vote, snapshot))
}

/// The snapshot as this replica's own newest one: a received one is that already.
pub(crate) fn adopt(snapshots: &Snapshots, snapshot: Snapshot) -> Result<Snapshot, StoreError> {
    if snapshots.newest().is_some_and(|newest| newest.meta() == snapshot.meta()) {
        return Ok(snapshot);
    }
    let mut receiver = snapshots.receive(&snapshot.description())?;
    for file in &snapshot.meta().files {
        let mut reader = Some(snapshot.read(file)?);
        while let Some(open) = reader.take() {
            let refused = |error: io::Error| StoreError::SnapshotRefused { why: error.to_string() };
            let (still_open, bytes) = chunk(open).map_err(refused)?;
            if !bytes.is_empty() {
                receiver.write(&file.name, &bytes)?;
            }
            reader = still_open;
        }
    }
    receiver.finish()
}

async fn next(parts: &mut Streaming<peer::SnapshotPart>) -> Result<Option<Part>, Status> {
    let part = tokio::time::timeout(limits::SNAPSHOT_STALL_TIMEOUT, parts.message()).await;
    match part.map_err(|_| Status::deadline_exceeded("the snapshot has stalled"))?? {
        None => Ok(None),
        Some(peer::SnapshotPart { part: Some(part) }) => Ok(Some(part)),
        Some(peer::SnapshotPart { part: None }) => Err(Status::invalid_argument("a part of a snapshot is empty")),
    }
}

fn write(mut receiver: SnapshotReceiver, chunk: &peer::SnapshotChunk) -> Result<SnapshotReceiver, StoreError> {
    let file = usize::try_from(chunk.file_number).ok().and_then(|at| receiver.meta().files.get(at));
    let name = file.map(|file| file.name.clone());
    let name = name.ok_or_else(|| StoreError::SnapshotRefused { why: "it has no such file".to_owned() })?;
    receiver.write(&name, &chunk.bytes)?;
    Ok(receiver)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Status::internal(error.to_string()))?.map_err(status)
}

fn status(error: StoreError) -> Status {
    Status::data_loss(causes(&error))
}
