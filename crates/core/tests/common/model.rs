//! A second, dumb state machine for jobs: a list, walked through from end to end. It shares nothing with the first but
//! the commands, and says what it did in short texts.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ag_core::command::{
    Actor, ClaimJobs, Command, Complete, Enqueue, Entry, Fail, NewJob, Operation, Start, UpdateQueue,
};
use ag_core::name::JobId;

/// See the module.
#[derive(Clone, Default)]
pub struct Model {
    lease_now: u64,
    wall_now: u64,
    /// By job number − 1; dropped ones stay as `None`.
    jobs: Vec<Option<ModelJob>>,
    queues: BTreeMap<String, ModelQueue>,
    /// By principal and request id: what was asked.
    calls: BTreeMap<(String, String), String>,
}

#[derive(Clone, Debug)]
struct ModelQueue {
    paused: bool,
    lease_ms: u32,
    max_attempts: u32,
    retention_ms: u64,
    limit: u32,
}

#[derive(Clone, Debug)]
struct ModelJob {
    queue: String,
    state: &'static str,
    priority: i32,
    attempts: u32,
    releases: u32,
    max_attempts: u32,
    budget: u32,
    lease_ms: Option<u32>,
    run_at: u64,
    holder: String,
    claim_lease_ms: u32,
    ends_at: u64,
    lapsed: bool,
    key: Option<String>,
    reason: String,
    progress: usize,
    cancel_at: Option<u64>,
    finished_at: Option<u64>,
}

fn name_of(actor: &Actor) -> String {
    match actor {
        Actor::Principal(principal) => principal.to_string(),
        Actor::System => String::new(),
    }
}

impl ModelJob {
    fn is_over(&self) -> bool {
        matches!(self.state, "Completed" | "Dead" | "Cancelled")
    }

    fn end(&mut self, state: &'static str, now: u64) {
        (self.state, self.finished_at, self.lapsed) = (state, Some(now), false);
    }

    fn is_spent(&self) -> bool {
        self.attempts - self.releases >= self.max_attempts
    }

    fn show(&self, number: usize) -> String {
        let Self { state, attempts, releases, max_attempts, run_at, holder, ends_at, lapsed, .. } = self;
        let claim = if holder.is_empty() { String::new() } else { format!("{holder} until {ends_at} {lapsed}") };
        let (reason, progress, cancel, end) = (&self.reason, self.progress, self.cancel_at, self.finished_at);
        format!(
            "{number} {} {state} {attempts}-{releases}/{max_attempts} {run_at} [{claim}] {reason:?} {progress} \
             {cancel:?} {end:?}",
            self.queue
        )
    }
}

impl Model {
    /// What each command came to.
    pub fn apply(&mut self, entry: &Entry) -> Vec<String> {
        self.lease_now = self.lease_now.max(entry.lease_now.0);
        self.wall_now = entry.wall_now.0;
        self.pass_time();
        entry.commands.iter().map(|command| self.command(command)).collect()
    }

    /// Every job, a line each.
    pub fn show(&self) -> Vec<String> {
        let jobs = self.jobs.iter().enumerate();
        jobs.filter_map(|(place, job)| Some(job.as_ref()?.show(place + 1))).collect()
    }

    fn pass_time(&mut self) {
        for place in &mut self.jobs {
            let Some(job) = place else { continue };
            if job.state == "Scheduled" && job.run_at <= self.wall_now {
                job.state = "Ready";
            }
            if job.state == "Claimed" && !job.lapsed && job.ends_at <= self.lease_now {
                if job.cancel_at.is_some() {
                    job.end("Cancelled", self.wall_now);
                    job.reason = "cancelled lapse".into();
                } else if job.is_spent() {
                    job.end("Dead", self.wall_now);
                    job.reason = "lapse".into();
                } else {
                    job.lapsed = true;
                }
            }
            let retention_ms = self.queues[&job.queue].retention_ms;
            if job.finished_at.is_some_and(|at| at + retention_ms <= self.wall_now) {
                *place = None;
            }
        }
    }

    fn command(&mut self, command: &Command) -> String {
        let by = name_of(&command.actor);
        match &command.operation {
            Operation::Enqueue(enqueue) => self.enqueue(&by, enqueue),
            Operation::Claim(claim) => self.claim(&by, claim),
            Operation::Heartbeat(beats) => {
                let beat = |beat: &ag_core::command::Heartbeat| {
                    let (lease_now, key) = (self.lease_now, format!("{by}|{}", beat.worker));
                    let job = match self.held(beat.job_id, &key) {
                        Ok(job) => job,
                        Err(refusal) => return refusal,
                    };
                    job.lapsed = false;
                    job.ends_at = job.ends_at.max(lease_now + u64::from(beat.lease_ms.unwrap_or(job.claim_lease_ms)));
                    if !beat.progress.is_empty() {
                        job.progress = beat.progress.len();
                    }
                    format!("held {} {}", job.ends_at - lease_now, job.cancel_at.is_some())
                };
                beats.iter().map(beat).collect::<Vec<_>>().join(", ")
            }
            Operation::Complete(entries) => {
                entries.iter().map(|entry| self.complete(&by, entry)).collect::<Vec<_>>().join(", ")
            }
            Operation::Fail(fail) => self.fail(&by, fail),
            Operation::Release(release) => {
                let now = self.wall_now;
                match self.held(release.job_id, &format!("{by}|{}", release.worker)) {
                    Ok(job) => give_back(job, now),
                    Err(refusal) => refusal,
                }
            }
            Operation::ReleaseUndelivered(claims) => {
                for claim in claims {
                    let now = self.wall_now;
                    let job = self.job(claim.job_id).filter(|job| job.state == "Claimed");
                    job.filter(|job| job.attempts == claim.attempts).map(|job| give_back(job, now));
                }
                "done".into()
            }
            Operation::Cancel(job_id) => self.cancel(*job_id),
            Operation::Retry(job_id) => self.retry(*job_id),
            Operation::UpdateQueue(update) => self.update(update),
            other => panic!("the model does not know {other:?}"),
        }
    }

