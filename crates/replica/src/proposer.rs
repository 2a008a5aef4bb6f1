//! Commands on their way into the log: many in one entry, stamped by both clocks of the leader.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use ag_core::command::{Actor, Command, Entry, Operation, Undelivered};
use ag_core::outcome::Outcome;
use openraft::errors::ClientWriteError;
use openraft::impls::ProgressResponder;
use openraft::raft::ClientWriteResult;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use crate::answered::Answered;
use crate::applied::AppliedState;
use crate::clock::wall_now;
use crate::command_bytes::command_bytes;
use crate::error::ProposeError;
use crate::leadership::{Leadership, Term};
use crate::limits;
use crate::raft::{EntryBytes, Raft, TypeConfig, position};

type Answer = Result<Answered, ProposeError>;

/// Takes commands. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Proposer {
    queue: mpsc::Sender<Item>,
    queued_bytes: Arc<AtomicUsize>,
    leadership: watch::Receiver<Leadership>,
    applied: Arc<AppliedState>,
}

/// One command in the queue.
struct Item {
    /// `None`: time passes, nothing else.
    command: Option<Command>,
    deadline: Instant,
    /// Set as soon as the command may be in the log.
    proposed: Arc<AtomicBool>,
    answer: oneshot::Sender<Answer>,
    /// Counted until the item is out of the queue.
    queued: QueuedBytes,
}

struct QueuedBytes {
    bytes: usize,
    total: Arc<AtomicUsize>,
}

impl Drop for QueuedBytes {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Proposer {
    /// A proposer, and the task that must run for it.
    pub fn new(
        raft: Raft,
        applied: Arc<AppliedState>,
        leadership: watch::Receiver<Leadership>,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (queue, items) = mpsc::channel(limits::QUEUED_COMMANDS_MAX);
        let proposer = Self { queue, queued_bytes: Arc::default(), leadership, applied };
        let task = Task {
            raft,
            items,
            carried: None,
            proposer: proposer.queue.downgrade(),
            shared: proposer.clone_parts(),
            permits: Arc::new(Semaphore::new(limits::ENTRIES_IN_FLIGHT_MAX)),
        };
        (proposer, task.run())
    }

    fn clone_parts(&self) -> (Arc<AtomicUsize>, watch::Receiver<Leadership>, Arc<AppliedState>) {
        (Arc::clone(&self.queued_bytes), self.leadership.clone(), Arc::clone(&self.applied))
    }

    /// Proposes a command, and waits until it is applied here.
    ///
    /// If the caller goes while it waits, jobs that the command has claimed are given back.
    pub async fn propose(&self, command: Command, deadline: Instant) -> Answer {
        self.propose_or_tick(Some(command), deadline).await
    }

    /// How many commands wait.
    pub fn queued(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }

    /// Lets time pass.
    pub async fn tick(&self, deadline: Instant) -> Result<(), ProposeError> {
        self.propose_or_tick(None, deadline).await.map(drop)
    }

    async fn propose_or_tick(&self, command: Option<Command>, deadline: Instant) -> Answer {
        self.check_leading()?;
        let gives_back = command.as_ref().is_some_and(gives_back);
        let proposed = Arc::new(AtomicBool::new(false));
        let receipt = self.queue(command, deadline, Arc::clone(&proposed))?;
        let mut receipt = Receipt { receiver: Some(receipt), gives_back, proposer: self };
        match tokio::time::timeout_at(deadline.into(), receipt.answer()).await {
            Ok(answer) => answer,
            Err(_) if proposed.load(Ordering::SeqCst) => Err(ProposeError::Unknown),
            // The task drops what it finds expired, so it is not proposed later either.
            Err(_) => Err(ProposeError::DeadlineExceeded),
        }
    }

    fn check_leading(&self) -> Result<(), ProposeError> {
        match &*self.leadership.borrow() {
            Leadership::Rising | Leadership::Leading(_) => Ok(()),
            Leadership::Following { leader } => Err(ProposeError::NotLeader { leader: self.applied.hint(*leader) }),
            Leadership::Stopped => Err(ProposeError::ShuttingDown),
        }
    }

    fn queue(
        &self,
        command: Option<Command>,
        deadline: Instant,
        proposed: Arc<AtomicBool>,
    ) -> Result<oneshot::Receiver<Answer>, ProposeError> {
        let bytes = command.as_ref().map_or(0, command_bytes);
        let queued = QueuedBytes { bytes, total: Arc::clone(&self.queued_bytes) };
        if self.queued_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > limits::QUEUED_BYTES_MAX {
            return Err(ProposeError::Overloaded { limit: limits::QUEUED_COMMANDS_MAX });
        }
        let (answer, receipt) = oneshot::channel();
        match self.queue.try_send(Item { command, deadline, proposed, answer, queued }) {
            Ok(()) => Ok(receipt),
            Err(mpsc::error::TrySendError::Full(_)) => {
                Err(ProposeError::Overloaded { limit: limits::QUEUED_COMMANDS_MAX })
            }
            Err(mpsc::error::TrySendError::Closed(_)) => Err(ProposeError::ShuttingDown),
        }
    }

