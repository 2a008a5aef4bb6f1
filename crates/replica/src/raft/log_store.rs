//! The log, as the consensus sees it.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use ag_core::name::ReplicaId;
use ag_proto::peer_v1 as peer;
use ag_store::{LogEntry, LogTable, StoreError};
use ag_wire::storage::{EntryId, Vote as StoredVote};
use bytes::Bytes;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::{LogState, OptionalSend, RaftLogReader};
use parking_lot::Mutex;
use prost::Message as _;

use super::log_cache::{LogCache, bytes_of};
use super::log_thread::{Flush, LogThread};
use super::{Entry, EntryBytes, LeaderId, LogId, Payload, TypeConfig, Vote, codec};
use crate::error::ReplicaError;
use crate::failure::{Failure, causes};
use crate::limits;

const BLANK: u8 = 0;
const COMMANDS: u8 = 1;
const MEMBERSHIP: u8 = 2;

/// The log. Clones share it.
#[derive(Clone)]
pub(crate) struct LogStore {
    table: Arc<LogTable>,
    cache: Arc<Mutex<LogCache>>,
    thread: LogThread,
}

impl LogStore {
    /// The log of `table`. Errors latch in `failure`.
    pub fn new(table: Arc<LogTable>, failure: Failure) -> Result<Self, ReplicaError> {
        let thread = LogThread::start(Arc::clone(&table), failure)?;
        Ok(Self { table, cache: Arc::new(Mutex::new(LogCache::new(limits::LOG_CACHE_BYTES_MAX))), thread })
    }

    fn read(&self, range: Range<u64>, bytes_max: usize) -> io::Result<Vec<Entry>> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(entries) = self.cache.lock().read(range.clone(), bytes_max) {
            return Ok(entries);
        }
        let entries = self.table.read(range, bytes_max).map_err(io_error)?;
        entries.into_iter().map(entry).collect()
    }
}

/// The id of an entry as it is stored.
pub(crate) fn entry_id(log_id: &LogId) -> EntryId {
    EntryId::new(log_id.leader_id.term, log_id.leader_id.node_id, log_id.index)
}

/// The id of a stored entry.
pub(crate) fn log_id(entry_id: &EntryId) -> LogId {
    LogId::new(LeaderId { term: entry_id.position.term, node_id: entry_id.leader.0 }, entry_id.log_index())
}

/// The error as the consensus takes it, causes included.
pub(crate) fn io_error(error: StoreError) -> io::Error {
    io::Error::other(causes(&error))
}

fn stored(entry: &Entry) -> LogEntry {
    let (kind, payload) = match &entry.payload {
        Payload::Blank => (BLANK, Bytes::new()),
        Payload::Normal(EntryBytes(bytes)) => (COMMANDS, bytes.clone()),
        Payload::Membership(body) => (MEMBERSHIP, codec::membership(body).encode_to_vec().into()),
    };
    LogEntry { entry_id: entry_id(&entry.log_id), kind, payload }
}

fn entry(stored: LogEntry) -> io::Result<Entry> {
    let log_index = stored.entry_id.log_index();
    let payload = match stored.kind {
        BLANK => Payload::Blank,
        COMMANDS => Payload::Normal(EntryBytes(stored.payload)),
        MEMBERSHIP => {
            let message = peer::Membership::decode(stored.payload).map_err(io::Error::other)?;
            Payload::Membership(codec::parse_membership(&message).map_err(io::Error::other)?)
        }
        kind => return Err(io::Error::other(format!("log entry {log_index} has the unknown kind {kind}"))),
    };
    Ok(Entry { log_id: log_id(&stored.entry_id), payload })
}

/// The indexes of a range.
fn indexes(range: &impl RangeBounds<u64>) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    start..end
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        let mut wanted = indexes(&range);
        let mut entries = Vec::new();
        // All are asked for, but not all need be in memory twice.
        while !wanted.is_empty() {
            let read = self.read(wanted.clone(), limits::LOG_READ_BYTES_MAX)?;
            let Some(last) = read.last() else { break };
            wanted.start = last.log_id.index + 1;
            entries.extend(read);
        }
        Ok(entries)
    }

    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl futures::Stream<Item = Result<Entry, io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let state = (self.clone(), indexes(&range), Vec::new().into_iter());
        let next = |(store, mut wanted, mut read): (Self, Range<u64>, std::vec::IntoIter<Entry>)| async move {
            if let Some(entry) = read.next() {
                return Some((Ok(entry), (store, wanted, read)));
            }
            match store.read(wanted.clone(), limits::LOG_READ_BYTES_MAX) {
                Ok(entries) => {
                    wanted.start = entries.last()?.log_id.index + 1;
                    read = entries.into_iter();
                    let entry = read.next()?;
                    Some((Ok(entry), (store, wanted, read)))
                }
                Err(error) => Some((Err(error), (store, 0..0, read))),
            }
        };
        Box::pin(futures::stream::unfold(state, next))
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        let vote = self.table.vote().map_err(io_error)?;
        Ok(vote.map(|vote| Vote {
            leader_id: LeaderId { term: vote.term, node_id: vote.replica_id.0 },
            committed: vote.committed,
        }))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.read(start..end, limits::LOG_READ_BYTES_MAX)
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let (purged, last) = (self.table.purged(), self.table.last());
        Ok(LogState { last_purged_log_id: purged.as_ref().map(log_id), last_log_id: last.as_ref().map(log_id) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let Vote { leader_id, committed } = *vote;
        let vote = StoredVote { term: leader_id.term, replica_id: ReplicaId(leader_id.node_id), committed };
        self.thread.done(|done| Flush::Vote(vote, done)).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        match committed {
            Some(committed) => self.table.save_committed(&entry_id(&committed)).map_err(io_error),
            None => Ok(()),
        }
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.table.committed().map_err(io_error)?.as_ref().map(log_id))
    }

    /// Writes here, which takes some microseconds; only the flush is left to the thread.
    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        let rows: Vec<LogEntry> = entries.iter().map(stored).collect();
        self.table.append(&rows).map_err(io_error)?;
        {
            let mut cache = self.cache.lock();
            entries.into_iter().for_each(|entry| cache.push(entry));
        }
        self.thread.queue(Flush::Appended(callback))
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> io::Result<()> {
        let last_index = last_log_id.map(|log_id| log_id.index);
        self.cache.lock().truncate_from(last_index.map_or(0, |log_index| log_index + 1));
        self.thread.done(|done| Flush::TruncateAfter(last_index, done)).await
    }

    async fn purge(&mut self, log_id: LogId) -> io::Result<()> {
        self.cache.lock().purge_before(log_id.index + 1);
        self.table.purge(entry_id(&log_id)).map_err(io_error)
    }
}

/// How many bytes of memory an entry takes up while it is applied.
pub(crate) fn apply_bytes(entry: &Entry) -> usize {
    bytes_of(entry)
}
