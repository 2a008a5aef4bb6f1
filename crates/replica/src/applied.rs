//! The state machine with its tables: entries are applied to the state in memory and stored in one batch, and only then
//! seen by anyone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use ag_core::State;
use ag_core::change::{Answer, Change, ReplyKey};
use ag_core::command::Entry as Commands;
use ag_core::digest::Digest;
use ag_core::job::Job;
use ag_core::name::{LogPosition, QueueName, ReplicaId};
use ag_core::outcome::{Changed, Completion, Outcome, Replayed};
use ag_store::{AppliedMark, RocksState, StateReader, StateTable as _, StoreError};
use ag_wire::version::{CLUSTER_VERSION_MAX, CLUSTER_VERSION_MIN};
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};
use tokio::sync::watch;

use crate::answered::Answered;
use crate::error::{LeaderHint, ReplicaError};
use crate::hashes::StateHashes;
use crate::limits;
use crate::raft::{LogId, position};
use crate::waiters::Waiters;

/// The state, and what belongs to it. One task writes, any may read.
pub(crate) struct AppliedState {
    state: RwLock<State>,
    table: Mutex<Table>,
    last: watch::Sender<Option<LogId>>,
    last_at: Mutex<Option<Instant>>,
    hashes: Mutex<StateHashes>,
    /// Claims that wait for jobs.
    pub waiters: Waiters,
}

struct Table {
    rocks: RocksState,
    reader: Arc<dyn StateReader>,
    mark: AppliedMark,
}

/// An entry to be applied.
pub(crate) struct ToApply {
    /// Its place.
    pub log_id: LogId,
    /// What it carries.
    pub payload: ToApplyPayload,
    /// Somebody waits for its answers.
    pub is_awaited: bool,
}

/// What an entry carries.
pub(crate) enum ToApplyPayload {
    /// Nothing.
    Blank,
    /// Commands.
    Commands(Commands),
    /// A membership, encoded.
    Membership(bytes::Bytes),
}

impl AppliedState {
    /// The state as it was loaded. One at a version that this release does not support is not served.
    pub fn new(rocks: RocksState, state: State, mark: AppliedMark) -> Result<Self, ReplicaError> {
        check_version(&state)?;
        let last = mark.applied.as_ref().map(crate::raft::log_id);
        let mut hashes = StateHashes::default();
        if let Some(last) = &last {
            hashes.push(last.index, state.state_hash(), limits::HASHES_KEPT);
        }
        Ok(Self {
            state: RwLock::new(state),
            table: Mutex::new(Table { reader: rocks.reader(), rocks, mark }),
            last: watch::Sender::new(last),
            last_at: Mutex::default(),
            hashes: Mutex::new(hashes),
            waiters: Waiters::default(),
        })
    }

    /// Reads the state.
    pub fn read<R>(&self, read: impl FnOnce(&State) -> R) -> R {
        read(&self.state.read())
    }

    /// Reads what the state does not hold.
    pub fn reader(&self) -> Arc<dyn StateReader> {
        Arc::clone(&self.table.lock().reader)
    }

    /// The table, to make a checkpoint of.
    pub fn rocks(&self) -> RocksState {
        self.table.lock().rocks.clone()
    }

    /// How far the log is applied, and the membership as of there.
    pub fn mark(&self) -> AppliedMark {
        self.table.lock().mark.clone()
    }

    /// The last applied entry.
    pub fn last(&self) -> Option<LogId> {
        *self.last.borrow()
    }

    /// Follows the last applied entry.
    pub fn subscribe(&self) -> watch::Receiver<Option<LogId>> {
        self.last.subscribe()
    }

    /// When an entry was last applied here.
    pub fn last_applied_at(&self) -> Option<Instant> {
        *self.last_at.lock()
    }

    /// Waits until the entry at `log_index` is applied; gives how far the log is then.
    pub async fn reached(&self, log_index: u64) -> LogPosition {
        let mut last = self.subscribe();
        let reached = last.wait_for(|last| last.is_some_and(|last| last.index >= log_index)).await;
        let reached = reached.expect("the sender lives as long as self");
        reached.as_ref().map(position).unwrap_or_default()
    }

    /// The state hash after the entry at `log_index`, if it is known.
    pub fn state_hash(&self, log_index: u64) -> Option<Digest> {
        self.hashes.lock().at(log_index)
    }