    /// Gives back the jobs of an answer that nobody received.
    fn give_back(&self, answered: &Answered) {
        let undelivered = undelivered(answered);
        if undelivered.is_empty() {
            return;
        }
        tracing::debug!(jobs = undelivered.len(), "claims are given back: nobody received them");
        let command = Command { actor: Actor::System, operation: Operation::ReleaseUndelivered(undelivered) };
        // If it cannot be queued, or is never proposed, the leases run out by themselves.
        let deadline = Instant::now() + limits::JOIN_TIMEOUT;
        match self.queue(Some(command), deadline, Arc::default()) {
            Ok(receipt) => drop(tokio::spawn(receipt)),
            Err(error) => tracing::debug!(%error, "claims that nobody received stay until their leases run out"),
        }
    }
}

fn raises_version(item: &Item) -> bool {
    matches!(&item.command, Some(Command { operation: Operation::SetClusterVersion(_), .. }))
}

/// A claim without a request id cannot be repeated, so what it got must not stay with nobody.
fn gives_back(command: &Command) -> bool {
    matches!(&command.operation, Operation::Claim(claim) if claim.request_id.is_none())
}

fn undelivered(answered: &Answered) -> Vec<Undelivered> {
    match &answered.outcome {
        Outcome::Claimed(jobs) => {
            jobs.iter().map(|job| Undelivered { job_id: job.job_id, attempts: job.attempts }).collect()
        }
        Outcome::Enqueued(_)
        | Outcome::Heartbeats(_)
        | Outcome::Completed(_)
        | Outcome::Job(_)
        | Outcome::Replayed(_)
        | Outcome::Queue(_)
        | Outcome::ReplicaAllocated(_)
        | Outcome::Done
        | Outcome::Rejected(_) => Vec::new(),
    }
}

/// An answer to come. If it is dropped before it was taken, claimed jobs are given back.
struct Receipt<'a> {
    receiver: Option<oneshot::Receiver<Answer>>,
    gives_back: bool,
    proposer: &'a Proposer,
}

impl Receipt<'_> {
    async fn answer(&mut self) -> Answer {
        let Some(receiver) = self.receiver.as_mut() else { return Err(ProposeError::Unknown) };
        let answer = receiver.await.unwrap_or(Err(ProposeError::Unknown));
        self.receiver = None;
        answer
    }
}

impl Drop for Receipt<'_> {
    fn drop(&mut self) {
        let Some(mut receiver) = self.receiver.take() else { return };
        receiver.close();
        if let (Ok(Ok(answered)), true) = (receiver.try_recv(), self.gives_back) {
            self.proposer.give_back(&answered);
        }
    }
}

/// The task: it fills entries and proposes them.
struct Task {
    raft: Raft,
    items: mpsc::Receiver<Item>,
    /// What did not fit into the last entry.
    carried: Option<Item>,
    /// The queue's own end must not keep it open.
    proposer: mpsc::WeakSender<Item>,
    shared: (Arc<AtomicUsize>, watch::Receiver<Leadership>, Arc<AppliedState>),
    permits: Arc<Semaphore>,
}

impl Task {
    async fn run(mut self) {
        // With as many entries on their way as there may be, commands queue up, and the next entry holds more of them.
        while let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await {
            let first = match self.carried.take() {
                Some(carried) => carried,
                None => match self.items.recv().await {
                    Some(item) => item,
                    None => return,
                },
            };
            match self.term().await {
                Ok(term) => {
                    let batch = self.fill(first);
                    let raises = batch.last().is_some_and(raises_version);
                    if !batch.is_empty() {
                        self.propose(term, batch, permit).await;
                    }
                    if raises && !self.settled().await {
                        return;
                    }
                }
                Err(error) => self.refuse(first, &error),
            }
        }
    }

    /// Waits until nothing is on its way into the log. False: this replica stops.
    async fn settled(&self) -> bool {
        self.permits.acquire_many(limits::ENTRIES_IN_FLIGHT_MAX as u32).await.is_ok()
    }

    /// The term in which this replica leads; waits while it rises.
    async fn term(&mut self) -> Result<Term, ProposeError> {
        let (_, leadership, applied) = &mut self.shared;
        let settled = leadership.wait_for(|now| !matches!(now, Leadership::Rising)).await;
        match settled.as_deref() {
            Ok(Leadership::Leading(term)) => Ok(*term),
            Ok(Leadership::Following { leader }) => Err(ProposeError::NotLeader { leader: applied.hint(*leader) }),
            Ok(Leadership::Rising | Leadership::Stopped) | Err(_) => Err(ProposeError::ShuttingDown),
        }
    }

