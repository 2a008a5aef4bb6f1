//! One replica: the handle that everything else uses.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ag_core::State;
use ag_core::command::{Actor, ClaimJobs, Command, Operation};
use ag_core::name::{Addr, LogPosition, ReplicaId};
use ag_store::{AppliedMark, DataDir, LogTable, RocksState, Snapshots, StateReader, StateTable as _, StoreOptions};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::answered::Answered;
use crate::applied::{AppliedState, store};
use crate::config::ReplicaConfig;
use crate::error::{ClusterError, LeaderHint, ProposeError, ReplicaError};
use crate::failure::Failure;
use crate::forward::{ForwardAnswer, Forwarded, RequestHandler};
use crate::inner::Inner;
use crate::metrics::ReplicaMetrics;
use crate::peer::connect::Connector;
use crate::peer::listen::{self, Closing};
use crate::peer::service::PeerHandler;
use crate::raft::{LogStore, StateMachine};
use crate::running::{Parts, Running};
use crate::view::{self, ClusterView};
use crate::{claim, cluster, forward};

/// How long open connections of peers are waited for when the replica stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// One replica. Cheap to clone. It runs until [`Replica::shutdown`].
#[derive(Clone)]
pub struct Replica {
    inner: Arc<Inner>,
    peer_listen: SocketAddr,
    port: Arc<Mutex<Option<tokio::task::JoinHandle<()>>>>,
}

/// What was opened in the data directory.
struct Opened {
    log: LogTable,
    rocks: RocksState,
    snapshots: Snapshots,
    state: State,
    mark: AppliedMark,
}

fn open(config: &ReplicaConfig) -> Result<Opened, ReplicaError> {
    let dir = DataDir::open(&config.data_dir, StoreOptions { fsync: config.fsync });
    let dir = dir.map_err(store("open the data directory"))?;
    let log = dir.log().map_err(store("open the log"))?;
    let snapshots = dir.snapshots().map_err(store("open the snapshots"))?;
    let rocks = dir.state().map_err(store("open the state"))?;
    let loading = Instant::now();
    let mut shown = loading;
    let loaded = rocks.load(&mut |progress| {
        if shown.elapsed() > Duration::from_secs(2) {
            shown = Instant::now();
            tracing::info!(rows = progress.rows, rows_total = progress.rows_total, "loading the state");
        }
    });
    let (state, mark) = loaded.map_err(store("load the state"))?;
    let snapshot = snapshots.newest().and_then(|newest| newest.meta().mark.applied);
    log.check_replayable(mark.applied, snapshot).map_err(store("bring the state up to date"))?;
    tracing::info!(jobs = state.job_count(), seconds = loading.elapsed().as_secs_f32(), "the state is loaded");
    Ok(Opened { log, rocks, snapshots, state, mark })
}

impl Replica {
    /// Opens the data directory and the peer port. A replica that is in a cluster takes part in it at once, one that is
    /// not waits to be made part of one.
    pub async fn start(config: ReplicaConfig) -> Result<Self, ReplicaError> {
        // Before the data is loaded, so that a port in use is noticed at once; peers wait until it is served.
        let listener = listen::bind(config.peer_listen).await?;
        let peer_listen = listener.local_addr();
        let peer_listen = peer_listen
            .map_err(|source| ReplicaError::Listen { listen: config.peer_listen, source: Arc::new(source) })?;
        let opening = config.clone();
        let opened = tokio::task::spawn_blocking(move || open(&opening)).await;
        let opened = opened.map_err(|error| ReplicaError::Consensus { why: error.to_string() })??;

        let failure = Failure::new();
        let applied = Arc::new(AppliedState::new(opened.rocks, opened.state, opened.mark)?);
        let log = Arc::new(opened.log);
        let identity = log.identity().map_err(store("read who this replica is"))?;
        let parts = Parts {
            log: LogStore::new(Arc::clone(&log), failure.clone())?,
            machine: StateMachine {
                applied: Arc::clone(&applied),
                snapshots: opened.snapshots.clone(),
                failure: failure.clone(),
            },
        };
        let inner = Arc::new(Inner {
            connector: Arc::new(Connector::new(config.peer_tls.clone())),
            config,
            applied,
            snapshots: opened.snapshots,
            failure,
            handler: OnceLock::new(),
            closing: Closing::default(),
            stop_claims: CancellationToken::new(),
            is_draining: AtomicBool::new(false),
            log: Mutex::new(Some(log)),
            parts: tokio::sync::Mutex::new(Some(parts)),
            running: watch::Sender::new(None),
        });
        if let Some(identity) = identity {
            inner.join(identity).await?;
        }
        let handler = PeerHandler { inner: Arc::downgrade(&inner) };
        let served = listen::serve(listener, inner.config.peer_tls.clone(), handler, inner.closing.clone());
        let port = Arc::new(Mutex::new(Some(tokio::spawn(served))));
        Ok(Self { inner, peer_listen, port })
    }

