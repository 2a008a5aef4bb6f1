//! Claims that wait for jobs, in the order in which they came.
//!
//! A queue wakes as many waiters as it has jobs to hand out, not all: those that are awake and have not been answered
//! yet count as served. A waiter that goes, and one that finds nothing, passes its turn on.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use ag_core::State;
use ag_core::name::QueueName;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::limits;

/// The waiting claims of one replica.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    next_ticket: u64,
    waiters: BTreeMap<u64, Waiter>,
    by_queue: HashMap<QueueName, Line>,
}

/// Who waits at one queue. Removed when empty.
#[derive(Debug, Default)]
struct Line {
    /// By ticket, so the one that came first is first.
    waiting: BTreeSet<u64>,
    /// How many were woken for this queue and have not come back.
    awake: u64,
}

#[derive(Debug)]
struct Waiter {
    queues: Arc<[QueueName]>,
    wake: Arc<Notify>,
    /// The queue it was woken for.
    awake_for: Option<QueueName>,
}

/// A waiter's place in line. It must be [left](Waiters::leave).
#[derive(Debug)]
pub(crate) struct Ticket {
    number: u64,
    wake: Arc<Notify>,
}

impl Ticket {
    /// Waits to be woken.
    pub async fn woken(&self) {
        self.wake.notified().await;
    }
}

impl Waiters {
    /// A place at the end of the lines of these queues, and wakes whom there are jobs for. `None`: too many wait.
    pub fn enter(&self, queues: &[QueueName], state: &State) -> Option<Ticket> {
        let mut lines = self.lines.lock();
        if lines.waiters.len() >= limits::WAITERS_MAX {
            return None;
        }
        let number = lines.next_ticket;
        lines.next_ticket += 1;
        let wake = Arc::new(Notify::new());
        let queues: BTreeSet<_> = queues.iter().cloned().collect();
        let queues: Arc<[QueueName]> = queues.into_iter().collect();
        let waiter = Waiter { queues: Arc::clone(&queues), wake: Arc::clone(&wake), awake_for: None };
        lines.line_up(number, waiter);
        lines.serve(&*queues, state);
        Some(Ticket { number, wake })
    }

    /// Back to where it stood, after it was woken and found nothing.
    pub fn found_nothing(&self, ticket: &Ticket, state: &State) {
        let mut lines = self.lines.lock();
        let Some(mut waiter) = lines.remove(ticket.number) else { return };
        waiter.awake_for = None;
        let queues = Arc::clone(&waiter.queues);
        lines.line_up(ticket.number, waiter);
        lines.serve(&*queues, state);
    }

    /// Out of line, served or not.
    pub fn leave(&self, ticket: &Ticket, state: &State) {
        let mut lines = self.lines.lock();
        if let Some(waiter) = lines.remove(ticket.number) {
            lines.serve(&*waiter.queues, state);
        }
    }

    /// Something has changed in these queues.
    pub fn changed<'a>(&self, queues: impl IntoIterator<Item = &'a QueueName>, state: &State) {
        let mut lines = self.lines.lock();
        if !lines.by_queue.is_empty() {
            lines.serve(queues, state);
        }
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.lines.lock().waiters.is_empty()
    }

    /// How many wait.
    pub fn count(&self) -> usize {
        self.lines.lock().waiters.len()
    }
}

impl Lines {
    fn line_up(&mut self, number: u64, waiter: Waiter) {
        for queue in waiter.queues.iter() {
            self.by_queue.entry(queue.clone()).or_default().waiting.insert(number);
        }
        self.waiters.insert(number, waiter);
    }

    fn remove(&mut self, number: u64) -> Option<Waiter> {
        let waiter = self.waiters.remove(&number)?;
        for queue in waiter.queues.iter() {
            let Some(line) = self.by_queue.get_mut(queue) else { continue };
            line.waiting.remove(&number);
            if waiter.awake_for.as_ref() == Some(queue) {
                line.awake = line.awake.saturating_sub(1);
            }
            if line.waiting.is_empty() && line.awake == 0 {
                self.by_queue.remove(queue);
            }
        }
        Some(waiter)
    }

    /// Wakes waiters of each queue, as long as it has more jobs than waiters awake.
    fn serve<'a>(&mut self, queues: impl IntoIterator<Item = &'a QueueName>, state: &State) {
        for queue in queues {
            let Some(line) = self.by_queue.get(queue) else { continue };
            if line.waiting.is_empty() {
                continue;
            }
            let free = claimable(state, queue).saturating_sub(line.awake);
            for _ in 0..free {
                if !self.wake_first(queue) {
                    break;
                }
            }
        }
    }

    fn wake_first(&mut self, queue: &QueueName) -> bool {
        let first = self.by_queue.get(queue).and_then(|line| line.waiting.first().copied());
        let Some(number) = first else { return false };
        let Some(waiter) = self.waiters.get_mut(&number) else { return false };
        waiter.awake_for = Some(queue.clone());
        waiter.wake.notify_one();
        for other in waiter.queues.iter() {
            let Some(line) = self.by_queue.get_mut(other) else { continue };
            line.waiting.remove(&number);
            if other == queue {
                line.awake += 1;
            } else if line.waiting.is_empty() && line.awake == 0 {
                self.by_queue.remove(other);
            }
        }
        true
    }
}

/// How many jobs of a queue could be handed out now.
fn claimable(state: &State, queue: &QueueName) -> u64 {
    let Some((policy, counts)) = state.queue(queue) else { return 0 };
    if policy.paused {
        return 0;
    }
    let room = policy.concurrency_limit.map_or(u64::MAX, |limit| u64::from(limit).saturating_sub(counts.claimed));
    counts.lapsed + counts.ready.min(room)
}