    fn refuse(&mut self, first: Item, error: &ProposeError) {
        // Whoever does not wait any more needs no answer.
        let _ = first.answer.send(Err(error.clone()));
        while let Ok(item) = self.items.try_recv() {
            let _ = item.answer.send(Err(error.clone()));
        }
    }

    /// Takes what is queued, as far as one entry goes. What is too late, or has nobody waiting, is not proposed.
    fn fill(&mut self, first: Item) -> Vec<Item> {
        let now = Instant::now();
        let mut batch: Vec<Item> = Vec::new();
        let (mut commands, mut bytes) = (0, 0);
        let mut next = Some(first);
        while let Some(item) = next.take().or_else(|| self.items.try_recv().ok()) {
            if item.answer.is_closed() {
                continue;
            }
            if item.deadline <= now {
                let _ = item.answer.send(Err(ProposeError::DeadlineExceeded));
                continue;
            }
            bytes += item.queued.bytes;
            let is_full = commands >= limits::ENTRY_COMMANDS_MAX || bytes > limits::ENTRY_BYTES_MAX;
            if is_full && !batch.is_empty() {
                self.carried = Some(item);
                break;
            }
            commands += usize::from(item.command.is_some());
            item.proposed.store(true, Ordering::SeqCst);
            // What comes after it is proposed by its rules, once it is applied.
            let is_last = raises_version(&item);
            batch.push(item);
            if is_last {
                break;
            }
        }
        batch
    }

    async fn propose(&self, term: Term, batch: Vec<Item>, permit: OwnedSemaphorePermit) {
        let mut commands = Vec::with_capacity(batch.len());
        let mut waiting = Vec::with_capacity(batch.len());
        for Item { command, answer, .. } in batch {
            let gives_back = command.as_ref().is_some_and(gives_back);
            waiting.push(Waiting { answer, gives_back, is_tick: command.is_none() });
            commands.extend(command);
        }
        // It is the version at which the entry will be applied: all entries of earlier terms are applied here, and none
        // of this one that could raise it is on its way.
        let cluster_version = self.shared.2.read(|state| state.meta().cluster_version);
        commands.iter_mut().for_each(|command: &mut Command| command.operation.fit_to(cluster_version));
        let entry = Entry { lease_now: term.clock.now(), wall_now: wall_now(), commands };
        let bytes = EntryBytes(ag_wire::storage::encode_entry(&entry).into());
        let (responder, answer) = ProgressResponder::complete_only();
        // Only in this term: the stamps are those of its clock.
        if self.raft.write(bytes).with_leader(term.leader_id).responder(responder).await.is_err() {
            // Nothing was handed over.
            waiting.into_iter().for_each(|waiting| drop(waiting.answer.send(Err(ProposeError::Failed))));
            return;
        }
        let proposer = self.proposer();
        let applied = Arc::clone(&self.shared.2);
        tokio::spawn(async move {
            let answer = answer.await.ok();
            drop(permit);
            hand_out(answer, waiting, proposer.as_ref(), &applied);
        });
    }

    fn proposer(&self) -> Option<Proposer> {
        let (queued_bytes, leadership, applied) = &self.shared;
        Some(Proposer {
            queue: self.proposer.upgrade()?,
            queued_bytes: Arc::clone(queued_bytes),
            leadership: leadership.clone(),
            applied: Arc::clone(applied),
        })
    }
}

/// Who waits for one answer of an entry.
struct Waiting {
    answer: oneshot::Sender<Answer>,
    gives_back: bool,
    is_tick: bool,
}

/// Gives each its answer, by its place in the entry.
fn hand_out(
    answer: Option<ClientWriteResult<TypeConfig>>,
    waiting: Vec<Waiting>,
    proposer: Option<&Proposer>,
    applied: &AppliedState,
) {
    let refusal = match answer {
        Some(Ok(response)) => {
            let applied_at = position(&response.log_id);
            let mut answers = response.data.into_iter();
            for Waiting { answer, gives_back, is_tick } in waiting {
                let answered = match is_tick {
                    true => Some(Answered { outcome: Outcome::Done, applied_at }),
                    false => answers.next(),
                };
                let sent = answer.send(answered.ok_or(ProposeError::Unknown));
                if let (Err(Ok(answered)), true, Some(proposer)) = (sent, gives_back, proposer) {
                    proposer.give_back(&answered);
                }
            }
            return;
        }
        // It was never appended.
        Some(Err(ClientWriteError::ForwardToLeader(forward))) => {
            ProposeError::NotLeader { leader: applied.hint(forward.leader_id) }
        }
        // It was appended, and may be committed by the next leader; or the consensus has stopped.
        Some(Err(
            ClientWriteError::LogEntryDiscarded(_)
            | ClientWriteError::ChangeMembershipError(_)
            | ClientWriteError::PreconditionFailed(_),
        ))
        | None => ProposeError::Unknown,
    };
    waiting.into_iter().for_each(|waiting| drop(waiting.answer.send(Err(refusal.clone()))));
}
