//! Who holds a claim: the one check, and the one fence, that every verb of a claim goes through.

use super::Decision;
use crate::audit::AuditEvent;
use crate::cluster_version;
use crate::command::{Actor, Operation};
use crate::job::{Job, JobState};
use crate::name::{ClaimedBy, JobId, WorkerLabel};
use crate::queue::Fencing;
use crate::rejection::Rejection;
use crate::state::State;

/// A verb on a claim, as the caller named it.
pub(crate) struct ClaimCall<'a> {
    /// For the audit log.
    pub verb: &'static str,
    /// Who calls.
    pub actor: &'a Actor,
    /// The label that it gives.
    pub worker: &'a WorkerLabel,
    /// The job that it names; `None` for an id that no job can have.
    pub job_id: Option<JobId>,
    /// The claim's number; `None`: not given.
    pub fencing_token: Option<u32>,
}

/// A claim that the caller holds, lapsed or not.
pub(crate) struct Held<'s> {
    /// Its job.
    pub job: &'s Job,
    /// The caller's fencing token was compared with the claim's number.
    pub fenced: bool,
}

/// The fence: whether this is the number of the job's newest claim. A job's number only ever rises, and each is given
/// to one claim, so an older claim never passes.
pub(crate) fn is_newest_claim(job: &Job, number: u32) -> bool {
    job.attempts == number
}

impl ClaimCall<'_> {
    /// Whether this is the holder that stands on a claim.
    fn is_by(&self, claimed_by: &ClaimedBy) -> bool {
        match self.actor {
            Actor::Principal(principal) => ClaimedBy::new(principal, self.worker) == *claimed_by,
            Actor::System => false,
        }
    }

    /// The claim, if the caller holds it. The fence counts from its cluster version on: below, replicas of earlier
    /// releases apply the same entries without it.
    pub fn held<'s>(&self, state: &'s State) -> Result<Held<'s>, Rejection> {
        self.check(state, state.meta().cluster_version >= cluster_version::FENCING)
    }

    /// The name is compared first: who was never named by the claim learns nothing of its number.
    fn check<'s>(&self, state: &'s State, with_fence: bool) -> Result<Held<'s>, Rejection> {
        let job = self.job_id.and_then(|job_id| state.job(job_id)).ok_or(Rejection::JobNotFound)?;
        let fencing_token = self.fencing_token.filter(|_| with_fence);
        let queue = state.queue(&job.queue);
        if with_fence && fencing_token.is_none() && queue.is_some_and(|(policy, _)| policy.fencing == Fencing::Required)
        {
            return Err(Rejection::FencingTokenRequired);
        }
        let by_caller = job.claim.as_ref().is_some_and(|claim| self.is_by(&claim.claimed_by));
        if by_caller && fencing_token.is_some_and(|number| !is_newest_claim(job, number)) {
            return Err(Rejection::StaleFencingToken);
        }
        match job.state {
            JobState::Claimed if by_caller => Ok(Held { job, fenced: fencing_token.is_some() }),
            JobState::Completed => Err(Rejection::AlreadyCompleted { by_caller }),
            JobState::Scheduled | JobState::Ready | JobState::Claimed | JobState::Dead | JobState::Cancelled => {
                Err(Rejection::ClaimLost)
            }
        }
    }

    /// An accepted or refused call, for the audit log.
    pub fn event(&self, outcome: &str) -> AuditEvent {
        let mut event = AuditEvent::new(self.actor, self.verb, outcome);
        event.worker = self.worker.as_str().into();
        event
    }

    /// A refusal. It is recorded without the claim's number, so that the log tells a stale worker nothing; a token that
    /// was refused is not that number, and is recorded.
    pub fn refuse<T>(&self, state: &State, rejection: Rejection) -> Decision<Result<T, Rejection>> {
        let mut event = self.event(rejection.reason());
        event.job_id = self.job_id;
        if let Some(job) = self.job_id.and_then(|job_id| state.job(job_id)) {
            event.queue = job.queue.as_str().into();
        }
        if let (Rejection::StaleFencingToken, Some(number)) = (&rejection, self.fencing_token) {
            event = event.detail("fencing_token", number);
        }
        Decision { value: Err(rejection), changes: Vec::new(), event: Some(event) }
    }
}

impl State {
    /// Which entries of this operation come from older claims than the newest that this state knows, by their
    /// positions: what a leader can tell, best effort, while the cluster version is too low for the fence to be
    /// replicated. Numbers only rise, so this holds in every later state too; a number that this state does not know
    /// yet says nothing.
    pub fn stale_entries(&self, actor: &Actor, operation: &Operation) -> Vec<usize> {
        let is_stale = |verb, worker, job_id, fencing_token: Option<u32>| {
            let call = ClaimCall { verb, actor, worker, job_id, fencing_token };
            let is_refused = matches!(call.check(self, true), Err(Rejection::StaleFencingToken));
            let job = job_id.and_then(|job_id| self.job(job_id));
            is_refused && fencing_token.zip(job).is_some_and(|(number, job)| number < job.attempts)
        };
        let entries: Vec<bool> = match operation {
            Operation::Heartbeat(entries) => {
                entries.iter().map(|e| is_stale("heartbeat", &e.worker, e.job_id, e.fencing_token)).collect()
            }
            Operation::Complete(entries) => {
                entries.iter().map(|e| is_stale("complete", &e.worker, e.job_id, e.fencing_token)).collect()
            }
            Operation::Fail(fail) => vec![is_stale("fail", &fail.worker, fail.job_id, fail.fencing_token)],
            Operation::Release(release) => {
                vec![is_stale("release", &release.worker, release.job_id, release.fencing_token)]
            }
            Operation::Enqueue(_)
            | Operation::Claim(_)
            | Operation::ReleaseUndelivered(_)
            | Operation::Cancel(_)
            | Operation::Retry(_)
            | Operation::UpdateQueue(_)
            | Operation::InitCluster(_)
            | Operation::RegisterReplica(_)
            | Operation::AllocateReplica
            | Operation::ForgetReplica(_)
            | Operation::SetClusterVersion(_)
            | Operation::HoldClusterVersion(_) => Vec::new(),
        };
        let positions = entries.into_iter().enumerate();
        positions.filter(|(_, is_stale)| *is_stale).map(|(position, _)| position).collect()
    }
}