    /// Where peers reach a replica, as it last said. `None`: it is no member yet, or none any more.
    pub fn peer_addr(&self, replica_id: u64) -> Option<String> {
        self.read(|state| state.member(ReplicaId(replica_id)).map(|member| member.peer_addr.as_str().to_owned()))
    }

    /// Where clients reach a replica.
    pub fn hint(&self, replica_id: Option<u64>) -> Option<LeaderHint> {
        let replica_id = ReplicaId(replica_id?);
        self.read(|state| state.member(replica_id).map(|member| LeaderHint { replica_id, addr: member.addr.clone() }))
    }

    /// Applies entries, which follow the last applied one, and stores what they came to in one batch. Gives the answers
    /// of each that are awaited.
    pub fn apply(&self, entries: Vec<ToApply>) -> Result<Vec<Vec<Answered>>, ReplicaError> {
        let Some(last_id) = entries.last().map(|entry| entry.log_id) else { return Ok(Vec::new()) };
        let mut table = self.table.lock();
        let mut state = self.state.write();
        let mut batch = Batch { changes: Vec::new(), answers: BTreeMap::new(), reader: Arc::clone(&table.reader) };
        let mut mark = table.mark.clone();
        let mut hashes = Vec::with_capacity(entries.len());
        let mut answered = Vec::with_capacity(entries.len());
        for ToApply { log_id, payload, is_awaited } in entries {
            let entry_id = crate::raft::entry_id(&log_id);
            let mut answers = Vec::new();
            match payload {
                ToApplyPayload::Blank => {}
                ToApplyPayload::Membership(membership) => {
                    (mark.membership, mark.membership_at) = (membership, Some(entry_id));
                }
                ToApplyPayload::Commands(commands) => {
                    let outcomes = batch.apply(&mut state, position(&log_id), commands)?;
                    if is_awaited {
                        answers = batch.resolve(outcomes, position(&log_id))?;
                    }
                }
            }
            mark.applied = Some(entry_id);
            hashes.push((log_id.index, state.state_hash()));
            answered.push(answers);
        }
        table.rocks.commit(&batch.changes, state.meta(), &mark).map_err(store("store what was applied"))?;
        table.mark = mark;
        drop(table);
        self.publish(state, last_id, &batch.changes, hashes);
        Ok(answered)
    }

    /// Shows the new state to all who wait for it.
    fn publish(&self, state: RwLockWriteGuard<'_, State>, last: LogId, changes: &[Change], hashes: Vec<(u64, Digest)>) {
        let state = RwLockWriteGuard::downgrade(state);
        if !self.waiters.is_empty() {
            self.waiters.changed(queues(changes), &state);
        }
        drop(state);
        {
            let mut kept = self.hashes.lock();
            hashes.into_iter().for_each(|(log_index, hash)| kept.push(log_index, hash, limits::HASHES_KEPT));
        }
        *self.last_at.lock() = Some(Instant::now());
        self.last.send_replace(Some(last));
    }

    /// Replaces everything by an installed snapshot.
    pub fn replace(&self, rocks: RocksState, state: State) -> Result<(), ReplicaError> {
        check_version(&state)?;
        let mark = rocks.mark();
        let last = mark.applied.as_ref().map(crate::raft::log_id);
        let state_hash = state.state_hash();
        let old = {
            let mut table = self.table.lock();
            let mut current = self.state.write();
            *table = Table { reader: rocks.reader(), rocks, mark };
            std::mem::replace(&mut *current, state)
        };
        // Taking many jobs down takes a while: nobody waits for it.
        drop(tokio::task::spawn_blocking(move || drop(old)));
        if let Some(last) = &last {
            self.hashes.lock().push(last.index, state_hash, limits::HASHES_KEPT);
        }
        *self.last_at.lock() = Some(Instant::now());
        self.last.send_replace(last);
        Ok(())
    }
}

/// What is applied and not stored yet.
struct Batch {
    changes: Vec<Change>,
    /// The answers among the changes.
    answers: BTreeMap<ReplyKey, Answer>,
    reader: Arc<dyn StateReader>,
}

impl Batch {
    fn apply(
        &mut self,
        state: &mut State,
        place: LogPosition,
        commands: Commands,
    ) -> Result<Vec<Outcome>, ReplicaError> {
        let applied = state.apply(place, commands);
        // What comes after an entry that raised the version above ours would be applied by rules that we do not know.
        check_version(state)?;
        for change in &applied.changes {
            if let Change::PutReply { reply, answer } = change {
                self.answers.insert(reply.reply_key, answer.clone());
            }
        }
        self.changes.extend(applied.changes);
        Ok(applied.outcomes)
    }

