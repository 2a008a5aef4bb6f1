//! What all handles of a replica share.

use std::sync::{Arc, OnceLock};

use ag_proto::peer_v1 as peer;
use ag_store::{LogTable, Snapshots};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::applied::{AppliedState, store};
use crate::config::ReplicaConfig;
use crate::error::{ProposeError, ReplicaError};
use crate::failure::Failure;
use crate::forward::RequestHandler;
use crate::identity::Identity;
use crate::peer::connect::Connector;
use crate::peer::listen::Closing;
use crate::running::{Parts, Running, Surroundings};

/// A replica, in a cluster or not.
pub(crate) struct Inner {
    pub config: ReplicaConfig,
    pub applied: Arc<AppliedState>,
    pub snapshots: Snapshots,
    pub connector: Arc<Connector>,
    pub failure: Failure,
    pub handler: OnceLock<Arc<dyn RequestHandler>>,
    /// When the peer port closes.
    pub closing: Closing,
    /// Waiting claims end.
    pub stop_claims: CancellationToken,
    /// No new requests are taken.
    pub is_draining: std::sync::atomic::AtomicBool,
    pub log: Mutex<Option<Arc<LogTable>>>,
    /// What the consensus will run on. `None`: it runs, or has run.
    pub parts: tokio::sync::Mutex<Option<Parts>>,
    pub running: watch::Sender<Option<Arc<Running>>>,
}

impl Inner {
    /// The running replica; `None`: it is in no cluster.
    pub fn running(&self) -> Option<Arc<Running>> {
        self.running.borrow().clone()
    }

    /// The running replica, if it may be used.
    pub fn usable(&self) -> Result<Arc<Running>, ProposeError> {
        if self.failure.is_latched() {
            return Err(ProposeError::Failed);
        }
        if self.is_draining.load(std::sync::atomic::Ordering::Acquire) || self.closing.drain.is_cancelled() {
            return Err(ProposeError::ShuttingDown);
        }
        self.running().ok_or(ProposeError::NoCluster)
    }

    /// Waits until no claim may wait any more: the consensus goes on for a while, to hand the leadership over.
    pub async fn claims_ending(&self) {
        tokio::select! {
            () = self.stop_claims.cancelled() => {}
            _ = self.failure.latched() => {}
        }
    }

    /// Which replica of which cluster this is; `None`: none yet.
    pub fn identity(&self) -> Result<Option<Identity>, ReplicaError> {
        let log = self.log.lock().clone().ok_or(ReplicaError::ShutDown)?;
        log.identity().map_err(store("read who this replica is"))
    }

    /// Makes this a replica of a cluster, and starts its consensus. Doing the same again does nothing.
    pub async fn join(&self, identity: Identity) -> Result<Arc<Running>, ReplicaError> {
        let mut parts = self.parts.lock().await;
        let log = self.log.lock().clone().ok_or(ReplicaError::ShutDown)?;
        let written = tokio::task::spawn_blocking(move || log.set_identity(&identity)).await;
        let written = written.map_err(|error| ReplicaError::Consensus { why: error.to_string() })?;
        written.map_err(store("write who this replica is"))?;
        if let Some(running) = self.running() {
            return Ok(running);
        }
        let taken = parts.take().ok_or(ReplicaError::ShutDown)?;
        let around = Surroundings {
            config: &self.config,
            connector: &self.connector,
            applied: &self.applied,
            failure: &self.failure,
        };
        let running = Arc::new(Running::start(identity, taken, around).await?);
        self.running.send_replace(Some(Arc::clone(&running)));
        tracing::info!(replica_id = %identity.replica_id, cluster_id = %identity.cluster_id, "this replica runs");
        Ok(running)
    }

    /// How far this replica is, and the hash of its state at `hash_at`, or now.
    pub fn status(&self, hash_at: Option<u64>) -> peer::GetStatusResponse {
        let applied_index = self.applied.last().map(|last| last.index);
        let hash_at = hash_at.or(applied_index);
        let state_hash = hash_at.and_then(|log_index| self.applied.state_hash(log_index));
        peer::GetStatusResponse {
            applied_index,
            state_hash: state_hash.map_or_else(Vec::new, |hash| hash.0.to_vec()).into(),
            state_hash_index: hash_at.unwrap_or(0),
        }
    }
}
