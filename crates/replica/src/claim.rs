//! Claims, and how they wait for jobs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ag_core::command::{Actor, ClaimJobs, Command, Operation};
use ag_core::outcome::Outcome;
use tokio::sync::watch;

use crate::answered::Answered;
use crate::applied::AppliedState;
use crate::error::ProposeError;
use crate::leadership::Leadership;
use crate::limits;
use crate::proposer::Proposer;
use crate::waiters::Ticket;

/// Claims jobs, or waits up to `wait`, and not beyond `ending`, until there are some. Every answer comes out of the
/// log, also that there are none.
pub(crate) async fn claim(
    proposer: &Proposer,
    applied: &Arc<AppliedState>,
    mut leadership: watch::Receiver<Leadership>,
    (actor, claim): (Actor, ClaimJobs),
    (wait, deadline): (Duration, Instant),
    ending: impl Future<Output = ()>,
) -> Result<Answered, ProposeError> {
    let until = (Instant::now() + wait).min(deadline.checked_sub(limits::CLAIM_MARGIN).unwrap_or(deadline));
    let queues = claim.queues.clone();
    // A repeated claim has its answer already, whatever there is to be claimed.
    let is_repeatable = claim.request_id.is_some();
    let command = Command { actor, operation: Operation::Claim(claim) };
    if is_repeatable || wait.is_zero() {
        let answered = proposer.propose(command.clone(), deadline).await?;
        if wait.is_zero() || !is_empty(&answered) {
            return Ok(answered);
        }
    }
    let place = Place::enter(applied, &queues)?;
    let mut ending = std::pin::pin!(ending);
    loop {
        tokio::select! {
            biased;
            () = place.ticket.woken() => {}
            () = lost(&mut leadership) => break,
            () = &mut ending => break,
            () = tokio::time::sleep_until(until.into()) => break,
        }
        let answered = proposer.propose(command.clone(), deadline).await?;
        if !is_empty(&answered) {
            return Ok(answered);
        }
        place.found_nothing();
    }
    drop(place);
    // The last word, and the place in the log where it holds.
    proposer.propose(command, deadline).await
}

fn is_empty(answered: &Answered) -> bool {
    matches!(&answered.outcome, Outcome::Claimed(jobs) if jobs.is_empty())
}

/// Waits until this replica does not lead any more.
async fn lost(leadership: &mut watch::Receiver<Leadership>) {
    // An error: the replica stops.
    let _ = leadership.wait_for(|now| !now.is_elected()).await;
}

/// A place in line, which is left when it is dropped.
struct Place {
    applied: Arc<AppliedState>,
    ticket: Ticket,
}

impl Place {
    fn enter(applied: &Arc<AppliedState>, queues: &[ag_core::name::QueueName]) -> Result<Self, ProposeError> {
        let ticket = applied.read(|state| applied.waiters.enter(queues, state));
        match ticket {
            Some(ticket) => Ok(Self { applied: Arc::clone(applied), ticket }),
            None => Err(ProposeError::Overloaded { limit: limits::WAITERS_MAX }),
        }
    }

    fn found_nothing(&self) {
        self.applied.read(|state| self.applied.waiters.found_nothing(&self.ticket, state));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.applied.read(|state| self.applied.waiters.leave(&self.ticket, state));
    }
}