    fn job(&mut self, job_id: JobId) -> Option<&mut ModelJob> {
        self.jobs.get_mut(usize::try_from(job_id.0).unwrap().checked_sub(1)?)?.as_mut()
    }

    fn held(&mut self, job_id: Option<JobId>, caller: &str) -> Result<&mut ModelJob, String> {
        let job = job_id.and_then(|job_id| self.job(job_id)).ok_or("JobNotFound")?;
        if job.state == "Claimed" && job.holder == caller { Ok(job) } else { Err("ClaimLost".into()) }
    }

    fn queue(&mut self, name: &str) -> &mut ModelQueue {
        let default =
            ModelQueue { paused: false, lease_ms: 30_000, max_attempts: 20, retention_ms: 604_800_000, limit: 0 };
        self.queues.entry(name.into()).or_insert(default)
    }

    /// `Some` if the call is not new: what it comes to.
    fn known(&self, by: &str, request_id: Option<&str>, content: &str) -> Option<String> {
        let asked = self.calls.get(&(by.into(), request_id?.into()))?;
        Some(if asked == content { "again" } else { "RequestIdReused" }.into())
    }

    fn remember(&mut self, by: &str, request_id: Option<&str>, content: String) {
        if let Some(request_id) = request_id {
            self.calls.insert((by.into(), request_id.into()), content);
        }
    }

    fn enqueue(&mut self, by: &str, enqueue: &Enqueue) -> String {
        let request_id = enqueue.request_id.as_ref().map(|id| id.as_str());
        let content = format!("{:?}", enqueue.jobs);
        if let Some(known) = self.known(by, request_id, &content) {
            return known;
        }
        let told: Vec<_> = enqueue.jobs.iter().map(|new| self.enqueue_one(new)).collect();
        self.remember(by, request_id, content);
        format!("enqueued {}", told.join(" "))
    }

    fn enqueue_one(&mut self, new: &NewJob) -> String {
        let (queue, now) = (new.queue.to_string(), self.wall_now);
        let key = new.dedupe_key.as_ref().map(ToString::to_string);
        let same = |job: &ModelJob| job.queue == queue && job.key == key && !job.is_over();
        if let Some(place) = self.jobs.iter().position(|job| key.is_some() && job.as_ref().is_some_and(same)) {
            return format!("{}=", place + 1);
        }
        let max_attempts = new.max_attempts.unwrap_or(self.queue(&queue).max_attempts);
        let run_at = match new.start {
            Start::Now => now,
            Start::After(delay_ms) => now + delay_ms,
            Start::At(at) => at.0,
        };
        self.jobs.push(Some(ModelJob {
            queue,
            state: if run_at > now { "Scheduled" } else { "Ready" },
            priority: new.priority,
            attempts: 0,
            releases: 0,
            max_attempts,
            budget: max_attempts,
            lease_ms: new.lease_ms,
            run_at,
            holder: String::new(),
            claim_lease_ms: 0,
            ends_at: 0,
            lapsed: false,
            key,
            reason: String::new(),
            progress: 0,
            cancel_at: None,
            finished_at: None,
        }));
        self.jobs.len().to_string()
    }

    fn claim(&mut self, by: &str, claim: &ClaimJobs) -> String {
        let request_id = claim.request_id.as_ref().map(|id| id.as_str());
        let content = format!("{:?}", ClaimJobs { request_id: None, ..claim.clone() });
        if let Some(known) = self.known(by, request_id, &content) {
            return known;
        }
        let mut told = Vec::new();
        while told.len() < claim.jobs_max as usize {
            let Some(place) = self.next(claim) else { break };
            let default_ms = self.queues[&self.jobs[place].as_ref().unwrap().queue].lease_ms;
            let job = self.jobs[place].as_mut().unwrap();
            (job.state, job.lapsed, job.holder) = ("Claimed", false, format!("{by}|{}", claim.worker));
            job.attempts += 1;
            job.claim_lease_ms = claim.lease_ms.or(job.lease_ms).unwrap_or(default_ms);
            job.ends_at = self.lease_now + u64::from(job.claim_lease_ms);
            told.push(format!("{}@{}", place + 1, job.attempts));
        }
        if !told.is_empty() {
            self.remember(by, request_id, content);
        }
        format!("claimed {}", told.join(" "))
    }

