//! Applying one entry: decide, then evolve, step by step.

use crate::audit::{AuditEvent, AuditRecord};
use crate::change::{Answer, Change};
use crate::command::{Actor, ClaimJobs, Command, Complete, Context, Enqueue, Entry, Operation};
use crate::decide::{self, Decision};
use crate::limits;
use crate::outcome::{Applied, Completion, Outcome};
use crate::rejection::Rejection;
use crate::state::State;

impl State {
    /// Applies the next entry of the log. Cannot fail: what cannot be done is an [`Outcome::Rejected`].
    pub fn apply(&mut self, context: Context, entry: Entry) -> Applied {
        let mut run = Run { state: self, context, changes: Vec::new() };
        run.pass_time(&entry);
        let outcomes = entry.commands.into_iter().map(|command| run.command(command)).collect();
        Applied { outcomes, changes: run.changes }
    }
}

/// One entry on its way. Decisions read the state; only `take` changes it.
struct Run<'a> {
    state: &'a mut State,
    context: Context,
    changes: Vec<Change>,
}

impl Run<'_> {
    /// Carries a decision out, and gives what it came to.
    fn take<T>(&mut self, decision: Decision<T>) -> T {
        for change in decision.changes {
            self.put(change);
        }
        if let Some(event) = decision.event {
            self.record(event);
        }
        decision.value
    }

    fn put(&mut self, change: Change) {
        self.state.evolve(&change);
        self.changes.push(change);
    }

    fn record(&mut self, event: AuditEvent) {
        let meta = self.state.meta();
        let record = AuditRecord::after(meta.audit_head, self.context, meta.wall_now, event);
        self.put(Change::Audit(Box::new(record)));
    }

    /// Moves the clocks on, and does what is due, each kind up to its bound.
    fn pass_time(&mut self, entry: &Entry) {
        let clocks = decide::time::clocks(self.state, entry);
        self.take(clocks);
        let sweeps =
            [decide::time::promote, decide::time::lapse, decide::time::drop_finished, decide::time::drop_reply];
        for sweep in sweeps {
            for _ in 0..limits::SWEEP_JOBS_MAX {
                let Some(decision) = sweep(self.state) else { break };
                self.take(decision);
            }
        }
    }

    fn command(&mut self, command: Command) -> Outcome {
        let actor = command.actor;
        match command.operation {
            Operation::Enqueue(enqueue) => self.enqueue(&actor, enqueue).unwrap_or_else(Outcome::Rejected),
            Operation::Claim(claim) => self.claim(&actor, &claim).unwrap_or_else(Outcome::Rejected),
            Operation::Heartbeat(entries) => {
                let heartbeat = |entry| {
                    let decision = decide::heartbeat::heartbeat(self.state, &actor, entry);
                    self.take(decision)
                };
                Outcome::Heartbeats(entries.into_iter().map(heartbeat).collect())
            }
            Operation::Complete(entries) => {
                let complete = |entry| self.complete(&actor, entry);
                Outcome::Completed(entries.into_iter().map(complete).collect())
            }
            Operation::Fail(fail) => {
                let decision = decide::fail::fail(self.state, &actor, fail);
                self.take(decision).map_or_else(Outcome::Rejected, Outcome::Job)
            }
            Operation::Release(release) => {
                let decision = decide::release::release(self.state, &actor, &release);
                self.take(decision).map_or_else(Outcome::Rejected, Outcome::Job)
            }
            Operation::ReleaseUndelivered(claims) => {
                for claim in claims {
                    let decision = decide::release::undelivered(self.state, claim);
                    self.take(decision);
                }
                Outcome::Done
            }
            Operation::Cancel(job_id) => {
                let decision = decide::cancel::cancel(self.state, &actor, job_id);
                self.take(decision).map_or_else(Outcome::Rejected, Outcome::Job)
            }
            Operation::Retry(job_id) => {
                let decision = decide::retry::retry(self.state, &actor, job_id);
                self.take(decision).map_or_else(Outcome::Rejected, Outcome::Job)
            }
            Operation::UpdateQueue(update) => {
                let decision = decide::queue::update(self.state, &actor, update);
                self.take(decision).map_or_else(Outcome::Rejected, Outcome::Queue)
            }
            Operation::InitCluster(_)
            | Operation::RegisterReplica(_)
            | Operation::AllocateReplica
            | Operation::ForgetReplica(_)
            | Operation::SetClusterVersion(_)
            | Operation::HoldClusterVersion(_) => self.cluster(&actor, command.operation),
        }
    }

    fn cluster(&mut self, actor: &Actor, operation: Operation) -> Outcome {
        let decision = decide::cluster::cluster(self.state, actor, operation);
        self.take(decision).unwrap_or_else(Outcome::Rejected)
    }

    /// All jobs or none: what could refuse one of them is checked first.
    fn enqueue(&mut self, actor: &Actor, enqueue: Enqueue) -> Result<Outcome, Rejection> {
        let call = match decide::reply::recall_enqueue(self.state, actor, &enqueue)? {
            decide::reply::Recall::Replayed(replayed) => return Ok(Outcome::Replayed(replayed)),
            decide::reply::Recall::New(call) => call,
        };
        decide::enqueue::check(self.state, &enqueue)?;
        let mut enqueued = Vec::with_capacity(enqueue.jobs.len());
        for job in enqueue.jobs {
            let decision = decide::enqueue::enqueue(self.state, actor, job, enqueue.request_id.as_ref());
            enqueued.push(self.take(decision));
        }
        if let Some(call) = call {
            let decision = decide::reply::remember(self.state, self.context, call, Answer::Enqueued(enqueued.clone()));
            self.take(decision);
        }
        Ok(Outcome::Enqueued(enqueued))
    }

    /// Hands out jobs until there are enough, no more, or the answer is full.
    fn claim(&mut self, actor: &Actor, claim: &ClaimJobs) -> Result<Outcome, Rejection> {
        let call = match decide::reply::recall_claim(self.state, actor, claim)? {
            decide::reply::Recall::Replayed(replayed) => return Ok(Outcome::Replayed(replayed)),
            decide::reply::Recall::New(call) => call,
        };
        let mut claimed = Vec::new();
        let mut bytes = 0;
        // A job whose number is used up is buried instead of handed out, and takes a turn.
        for _ in 0..limits::SWEEP_JOBS_MAX + claim.jobs_max as usize {
            let room = limits::CLAIM_BATCH_BYTES_MAX.saturating_sub(bytes);
            let room = if claimed.is_empty() { u64::MAX } else { room };
            if claimed.len() >= claim.jobs_max as usize {
                break;
            }
            let Some(decision) = decide::claim::claim_next(self.state, actor, claim, room) else { break };
            if let Some(job) = self.take(decision) {
                bytes += job.answer_bytes();
                claimed.push(job);
            }
        }
        if let (Some(call), false) = (call, claimed.is_empty()) {
            let decision = decide::reply::remember(self.state, self.context, call, Answer::Claimed(claimed.clone()));
            self.take(decision);
        }
        Ok(Outcome::Claimed(claimed))
    }

    fn complete(&mut self, actor: &Actor, complete: Complete) -> Result<Completion, Rejection> {
        let recalled = decide::reply::recall_complete(self.state, actor, &complete);
        let call = match recalled {
            Ok(decide::reply::Recall::Replayed(replayed)) => return Ok(Completion::Replayed(replayed)),
            Ok(decide::reply::Recall::New(call)) => call,
            Err(rejection) => {
                let decision = decide::complete::refuse(self.state, actor, &complete, rejection);
                return self.take(decision);
            }
        };
        let decision = decide::complete::complete(self.state, actor, complete);
        let completion = self.take(decision)?;
        if let (Some(call), Completion::Now(done)) = (call, &completion) {
            let decision = decide::reply::remember(self.state, self.context, call, Answer::Completed(done.job.clone()));
            self.take(decision);
        }
        Ok(completion)
    }
}
