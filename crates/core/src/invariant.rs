//! The laws of the state, one function a law. Tests and simulations call [`check_all`] after every step.

use std::collections::{BTreeMap, BTreeSet};

use crate::canonical;
use crate::hash::RowSum;
use crate::job::{Job, JobState};
use crate::queue::QueueCounts;
use crate::state::{ReadyKey, State};

/// A law that does not hold, and for what.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invariant {law} does not hold: {what}")]
pub struct Violation {
    /// The function that found it.
    pub law: &'static str,
    /// For what it does not hold.
    pub what: String,
}

type Check = Result<(), Violation>;

fn holds(law: &'static str, good: bool, what: impl FnOnce() -> String) -> Check {
    if good { Ok(()) } else { Err(Violation { law, what: what() }) }
}

/// All laws.
pub fn check_all(state: &State) -> Check {
    claim_goes_with_state(state)?;
    releases_are_claims(state)?;
    finished_jobs_say_when(state)?;
    dedupe_keys_are_of_unfinished_jobs(state)?;
    schedule_is_complete(state)?;
    deadlines_are_complete(state)?;
    queues_are_indexed(state)?;
    drops_are_complete(state)?;
    replies_are_in_order(state)?;
    rows_sum_up(state)
}

/// A claimed job has a claim; a waiting one has none; only a claimed job's claim is lapsed.
pub fn claim_goes_with_state(state: &State) -> Check {
    state.jobs.values().try_for_each(|job| {
        let good = match job.state {
            JobState::Scheduled | JobState::Ready => job.claim.is_none(),
            JobState::Claimed => job.claim.is_some() && job.attempts > 0,
            JobState::Completed => job.claim.as_ref().is_some_and(|claim| !claim.lapsed),
            JobState::Dead | JobState::Cancelled => job.claim.as_ref().is_none_or(|claim| !claim.lapsed),
        };
        holds("claim_goes_with_state", good, || format!("{job:?}"))
    })
}

/// A job has no more releases than claims.
pub fn releases_are_claims(state: &State) -> Check {
    let good = |job: &Job| job.releases <= job.attempts;
    state.jobs.values().try_for_each(|job| holds("releases_are_claims", good(job), || format!("{job:?}")))
}

/// A job says when it was finished exactly if it is.
pub fn finished_jobs_say_when(state: &State) -> Check {
    let good = |job: &Job| job.state.is_terminal() == job.notes().finished_at.is_some();
    state.jobs.values().try_for_each(|job| holds("finished_jobs_say_when", good(job), || format!("{job:?}")))
}

/// A dedupe key stands for exactly one unfinished job of its queue.
pub fn dedupe_keys_are_of_unfinished_jobs(state: &State) -> Check {
    let mut keys = BTreeMap::new();
    for job in state.jobs.values().filter(|job| !job.state.is_terminal()) {
        if let Some(dedupe_key) = &job.notes().dedupe_key {
            let earlier = keys.insert((job.queue.clone(), dedupe_key.clone()), job.job_id);
            holds("dedupe_keys_are_of_unfinished_jobs", earlier.is_none(), || format!("two jobs: {job:?}"))?;
        }
    }
    holds("dedupe_keys_are_of_unfinished_jobs", keys == state.dedupe, || format!("{:?}", state.dedupe))
}

/// Exactly the scheduled jobs stand in the schedule.
pub fn schedule_is_complete(state: &State) -> Check {
    let scheduled = state.jobs.values().filter(|job| job.state == JobState::Scheduled);
    let expected: BTreeSet<_> = scheduled.map(|job| (job.run_at, job.job_id)).collect();
    holds("schedule_is_complete", expected == state.scheduled, || format!("{:?}", state.scheduled))
}

/// Exactly the held claims have a deadline.
pub fn deadlines_are_complete(state: &State) -> Check {
    let held = state.jobs.values().filter_map(|job| Some((job.held_claim()?.lease_ends_at, job.job_id)));
    let expected: BTreeSet<_> = held.collect();
    holds("deadlines_are_complete", expected == state.deadlines, || format!("{:?}", state.deadlines))
}

/// Every queue knows its ready, lapsed and finished jobs, and how many are in each state; every job's queue exists.
pub fn queues_are_indexed(state: &State) -> Check {
    let law = "queues_are_indexed";
    for (name, queue) in &state.queues {
        let jobs: Vec<_> = state.jobs.values().filter(|job| job.queue == *name).collect();
        let keys = |wanted: &dyn Fn(&Job) -> bool| -> BTreeSet<ReadyKey> {
            jobs.iter().filter(|job| wanted(job)).map(|job| ReadyKey::of(job)).collect()
        };
        holds(law, queue.ready == keys(&|job| job.state == JobState::Ready), || format!("{name}: ready"))?;
        holds(law, queue.lapsed == keys(&|job| job.is_lapsed()), || format!("{name}: lapsed"))?;
        let finished = jobs.iter().filter(|job| job.state.is_terminal());
        let finished: BTreeSet<_> = finished.map(|job| (job.finished_at(), job.job_id)).collect();
        holds(law, queue.finished == finished, || format!("{name}: finished"))?;
        let count = |wanted: JobState| jobs.iter().filter(|job| job.state == wanted).count() as u64;
        let counts = QueueCounts {
            scheduled: count(JobState::Scheduled),
            ready: count(JobState::Ready),
            claimed: count(JobState::Claimed),
            lapsed: jobs.iter().filter(|job| job.is_lapsed()).count() as u64,
            completed: count(JobState::Completed),
            dead: count(JobState::Dead),
            cancelled: count(JobState::Cancelled),
        };
        holds(law, queue.counts == counts, || format!("{name}: {:?}, should be {counts:?}", queue.counts))?;
    }
    let orphan = state.jobs.values().find(|job| !state.queues.contains_key(&job.queue));
    holds(law, orphan.is_none(), || format!("no queue for {orphan:?}"))
}

/// Every queue with finished jobs says when the first of them is dropped.
pub fn drops_are_complete(state: &State) -> Check {
    let drops = state.queues.iter().filter_map(|(name, queue)| Some((queue.next_drop()?, name.clone())));
    let expected: BTreeSet<_> = drops.collect();
    holds("drops_are_complete", expected == state.drops, || format!("{:?}", state.drops))
}

/// Every reply stands in the order once, under its number, which is not above the newest.
pub fn replies_are_in_order(state: &State) -> Check {
    let expected: BTreeMap<_, _> = state.replies.values().map(|reply| (reply.reply_number, reply.reply_key)).collect();
    let newest = expected.last_key_value().map_or(0, |(number, _)| *number);
    let good = expected == state.reply_order && newest <= state.meta().reply_number;
    holds("replies_are_in_order", good, || format!("{:?}", state.reply_order))
}

/// The sum over all rows is what it is said to be.
pub fn rows_sum_up(state: &State) -> Check {
    let mut rows = RowSum::default();
    state.jobs.values().for_each(|job| rows.add(&canonical::job(job)));
    state.queues.iter().for_each(|(name, queue)| rows.add(&canonical::queue(name, &queue.policy)));
    state.replies.values().for_each(|reply| rows.add(&canonical::reply(reply)));
    state.members.values().for_each(|member| rows.add(&canonical::member(member)));
    holds("rows_sum_up", rows == state.meta().rows, || format!("{rows:?}, kept {:?}", state.meta().rows))
}
