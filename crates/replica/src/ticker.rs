//! Lets time pass when nothing else does: the leader proposes an empty entry when something is due, and now and then
//! while claims are held. With nothing to wait for, it proposes nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ag_core::State;
use tokio::sync::watch;

use crate::applied::AppliedState;
use crate::clock::wall_now;
use crate::error::ProposeError;
use crate::leadership::{Leadership, Term};
use crate::limits;
use crate::proposer::Proposer;

/// How long a tick may take until it counts as lost.
const TICK_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait after a tick that failed.
const PAUSE: Duration = Duration::from_millis(100);

/// The wall clock may be set: what is due by it is looked at this often.
const RECHECK: Duration = Duration::from_secs(5);

/// Runs until the replica stops.
pub(crate) async fn run(proposer: Proposer, applied: Arc<AppliedState>, mut leadership: watch::Receiver<Leadership>) {
    let mut applied_id = applied.subscribe();
    loop {
        let Ok(term) = leadership.wait_for(|now| now.term().is_some()).await.map(|now| now.term()) else { return };
        let Some(term) = term else { continue };
        applied_id.borrow_and_update();
        let since_last = applied.last_applied_at().map_or(Duration::MAX, |at| at.elapsed());
        match applied.read(|state| due_in(state, term, since_last)) {
            Some(Duration::ZERO) => match proposer.tick(Instant::now() + TICK_TIMEOUT).await {
                Ok(()) => {}
                Err(ProposeError::ShuttingDown | ProposeError::Failed) => return,
                Err(_) => tokio::time::sleep(PAUSE).await,
            },
            due => {
                let sleep = async {
                    match due {
                        Some(due) => tokio::time::sleep(due.min(RECHECK)).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = sleep => {}
                    changed = applied_id.changed() => if changed.is_err() { return },
                    changed = leadership.changed() => if changed.is_err() { return },
                }
            }
        }
    }
}

/// In what time an entry is due; `None`: not until something else happens.
fn due_in(state: &State, term: Term, since_last: Duration) -> Option<Duration> {
    let lease_now = term.clock.now();
    let lease = state.next_lease_event().map(|at| Duration::from_millis(at.0.saturating_sub(lease_now.0)));
    let wall_now = wall_now();
    let wall = state.next_wall_event().map(|at| Duration::from_millis(at.0.saturating_sub(wall_now.0)));
    let held = (state.held_claim_count() > 0).then(|| limits::TICK_INTERVAL.saturating_sub(since_last));
    [lease, wall, held].into_iter().flatten().min()
}
