//! A replica that is in a cluster: its consensus, and the tasks around it.

use std::sync::Arc;
use std::time::Duration;

use ag_core::name::ReplicaId;
use openraft::async_runtime::WatchReceiver as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::applied::AppliedState;
use crate::barrier::{Barrier, Rounds};
use crate::config::ReplicaConfig;
use crate::error::ReplicaError;
use crate::failure::Failure;
use crate::identity::Identity;
use crate::leadership::{self, Leadership};
use crate::peer::connect::Connector;
use crate::proposer::Proposer;
use crate::raft::{self, LogStore, NetworkFactory, Raft, StateMachine};
use crate::{announce, ticker};

/// A replica in a cluster.
pub(crate) struct Running {
    pub here: Identity,
    pub raft: Raft,
    pub leadership: watch::Receiver<Leadership>,
    pub proposer: Proposer,
    pub barrier: Barrier,
    pub applied: Arc<AppliedState>,
    pub connector: Arc<Connector>,
    /// What it had applied before it was started is applied again.
    pub recovered: watch::Receiver<bool>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// What a replica runs on.
pub(crate) struct Parts {
    pub log: LogStore,
    pub machine: StateMachine,
}

/// What surrounds a running replica.
pub(crate) struct Surroundings<'a> {
    pub config: &'a ReplicaConfig,
    pub connector: &'a Arc<Connector>,
    pub applied: &'a Arc<AppliedState>,
    pub failure: &'a Failure,
}

impl Running {
    /// Starts the consensus and its tasks.
    pub async fn start(here: Identity, parts: Parts, around: Surroundings<'_>) -> Result<Self, ReplicaError> {
        let Surroundings { config, connector, applied, failure } = around;
        let settings = raft::config(&config.timings)?;
        let network = NetworkFactory {
            here,
            applied: Arc::clone(applied),
            connector: Arc::clone(connector),
            silence: config.timings.election_max * 2,
        };
        let started = Raft::new(here.replica_id.0, Arc::new(settings), network, parts.log, parts.machine).await;
        let raft = started.map_err(|fatal| ReplicaError::Consensus { why: fatal.to_string() })?;

        if raft.voter_ids().eq([here.replica_id.0]) {
            // Nobody else can lead, so nothing is waited for.
            let elected = raft.trigger().elect(false).await;
            elected.map_err(|fatal| ReplicaError::Consensus { why: fatal.to_string() })?;
        }
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let spawn = |task: futures::future::BoxFuture<'static, ()>| {
            let stop = stop.clone();
            tasks.spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = task => {}
                }
            });
        };
        let (leading, leadership) = watch::channel(Leadership::Following { leader: None });
        let (proposer, proposing) = Proposer::new(raft.clone(), Arc::clone(applied), leadership.clone());
        let rounds =
            Rounds { raft: raft.clone(), here, connector: Arc::clone(connector), applied: Arc::clone(applied) };
        let (barrier, reading) = Barrier::new(rounds);
        let (recovering, recovered) = watch::channel(false);
        spawn(Box::pin(leadership::follow(raft.clone(), Arc::clone(applied), leading)));
        spawn(Box::pin(proposing));
        spawn(Box::pin(reading));
        spawn(Box::pin(ticker::run(proposer.clone(), Arc::clone(applied), leadership.clone())));
        spawn(Box::pin(recover(raft.clone(), recovering)));
        spawn(Box::pin(watch_for_failure(raft.clone(), failure.clone())));
        let announcer = announce::Announcer {
            here,
            member: announce::member(config, here.replica_id),
            raft: raft.clone(),
            connector: Arc::clone(connector),
            applied: Arc::clone(applied),
            proposer: proposer.clone(),
            leadership: leadership.clone(),
        };
        spawn(Box::pin(announcer.run()));
        let (applied, connector) = (Arc::clone(applied), Arc::clone(connector));
        Ok(Self { here, raft, leadership, proposer, barrier, applied, connector, recovered, tasks, stop })
    }

    /// The leader's id and peer address, as far as is known.
    pub fn leader(&self) -> Option<(ReplicaId, String)> {
        let metrics = self.raft.server_metrics().borrow_watched().clone();
        let leader = metrics.current_leader?;
        let at_first = metrics.membership_config.get_node(&leader)?;
        Some((ReplicaId(leader), self.applied.peer_addr(leader).unwrap_or_else(|| at_first.addr.clone())))
    }

    /// Stops the consensus and the tasks. Nothing is handed over.
    pub async fn stop(&self) {
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(%error, "the consensus did not end cleanly");
        }
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Says when all that this replica may have applied in an earlier life is applied again.
async fn recover(raft: Raft, recovered: watch::Sender<bool>) {
    match raft.wait_for_recovery(None).await {
        Ok(_) => _ = recovered.send_replace(true),
        Err(error) => tracing::debug!(%error, "the consensus stopped before it had recovered"),
    }
    // Keeps the answer readable.
    recovered.closed().await;
}

/// Latches the end of the consensus, unless it was asked for.
async fn watch_for_failure(raft: Raft, failure: Failure) {
    let mut metrics = raft.metrics();
    loop {
        let state = metrics.borrow_watched().running_state.clone();
        match state {
            Ok(()) => {}
            Err(openraft::errors::Fatal::Stopped) => return,
            Err(fatal) => {
                failure.latch(ReplicaError::Consensus { why: fatal.to_string() });
                return;
            }
        }
        // More than a look now and then would cost a wake-up for each entry.
        tokio::time::sleep(Duration::from_millis(50)).await;
        if metrics.changed().await.is_err() {
            return;
        }
    }
}