    /// Sets what runs forwarded requests. The first one stays.
    pub fn set_request_handler(&self, handler: Arc<dyn RequestHandler>) {
        if self.inner.handler.set(handler).is_err() {
            tracing::warn!("requests of other replicas are handled already; the second handler is ignored");
        }
    }

    /// Where the peer port is.
    pub fn peer_listen(&self) -> SocketAddr {
        self.peer_listen
    }

    /// This replica's id; `None`: it is in no cluster.
    pub fn replica_id(&self) -> Option<ReplicaId> {
        self.inner.running().map(|running| running.here.replica_id)
    }

    /// Whether this replica was elected, as far as it knows. It may have been deposed since.
    pub fn is_leader(&self) -> bool {
        self.inner.running().is_some_and(|running| running.leadership.borrow().is_elected())
    }

    /// The cluster version by whose rules this replica proposes; `None` while it does not lead, or has not applied yet
    /// what earlier leaders have left.
    pub fn proposing_version(&self) -> Option<u32> {
        let running = self.inner.running()?;
        running.leadership.borrow().term()?;
        Some(self.read(|state| state.meta().cluster_version))
    }

    /// Who leads, as far as is known here.
    pub fn leader(&self) -> Option<LeaderHint> {
        let (leader, _) = self.inner.running()?.leader()?;
        self.inner.applied.hint(Some(leader.0))
    }

    /// Proposes a command, on the leader, and waits until it is applied here.
    ///
    /// If the returned future is dropped, the command may still be applied; jobs that it claimed are given back then.
    pub async fn propose(&self, command: Command, deadline: Instant) -> Result<Answered, ProposeError> {
        let running = self.inner.usable()?;
        running.proposer.propose(command, deadline).await
    }

    /// Claims jobs, on the leader; waits up to `wait` until there is one. Waiting claims are served in the order in
    /// which they came. If the returned future is dropped, nothing stays claimed for it.
    pub async fn claim(
        &self,
        actor: Actor,
        claim: ClaimJobs,
        wait: Duration,
        deadline: Instant,
    ) -> Result<Answered, ProposeError> {
        let running = self.inner.usable()?;
        let leadership = running.leadership.clone();
        let (times, ending) = ((wait, deadline), self.inner.claims_ending());
        claim::claim(&running.proposer, &self.inner.applied, leadership, (actor, claim), times, ending).await
    }

    /// Passes a client's request on to the leader, once.
    pub async fn forward(&self, request: Forwarded) -> Result<ForwardAnswer, ProposeError> {
        let running = self.inner.usable()?;
        forward::forward(&running, request).await
    }

    /// Waits until a read here sees everything that any replica had answered before this call. Gives how far the log is
    /// applied then.
    pub async fn read_barrier(&self, deadline: Instant) -> Result<LogPosition, ProposeError> {
        let running = self.inner.usable()?;
        tokio::select! {
            passed = running.barrier.pass(deadline) => passed,
            () = self.inner.closing.stop.cancelled() => Err(ProposeError::ShuttingDown),
            _ = self.inner.failure.latched() => Err(ProposeError::Failed),
        }
    }

    /// Reads the state as it is applied here, which may be behind: see [`Replica::read_barrier`].
    pub fn read<R>(&self, read: impl FnOnce(&State) -> R) -> R {
        self.inner.applied.read(read)
    }

    /// How far the log is applied here.
    pub fn applied(&self) -> Option<LogPosition> {
        self.inner.applied.last().as_ref().map(crate::raft::position)
    }

    /// Reads blobs, answers, attestations and the audit log, which the state does not hold. `None` while this replica
    /// is in no cluster. Not to be kept for long: an installed snapshot replaces it.
    pub fn table(&self) -> Option<Arc<dyn StateReader>> {
        self.inner.running().map(|_| self.inner.applied.reader())
    }

    /// What is known of the cluster. Asks the other members, and waits at most until `deadline`, and about two seconds.
    pub async fn cluster(&self, deadline: Instant) -> ClusterView {
        view::cluster(&self.inner, self.inner.running().as_deref(), deadline).await
    }

    /// Makes a cluster of this replica and those at `peers`, all of them empty. After an error it can be repeated, here
    /// and with the same peers in the same order.
    pub async fn init_cluster(&self, actor: Actor, peers: Vec<Addr>, deadline: Instant) -> Result<(), ClusterError> {
        self.usable_or_alone()?;
        cluster::init(&self.inner, actor, peers, deadline).await
    }

