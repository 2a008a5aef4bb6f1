//! The order in which jobs are handed out, and when finished ones are dropped.

use crate::job::Job;
use crate::name::{JobId, QueueName};
use crate::state::{Queue, ReadyKey, State};
use crate::time::WallTime;

/// A lapsed claim goes before a new job of the same priority.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Lapsed,
    New,
}

impl State {
    /// The job that a claim on these queues, taken together, is handed next: by priority, then lapsed claims before new
    /// jobs, then `run_at`, then job id. Paused queues, and new jobs of queues at their concurrency limit, are passed
    /// over; a lapsed claim may change hands at the limit, since it is already counted.
    pub(crate) fn next_candidate(&self, queues: &[QueueName]) -> Option<JobId> {
        let candidates = queues.iter().filter_map(|name| self.queues.get(name)?.next_candidate());
        candidates.min().map(|(_, _, _, job_id)| job_id)
    }
}

type Rank = (std::cmp::Reverse<i32>, Class, WallTime, JobId);

fn rank(class: Class, key: &ReadyKey) -> Rank {
    (key.priority, class, key.run_at, key.job_id)
}

impl Queue {
    fn next_candidate(&self) -> Option<Rank> {
        if self.policy.paused {
            return None;
        }
        let lapsed = self.lapsed.first().map(|key| rank(Class::Lapsed, key));
        let full = self.policy.concurrency_limit.is_some_and(|limit| self.counts.claimed >= u64::from(limit));
        let new = if full { None } else { self.ready.first().map(|key| rank(Class::New, key)) };
        lapsed.into_iter().chain(new).min()
    }

    /// When the first of its finished jobs is dropped.
    pub(crate) fn next_drop(&self) -> Option<WallTime> {
        self.finished.first().map(|(finished_at, _)| finished_at.plus_ms(self.policy.retention_ms))
    }
}

impl Job {
    /// When it was finished; 0 for a job that is not.
    pub(crate) fn finished_at(&self) -> WallTime {
        self.notes().finished_at.unwrap_or_default()
    }
}
