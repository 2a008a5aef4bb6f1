//! The thread that makes the log durable. It takes whatever has queued up while the last flush ran, and serves all of
//! it with one flush, in order. The first error latches: from then on nothing is acknowledged any more.

use std::io;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use ag_store::{LogTable, StoreError};
use ag_wire::storage::Vote as StoredVote;
use openraft::storage::IOFlushed;
use tokio::sync::oneshot;

use super::TypeConfig;
use crate::error::ReplicaError;
use crate::failure::Failure;

/// What is to be durable.
pub(crate) enum Flush {
    /// Entries that are in the table already.
    Appended(IOFlushed<TypeConfig>),
    /// A vote.
    Vote(StoredVote, oneshot::Sender<io::Result<()>>),
    /// The log ends after this index; `None`: before the first.
    TruncateAfter(Option<u64>, oneshot::Sender<io::Result<()>>),
}

/// A handle of the thread. With the last one, the thread ends, and the table is closed.
#[derive(Clone)]
pub(crate) struct LogThread {
    handle: Arc<Handle>,
}

struct Handle {
    /// `None`: while it is dropped.
    queue: Option<mpsc::Sender<Flush>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.queue = None;
        // Waited for, at most for one flush: a process must not exit in the midst of one.
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the log has panicked");
        }
    }
}

impl LogThread {
    /// Starts the thread.
    pub fn start(table: Arc<LogTable>, failure: Failure) -> Result<Self, ReplicaError> {
        let (queue, flushes) = mpsc::channel();
        let started = std::thread::Builder::new().name("ag-log".to_owned()).spawn(move || {
            let mut latched = None;
            while let Ok(first) = flushes.recv() {
                let batch: Vec<_> = std::iter::once(first).chain(flushes.try_iter()).collect();
                serve(&table, batch, &mut latched, &failure);
            }
        });
        let why = |error| ReplicaError::Consensus { why: format!("the thread of the log cannot be started: {error}") };
        let thread = Some(started.map_err(why)?);
        Ok(Self { handle: Arc::new(Handle { queue: Some(queue), thread }) })
    }

    /// Queues without waiting.
    pub fn queue(&self, flush: Flush) -> io::Result<()> {
        let queue = self.handle.queue.as_ref().ok_or_else(gone)?;
        queue.send(flush).map_err(|_| gone())
    }

    /// Queues, and waits until it is done.
    pub async fn done(&self, flush: impl FnOnce(oneshot::Sender<io::Result<()>>) -> Flush) -> io::Result<()> {
        let (done, result) = oneshot::channel();
        self.queue(flush(done))?;
        result.await.unwrap_or_else(|_| Err(gone()))
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread of the log has ended")
}

/// Serves a batch with one flush.
fn serve(table: &LogTable, batch: Vec<Flush>, latched: &mut Option<String>, failure: &Failure) {
    if latched.is_none()
        && let Err(error) = write(table, &batch).and_then(|()| table.sync())
    {
        *latched = Some(crate::failure::causes(&error));
        failure.latch(ReplicaError::Store { operation: "make the log durable", source: Arc::new(error) });
    }
    let result = || latched.clone().map_or(Ok(()), |why| Err(io::Error::other(why)));
    for flush in batch {
        match flush {
            Flush::Appended(callback) => callback.io_completed(result()),
            // Whoever does not wait any more is stopping.
            Flush::Vote(_, done) | Flush::TruncateAfter(_, done) => _ = done.send(result()),
        }
    }
}

fn write(table: &LogTable, batch: &[Flush]) -> Result<(), StoreError> {
    for flush in batch {
        match flush {
            Flush::Appended(_) => {}
            Flush::Vote(vote, _) => table.save_vote(vote)?,
            Flush::TruncateAfter(log_index, _) => table.truncate_after(*log_index)?,
        }
    }
    Ok(())
}