    /// Adds the empty replica at `peer_addr`, on the leader: it gets an id, catches up, and votes unless it is to be a
    /// learner. After a timeout it can be repeated.
    pub async fn add_replica(
        &self,
        actor: Actor,
        peer_addr: Addr,
        is_learner: bool,
        deadline: Instant,
    ) -> Result<ReplicaId, ClusterError> {
        let running = self.for_change()?;
        cluster::add(&self.inner, &running, actor, (peer_addr, is_learner), deadline).await
    }

    /// Removes a replica, on the leader. The leader itself hands the leadership over and answers
    /// [`ProposeError::NotLeader`]: the next leader can remove it.
    pub async fn remove_replica(
        &self,
        actor: Actor,
        replica_id: ReplicaId,
        deadline: Instant,
    ) -> Result<(), ClusterError> {
        let running = self.for_change()?;
        cluster::remove(&self.inner, &running, actor, replica_id, deadline).await
    }

    /// Hands the leadership over, on the leader, to a voter that answers and is not far behind; `None`: to the one that
    /// is furthest ahead. Gives who leads then, which may be another one.
    pub async fn transfer_leadership(
        &self,
        to: Option<ReplicaId>,
        deadline: Instant,
    ) -> Result<ReplicaId, ClusterError> {
        let running = self.for_change()?;
        cluster::transfer(&self.inner, &running, to, deadline).await
    }

    /// Raises the cluster version, on the leader.
    pub async fn set_cluster_version(
        &self,
        actor: Actor,
        cluster_version: u32,
        deadline: Instant,
    ) -> Result<(), ClusterError> {
        let operation = Operation::SetClusterVersion(cluster_version);
        cluster::propose(&*self.for_change()?, "set the cluster version", actor, operation, deadline).await.map(drop)
    }

    /// Holds the cluster version where it is, or lets it rise by itself again, on the leader.
    pub async fn hold_cluster_version(&self, actor: Actor, held: bool, deadline: Instant) -> Result<(), ClusterError> {
        let operation = Operation::HoldClusterVersion(held);
        cluster::propose(&*self.for_change()?, "hold the cluster version", actor, operation, deadline).await.map(drop)
    }

    /// Numbers for operators.
    pub fn metrics(&self) -> ReplicaMetrics {
        ReplicaMetrics::of(&self.inner)
    }

    /// Whether this replica can serve: it is in a cluster, has applied again what it had applied before it was started,
    /// and nothing has stopped it.
    pub fn is_ready(&self) -> bool {
        self.inner.usable().is_ok_and(|running| *running.recovered.borrow())
    }

    /// Waits for an error after which this replica has stopped. The process should end then.
    pub async fn failed(&self) -> ReplicaError {
        self.inner.failure.latched().await
    }

    /// Stops. A leader first hands the leadership over, if it can be done before `deadline`; with one that has passed,
    /// it just stops. Its data directory is free once all handles are dropped.
    pub async fn shutdown(&self, deadline: Instant) {
        self.inner.is_draining.store(true, Ordering::Release);
        self.inner.stop_claims.cancel();
        let running = self.inner.running();
        if let Some(running) = &running {
            if self.is_leader() && Instant::now() < deadline && running.raft.voter_ids().count() > 1 {
                match cluster::transfer(&self.inner, running, None, deadline).await {
                    Ok(leader) => tracing::info!(%leader, "the leadership is handed over"),
                    Err(error) => tracing::warn!(%error, "the leadership is not handed over"),
                }
            }
            running.stop().await;
        }
        self.inner.closing.drain.cancel();
        self.inner.parts.lock().await.take();
        self.inner.log.lock().take();
        self.inner.running.send_replace(None);
        let port = self.port.lock().take();
        if let Some(mut port) = port
            && tokio::time::timeout(CLOSE_TIMEOUT, &mut port).await.is_err()
        {
            tracing::debug!("connections of peers are broken off");
            port.abort();
        }
        self.inner.closing.stop.cancel();
    }

    fn usable_or_alone(&self) -> Result<(), ClusterError> {
        match self.inner.usable() {
            Ok(_) | Err(ProposeError::NoCluster) => Ok(()),
            Err(source) => Err(ClusterError::Propose { operation: "make the cluster", source }),
        }
    }

    fn for_change(&self) -> Result<Arc<Running>, ClusterError> {
        let usable = self.inner.usable();
        usable.map_err(|source| ClusterError::Propose { operation: "change the cluster", source })
    }
}

impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replica").field("replica_id", &self.replica_id()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