    fn next(&self, claim: &ClaimJobs) -> Option<usize> {
        let jobs = || self.jobs.iter().enumerate().filter_map(|(place, job)| Some((place, job.as_ref()?)));
        let may = |job: &ModelJob| {
            let queue = &self.queues[&job.queue];
            let claimed = jobs().filter(|(_, other)| other.queue == job.queue && other.state == "Claimed").count();
            let room = queue.limit == 0 || claimed < queue.limit as usize;
            let named = claim.queues.iter().any(|name| name.as_str() == job.queue);
            named && !queue.paused && (job.lapsed || (job.state == "Ready" && room))
        };
        let candidates = jobs().filter(|(_, job)| may(job));
        let first = candidates.min_by_key(|(place, job)| (Reverse(job.priority), !job.lapsed, job.run_at, *place));
        first.map(|(place, _)| place)
    }

    fn complete(&mut self, by: &str, entry: &Complete) -> String {
        let request_id = entry.request_id.as_ref().map(|id| id.as_str());
        let content = format!("{:?}", Complete { request_id: None, ..entry.clone() });
        if let Some(known) = self.known(by, request_id, &content) {
            return known;
        }
        let (now, caller) = (self.wall_now, format!("{by}|{}", entry.worker));
        let over = entry.job_id.and_then(|job_id| self.job(job_id)).filter(|job| job.state == "Completed");
        if let Some(job) = over {
            return format!("AlreadyCompleted {{ by_caller: {} }}", job.holder == caller);
        }
        match self.held(entry.job_id, &caller) {
            Ok(job) => job.end("Completed", now),
            Err(refusal) => return refusal,
        }
        self.remember(by, request_id, content);
        "completed".into()
    }

    fn fail(&mut self, by: &str, fail: &Fail) -> String {
        let now = self.wall_now;
        let job = match self.held(fail.job_id, &format!("{by}|{}", fail.worker)) {
            Ok(job) => job,
            Err(refusal) => return refusal,
        };
        job.reason = fail.reason.clone();
        if job.cancel_at.is_some() {
            job.end("Cancelled", now);
        } else if fail.permanent || job.is_spent() {
            job.end("Dead", now);
        } else {
            let pause_ms = fail.retry_after_ms.unwrap_or(0);
            (job.state, job.run_at) = (if pause_ms > 0 { "Scheduled" } else { "Ready" }, now + pause_ms);
            (job.holder, job.lapsed) = (String::new(), false);
        }
        job.state.into()
    }

    fn cancel(&mut self, job_id: JobId) -> String {
        let now = self.wall_now;
        let Some(job) = self.job(job_id) else { return "JobNotFound".into() };
        match job.state {
            "Completed" => return "AlreadyCompleted { by_caller: false }".into(),
            "Claimed" if !job.lapsed => job.cancel_at = job.cancel_at.or(Some(now)),
            "Dead" | "Cancelled" => {}
            _ => job.end("Cancelled", now),
        }
        job.state.into()
    }

    fn retry(&mut self, job_id: JobId) -> String {
        let now = self.wall_now;
        let Some(job) = self.job(job_id).cloned() else { return "JobNotFound".into() };
        match job.state {
            "Completed" => return "AlreadyCompleted { by_caller: false }".into(),
            "Dead" | "Cancelled" => {}
            _ => return "JobNotRetryable".into(),
        }
        let taken = |other: &ModelJob| other.queue == job.queue && other.key == job.key && !other.is_over();
        if job.key.is_some() && self.jobs.iter().flatten().any(taken) {
            return "DedupeKeyTaken".into();
        }
        let job = self.job(job_id).unwrap();
        (job.state, job.run_at, job.holder) = ("Ready", now, String::new());
        job.max_attempts = job.attempts - job.releases + job.budget;
        (job.finished_at, job.cancel_at) = (None, None);
        job.state.into()
    }

    fn update(&mut self, update: &UpdateQueue) -> String {
        let queue = self.queue(update.queue.as_str());
        let patch = &update.patch;
        queue.paused = patch.paused.unwrap_or(queue.paused);
        queue.lease_ms = patch.default_lease_ms.unwrap_or(queue.lease_ms);
        queue.max_attempts = patch.max_attempts.unwrap_or(queue.max_attempts);
        queue.retention_ms = patch.retention_ms.unwrap_or(queue.retention_ms);
        queue.limit = patch.concurrency_limit.unwrap_or(queue.limit);
        format!("queue {} {} {}", queue.paused, queue.retention_ms, queue.limit)
    }
}

fn give_back(job: &mut ModelJob, now: u64) -> String {
    job.releases += 1;
    if job.cancel_at.is_some() {
        job.end("Cancelled", now);
    } else {
        (job.state, job.holder, job.lapsed) = ("Ready", String::new(), false);
    }
    job.state.into()
}