#[cfg(test)]
mod tests {
    use ag_core::command::{Actor, Command, Enqueue, Entry, NewJob, Operation, Start};
    use ag_core::name::LogPosition;
    use ag_core::time::{LeaseTime, WallTime};
    use futures::FutureExt as _;

    use super::*;

    fn queue(name: &str) -> QueueName {
        QueueName::parse("queue", name).unwrap()
    }

    fn state_with(jobs: &[(&str, usize)]) -> State {
        let mut state = State::default();
        let new_job = |name: &str| NewJob {
            queue: queue(name),
            payload: vec![],
            priority: 0,
            start: Start::Now,
            max_attempts: None,
            lease_ms: None,
            dedupe_key: None,
            labels: BTreeMap::new(),
        };
        let jobs: Vec<_> = jobs.iter().flat_map(|(name, count)| vec![new_job(name); *count]).collect();
        if !jobs.is_empty() {
            let operation = Operation::Enqueue(Enqueue { jobs, request_id: None });
            let commands = vec![Command { actor: Actor::System, operation }];
            let entry = Entry { lease_now: LeaseTime(1), wall_now: WallTime(1), commands };
            let _ = state.apply(LogPosition { term: 1, log_index: 1 }, entry);
        }
        state
    }

    fn awake(tickets: &[Ticket]) -> Vec<bool> {
        tickets.iter().map(|ticket| ticket.woken().now_or_never().is_some()).collect()
    }

    #[test]
    fn as_many_wake_as_there_are_jobs_and_the_first_come_first() {
        let waiters = Waiters::default();
        let empty = state_with(&[]);
        let tickets: Vec<_> = (0..4).map(|_| waiters.enter(&[queue("a")], &empty).unwrap()).collect();
        assert_eq!(awake(&tickets), [false; 4]);

        let two = state_with(&[("a", 2)]);
        waiters.changed(&[queue("a")], &two);
        waiters.changed(&[queue("a")], &two);
        assert_eq!(awake(&tickets), [true, true, false, false]);
    }

    #[test]
    fn a_waiter_that_goes_passes_its_turn_on() {
        let waiters = Waiters::default();
        let tickets: Vec<_> = (0..3).map(|_| waiters.enter(&[queue("a")], &state_with(&[])).unwrap()).collect();
        let one = state_with(&[("a", 1)]);
        waiters.changed(&[queue("a")], &one);
        waiters.leave(&tickets[0], &one);
        assert_eq!(awake(&tickets), [true, true, false]);
        waiters.leave(&tickets[1], &state_with(&[]));
        assert_eq!(awake(&tickets), [false, false, false]);
        waiters.leave(&tickets[2], &one);
        assert!(waiters.is_empty() && waiters.lines.lock().by_queue.is_empty());
    }

    #[test]
    fn a_waiter_that_finds_nothing_keeps_its_place() {
        let waiters = Waiters::default();
        let empty = state_with(&[]);
        let tickets: Vec<_> = (0..2).map(|_| waiters.enter(&[queue("a")], &empty).unwrap()).collect();
        waiters.changed(&[queue("a")], &state_with(&[("a", 1)]));
        assert_eq!(awake(&tickets), [true, false]);
        waiters.found_nothing(&tickets[0], &empty);
        assert_eq!(awake(&tickets), [false, false]);
        waiters.changed(&[queue("a")], &state_with(&[("a", 1)]));
        assert_eq!(awake(&tickets), [true, false]);
    }

    #[test]
    fn a_waiter_at_two_queues_is_woken_once() {
        let waiters = Waiters::default();
        let tickets = [
            waiters.enter(&[queue("a"), queue("b")], &state_with(&[])),
            waiters.enter(&[queue("b")], &state_with(&[])),
        ]
        .map(Option::unwrap);
        let both = state_with(&[("a", 1), ("b", 1)]);
        waiters.changed(&[queue("a"), queue("b")], &both);
        assert_eq!(awake(&tickets), [true, true]);
        for ticket in &tickets {
            waiters.leave(ticket, &both);
        }
        assert!(waiters.lines.lock().by_queue.is_empty());
    }

    #[test]
    fn no_more_wait_than_may() {
        let (waiters, empty) = (Waiters::default(), state_with(&[]));
        let queues = [queue("a")];
        let last = (0..limits::WAITERS_MAX).map(|_| waiters.enter(&queues, &empty).unwrap()).last().unwrap();
        assert!(waiters.enter(&queues, &empty).is_none());
        waiters.leave(&last, &empty);
        assert!(waiters.enter(&queues, &empty).is_some());
    }

    #[test]
    fn a_newcomer_is_woken_at_once_if_there_is_a_job_for_it() {
        let waiters = Waiters::default();
        let one = state_with(&[("a", 1)]);
        let tickets: Vec<_> = (0..2).map(|_| waiters.enter(&[queue("a")], &one).unwrap()).collect();
        assert_eq!(awake(&tickets), [true, false]);
    }

    #[test]
    fn a_claim_that_names_a_queue_twice_waits_there_once() {
        let waiters = Waiters::default();
        let ticket = waiters.enter(&[queue("a"), queue("a")], &state_with(&[("a", 3)])).unwrap();
        assert!(ticket.woken().now_or_never().is_some());
        waiters.leave(&ticket, &state_with(&[("a", 3)]));
        assert!(waiters.lines.lock().by_queue.is_empty());
    }
}
