//! Whether this replica leads, and since when its clock runs.

use std::sync::Arc;

use openraft::ServerState;
use openraft::async_runtime::WatchReceiver as _;
use tokio::sync::watch;

use crate::applied::AppliedState;
use crate::clock::LeaseClock;
use crate::raft::{LeaderId, Raft};

/// Whether this replica leads.
#[derive(Clone, Debug)]
pub(crate) enum Leadership {
    /// It does not.
    Following {
        /// Who does, as far as is known.
        leader: Option<u64>,
    },
    /// It was elected, and applies what earlier leaders have left.
    Rising,
    /// It leads, and all entries of earlier terms are applied.
    Leading(Term),
    /// It does not run any more.
    Stopped,
}

/// The term in which this replica leads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Term {
    /// The term, and this replica.
    pub leader_id: LeaderId,
    /// Its lease clock.
    pub clock: LeaseClock,
}

impl Leadership {
    /// The term, if this replica leads.
    pub fn term(&self) -> Option<Term> {
        match self {
            Self::Leading(term) => Some(*term),
            Self::Following { .. } | Self::Rising | Self::Stopped => None,
        }
    }

    /// Whether this replica was elected, as far as it knows.
    pub fn is_elected(&self) -> bool {
        match self {
            Self::Rising | Self::Leading(_) => true,
            Self::Following { .. } | Self::Stopped => false,
        }
    }
}

/// Follows the consensus until it stops.
pub(crate) async fn follow(raft: Raft, applied: Arc<AppliedState>, leadership: watch::Sender<Leadership>) {
    let mut metrics = raft.server_metrics();
    let mut applied_id = applied.subscribe();
    let mut led: Option<LeaderId> = None;
    loop {
        let seen = metrics.borrow_watched().clone();
        let leads = seen.state == ServerState::Leader && seen.vote.committed && seen.vote.leader_id.node_id == seen.id;
        let elected = leads.then_some(seen.vote.leader_id);
        if elected.is_none() {
            led = None;
            let leader = seen.current_leader.filter(|leader| *leader != seen.id);
            leadership.send_if_modified(|current| {
                let same = matches!(current, Leadership::Following { leader: known } if *known == leader);
                if !same {
                    *current = Leadership::Following { leader };
                }
                !same
            });
        } else if elected != led {
            leadership.send_replace(Leadership::Rising);
            led = None;
        }
        tokio::select! {
            changed = metrics.changed() => if changed.is_err() { break },
            // Its first entry is applied, and with it all before it.
            found = applied_id.wait_for(|last| last.map(|last| last.leader_id) == elected),
                if elected.is_some() && elected != led => {
                if found.is_err() { break }
                drop(found);
                led = elected;
                if let Some(leader_id) = elected {
                    let clock = LeaseClock::starting_at(applied.read(|state| state.meta().lease_now));
                    leadership.send_replace(Leadership::Leading(Term { leader_id, clock }));
                    tracing::info!(term = leader_id.term, "this replica leads");
                }
            }
        }
    }
    leadership.send_replace(Leadership::Stopped);
}
