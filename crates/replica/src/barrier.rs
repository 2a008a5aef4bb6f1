//! Reads that see all that was answered before they began, on any replica.
//!
//! The leader shows by a round of heartbeats that it still leads, and gives the index up to which a read must have
//! applied the log. Requests that come in while a round is under way share the next one. The leader's lease is never
//! relied on, since it does not survive a restart of a voter.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ag_core::name::{LogPosition, ReplicaId};
use ag_proto::peer_v1 as peer;
use openraft::ReadPolicy;
use openraft::async_runtime::WatchReceiver as _;
use openraft::errors::{LinearizableReadError, RaftError};
use tokio::sync::{mpsc, oneshot};

use crate::applied::AppliedState;
use crate::error::ProposeError;
use crate::identity::Identity;
use crate::limits;
use crate::peer::connect::Connector;
use crate::peer::header::Header;
use crate::raft::{LogId, Raft, codec};

/// How long one round may take.
const ROUND_TIMEOUT: Duration = Duration::from_secs(2);
/// How long rounds are tried while there is no leader.
const PATIENCE: Duration = Duration::from_secs(4);
/// The time between two tries.
const PAUSE: Duration = Duration::from_millis(25);

/// Makes reads wait for what they must see. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Barrier {
    queue: mpsc::Sender<Waiting>,
}

struct Waiting {
    give_up: Instant,
    deadline: Instant,
    answer: oneshot::Sender<Result<LogPosition, ProposeError>>,
}

impl Barrier {
    /// A barrier, and the task that must run for it.
    pub fn new(rounds: Rounds) -> (Self, impl Future<Output = ()> + Send) {
        let (queue, waiting) = mpsc::channel(limits::QUEUED_COMMANDS_MAX);
        (Self { queue }, rounds.run(waiting))
    }

    /// Waits until a read here sees all that was answered anywhere before this call. Gives how far that is, at least.
    pub async fn pass(&self, deadline: Instant) -> Result<LogPosition, ProposeError> {
        let (answer, passed) = oneshot::channel();
        let give_up = deadline.min(Instant::now() + PATIENCE);
        self.queue.try_send(Waiting { give_up, deadline, answer }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => ProposeError::Overloaded { limit: limits::QUEUED_COMMANDS_MAX },
            mpsc::error::TrySendError::Closed(_) => ProposeError::ShuttingDown,
        })?;
        match tokio::time::timeout_at(deadline.into(), passed).await {
            Ok(answer) => answer.unwrap_or(Err(ProposeError::ShuttingDown)),
            Err(_) => Err(ProposeError::DeadlineExceeded),
        }
    }
}

/// What rounds need.
pub(crate) struct Rounds {
    pub raft: Raft,
    pub here: Identity,
    pub connector: Arc<Connector>,
    pub applied: Arc<AppliedState>,
}

impl Rounds {
    async fn run(self, mut queue: mpsc::Receiver<Waiting>) {
        let mut waiting: Vec<Waiting> = Vec::new();
        loop {
            if waiting.is_empty() {
                let Some(first) = queue.recv().await else { return };
                waiting.push(first);
            }
            while let Ok(more) = queue.try_recv() {
                waiting.push(more);
            }
            match self.round().await {
                Ok(log_id) => {
                    let passed = std::mem::take(&mut waiting);
                    tokio::spawn(pass(Arc::clone(&self.applied), log_id, passed));
                }
                Err(error) => {
                    let now = Instant::now();
                    let expired = waiting.extract_if(.., |one| one.give_up <= now);
                    expired.for_each(|one| drop(one.answer.send(Err(error.clone()))));
                    if matches!(error, ProposeError::Failed) {
                        waiting.drain(..).for_each(|one| drop(one.answer.send(Err(error.clone()))));
                        return;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// The index that reads must have applied.
    async fn round(&self) -> Result<LogId, ProposeError> {
        let leader = self.raft.server_metrics().borrow_watched().current_leader;
        let not_leader = || ProposeError::NotLeader { leader: self.applied.hint(leader) };
        let Some(leader_id) = leader else { return Err(not_leader()) };
        let read = async {
            match leader_id == self.here.replica_id.0 {
                true => read_index(&self.raft).await.map_err(|unready| match unready {
                    Unready::NotLeader => not_leader(),
                    Unready::Stopped => ProposeError::Failed,
                }),
                false => self.ask(leader_id).await.ok_or_else(not_leader),
            }
        };
        tokio::time::timeout(ROUND_TIMEOUT, read).await.unwrap_or_else(|_| Err(not_leader()))
    }

    async fn ask(&self, leader: u64) -> Option<LogId> {
        let metrics = self.raft.server_metrics().borrow_watched().clone();
        let at_first = metrics.membership_config.get_node(&leader)?;
        let peer_addr = self.applied.peer_addr(leader).unwrap_or_else(|| at_first.addr.clone());
        let header = Header { from: self.here, to: ReplicaId(leader) };
        let mut client = self.connector.shared(&peer_addr);
        let answer = client.read_index(header.request(peer::ReadIndexRequest { shard: 0 })).await;
        match answer {
            Ok(response) => response.into_inner().log_id.as_ref().map(codec::parse_log_id),
            Err(status) => {
                tracing::debug!(%status, leader, "no read index");
                None
            }
        }
    }
}

/// Answers all once the log is applied here up to `log_id`.
async fn pass(applied: Arc<AppliedState>, log_id: LogId, waiting: Vec<Waiting>) {
    let latest = waiting.iter().map(|one| one.deadline).max().unwrap_or_else(Instant::now);
    // Those with an earlier deadline give up by themselves.
    let reached = tokio::time::timeout_at(latest.into(), applied.reached(log_id.index)).await;
    for one in waiting {
        let position = match reached {
            Ok(position) => Ok(position),
            Err(_) => Err(ProposeError::DeadlineExceeded),
        };
        let _ = one.answer.send(position);
    }
}

/// Why there is no read index.
pub(crate) enum Unready {
    /// This replica cannot show that it leads.
    NotLeader,
    /// The consensus has stopped.
    Stopped,
}

/// The read index, on the leader.
pub(crate) async fn read_index(raft: &Raft) -> Result<LogId, Unready> {
    match raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
        Ok(linearizer) => Ok(*linearizer.read_log_id().log_id()),
        Err(RaftError::APIError(
            LinearizableReadError::ForwardToLeader(_) | LinearizableReadError::QuorumNotEnough(_),
        )) => Err(Unready::NotLeader),
        Err(RaftError::Fatal(_)) => Err(Unready::Stopped),
    }
}