    /// Puts first answers in the place of repeated calls.
    fn resolve(&self, outcomes: Vec<Outcome>, place: LogPosition) -> Result<Vec<Answered>, ReplicaError> {
        let resolve = |outcome| match outcome {
            Outcome::Replayed(replayed) => {
                let outcome = match self.first_answer(&replayed)? {
                    Answer::Enqueued(jobs) => Outcome::Enqueued(jobs),
                    Answer::Claimed(jobs) => Outcome::Claimed(jobs),
                    Answer::Completed(job) => Outcome::Completed(vec![Ok(completed(job, &replayed))]),
                };
                Ok(Answered { outcome, applied_at: replayed.applied_at })
            }
            Outcome::Completed(entries) => {
                let first_place = match entries.as_slice() {
                    [Ok(Completion::Replayed(replayed))] => replayed.applied_at,
                    _ => place,
                };
                let entries = entries.into_iter().map(|entry| match entry {
                    Ok(Completion::Replayed(replayed)) => match self.first_answer(&replayed)? {
                        Answer::Completed(job) => Ok(Ok(completed(job, &replayed))),
                        Answer::Enqueued(_) | Answer::Claimed(_) => Err(damaged("a completion's answer is another's")),
                    },
                    other => Ok(other),
                });
                let outcome = Outcome::Completed(entries.collect::<Result<_, ReplicaError>>()?);
                Ok(Answered { outcome, applied_at: first_place })
            }
            outcome @ (Outcome::Enqueued(_)
            | Outcome::Claimed(_)
            | Outcome::Heartbeats(_)
            | Outcome::Job(_)
            | Outcome::Queue(_)
            | Outcome::ReplicaAllocated(_)
            | Outcome::Done
            | Outcome::Rejected(_)) => Ok(Answered { outcome, applied_at: place }),
        };
        outcomes.into_iter().map(resolve).collect()
    }

    /// The answer of the first call: among what is not stored yet, or in the table, which has not dropped it yet
    /// either.
    fn first_answer(&self, replayed: &Replayed) -> Result<Answer, ReplicaError> {
        if let Some(answer) = self.answers.get(&replayed.reply_key) {
            return Ok(answer.clone());
        }
        let stored = self.reader.answer(replayed.reply_key).map_err(store("read a kept answer"))?;
        stored.ok_or_else(|| damaged("a kept answer is missing"))
    }
}

/// The queues in which something has changed.
fn queues(changes: &[Change]) -> BTreeSet<&QueueName> {
    changes.iter().filter_map(queue).collect()
}

fn queue(change: &Change) -> Option<&QueueName> {
    match change {
        Change::PutJob(job) => Some(&job.queue),
        Change::PutQueue { queue, .. } => Some(queue),
        Change::Clocks { .. }
        | Change::DropJob(_)
        | Change::PutBlob { .. }
        | Change::PutAttestation { .. }
        | Change::PutReply { .. }
        | Change::DropReply(_)
        | Change::Audit(_)
        | Change::PutMember(_)
        | Change::DropMember(_)
        | Change::NextReplicaId(_)
        | Change::ClusterId(_)
        | Change::ClusterVersion(_)
        | Change::VersionHeld(_) => None,
    }
}

/// Whether this release may serve a cluster at the state's version.
fn check_version(state: &State) -> Result<(), ReplicaError> {
    let cluster_version = state.meta().cluster_version;
    match (CLUSTER_VERSION_MIN..=CLUSTER_VERSION_MAX).contains(&cluster_version) {
        true => Ok(()),
        false => {
            let (min, max) = (CLUSTER_VERSION_MIN, CLUSTER_VERSION_MAX);
            Err(ReplicaError::ClusterVersion { cluster_version, min, max })
        }
    }
}

/// A failed operation of the store.
pub(crate) fn store(operation: &'static str) -> impl Fn(StoreError) -> ReplicaError {
    // An `Arc`, since errors of a replica are told to many.
    move |source| ReplicaError::Store { operation, source: Arc::new(source) }
}

fn damaged(what: &str) -> ReplicaError {
    ReplicaError::Damaged { what: what.to_owned() }
}

/// The first answer to a completion that was repeated.
fn completed(job: Box<Job>, replayed: &Replayed) -> Completion {
    Completion::Now(Changed { job, fenced: replayed.fenced })
}
