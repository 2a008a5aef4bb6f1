//! Jobs and claims, as the state machine keeps them.

use std::collections::BTreeMap;

use crate::digest::Digest;
use crate::name::{ClaimedBy, DedupeKey, JobId, QueueName};
use crate::time::{LeaseTime, WallTime};

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobState {
    /// Its time has not come.
    Scheduled,
    /// May be claimed.
    Ready,
    /// A worker claimed it; the claim may have lapsed.
    Claimed,
    /// Done.
    Completed,
    /// Given up.
    Dead,
    /// Cancelled.
    Cancelled,
}

impl JobState {
    /// Whether the job is finished: nothing but a retry, or its retention, changes it.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Scheduled | Self::Ready | Self::Claimed => false,
            Self::Completed | Self::Dead | Self::Cancelled => true,
        }
    }

    /// Its name, as the audit log has it. Fixed for ever.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scheduled => "SCHEDULED",
            Self::Ready => "READY",
            Self::Claimed => "CLAIMED",
            Self::Completed => "COMPLETED",
            Self::Dead => "DEAD",
            Self::Cancelled => "CANCELLED",
        }
    }
}

/// One unit of work, without its blobs. What few jobs have is in `notes`, since a backlog of ten million jobs must fit
/// into memory.
///
/// Invariant: `claim` is present if the state is `Claimed`, and absent if it is `Scheduled` or `Ready`.
/// Invariant: `attempts` never falls.
/// Invariant: `releases` ≤ `attempts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its number.
    pub job_id: JobId,
    /// Its queue.
    pub queue: QueueName,
    /// Where it stands.
    pub state: JobState,
    /// Higher is claimed first.
    pub priority: i32,
    /// How often it was claimed; the number of its newest claim.
    pub attempts: u32,
    /// How often a claim was given back unused.
    pub releases: u32,
    /// The retry budget stands against `attempts` − `releases`.
    pub max_attempts: u32,
    /// What a retry adds to the budget: `max_attempts` as it was at first.
    pub retry_budget: u32,
    /// The lease of claims that name none, in milliseconds; `None`: the queue's default.
    pub lease_ms: Option<u32>,
    /// Not handed out before this time.
    pub run_at: WallTime,
    /// When it was enqueued.
    pub created_at: WallTime,
    /// How many bytes its payload has.
    pub payload_bytes: u32,
    /// The newest claim.
    pub claim: Option<Box<Claim>>,
    /// What few jobs have; `None` is the same as all of its fields empty.
    pub notes: Option<Box<JobNotes>>,
}

/// A worker's hold on a job. Its number is the job's `attempts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Who holds it.
    pub claimed_by: ClaimedBy,
    /// How long the lease is that heartbeats without one get, in milliseconds.
    pub lease_ms: u32,
    /// When the lease ends. It is this clock that decides.
    pub lease_ends_at: LeaseTime,
    /// The same on the wall clock, as of the claim or the last heartbeat, for people to read.
    pub lease_ends_wall: WallTime,
    /// The lease has run out, and the job may be handed to the next claimer.
    pub lapsed: bool,
}

/// What few jobs have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobNotes {
    /// The business's own key.
    pub dedupe_key: Option<DedupeKey>,
    /// The producer's labels.
    pub labels: BTreeMap<String, String>,
    /// Why the last claim failed, or why the job is dead.
    pub reason: String,
    /// How many bytes the stored progress has.
    pub progress_bytes: u32,
    /// How many bytes the result has.
    pub result_bytes: u32,
    /// The digest of the completion's attestation.
    pub attestation: Option<Digest>,
    /// When it was finished.
    pub finished_at: Option<WallTime>,
    /// When its cancellation was first asked for, while it was held.
    pub cancel_requested_at: Option<WallTime>,
}

impl Job {
    /// The notes, empty if it has none.
    pub fn notes(&self) -> &JobNotes {
        static EMPTY: JobNotes = JobNotes {
            dedupe_key: None,
            labels: BTreeMap::new(),
            reason: String::new(),
            progress_bytes: 0,
            result_bytes: 0,
            attestation: None,
            finished_at: None,
            cancel_requested_at: None,
        };
        self.notes.as_deref().unwrap_or(&EMPTY)
    }

    /// The notes, to be changed. [`Job::normalize`] must follow.
    pub fn notes_mut(&mut self) -> &mut JobNotes {
        self.notes.get_or_insert_default()
    }

    /// Drops notes that are empty, so that equal jobs are equal values.
    pub fn normalize(&mut self) {
        if self.notes.as_deref() == Some(&JobNotes::default()) {
            self.notes = None;
        }
    }

    /// The claim, if the job is held: claimed, and its lease has not run out.
    pub fn held_claim(&self) -> Option<&Claim> {
        self.claim.as_deref().filter(|claim| self.state == JobState::Claimed && !claim.lapsed)
    }

    /// Whether it is claimed and its lease has run out.
    pub fn is_lapsed(&self) -> bool {
        self.state == JobState::Claimed && self.claim.as_ref().is_some_and(|claim| claim.lapsed)
    }

    /// Whether its cancellation was asked for.
    pub fn cancel_requested(&self) -> bool {
        self.notes().cancel_requested_at.is_some()
    }

    /// How many claims count against the retry budget.
    pub fn charged_attempts(&self) -> u32 {
        self.attempts.saturating_sub(self.releases)
    }

    /// Whether the retry budget is used up.
    pub fn budget_used_up(&self) -> bool {
        self.charged_attempts() >= self.max_attempts
    }

    /// About how many bytes it takes up in an answer, blobs of a waiting job included.
    pub fn answer_bytes(&self) -> u64 {
        let notes = self.notes();
        let labels: usize = notes.labels.iter().map(|(key, value)| key.len() + value.len() + 8).sum();
        u64::from(self.payload_bytes) + u64::from(notes.progress_bytes) + (labels + notes.reason.len() + 512) as u64
    }
}
