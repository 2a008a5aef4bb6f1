//! A life of a state, step by step, and folders to try things in.

#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ag_core::State;
use ag_core::change::Change;
use ag_core::command::*;
use ag_core::job::Job;
use ag_core::name::*;
use ag_core::outcome::Outcome;
use ag_core::time::{LeaseTime, WallTime};
use ag_store::{AppliedMark, DataDir, EntryId, LoadProgress, StateTable, StoreError, StoreOptions};
use bytes::Bytes;

/// A state that grows by one entry a step, the same in every run.
#[derive(Clone, Default)]
pub struct Life {
    pub state: State,
    pub mark: AppliedMark,
    held: Vec<JobId>,
    step: u64,
}

impl Life {
    /// Applies the next entry, and gives what changed.
    pub fn step(&mut self) -> Vec<Change> {
        self.step += 1;
        let step = self.step;
        let entry = Entry {
            lease_now: LeaseTime(step * 400),
            wall_now: WallTime(1_750_000_000_000 + step * 400),
            commands: self.commands(),
        };
        let entry_id = EntryId::new(1 + step / 50, 1, step);
        let applied = self.state.apply(entry_id.position, entry);
        for outcome in &applied.outcomes {
            match outcome {
                Outcome::Claimed(jobs) => self.held.extend(jobs.iter().map(|job: &Job| job.job_id)),
                Outcome::Enqueued(_)
                | Outcome::Heartbeats(_)
                | Outcome::Completed(_)
                | Outcome::Job(_)
                | Outcome::Replayed(_)
                | Outcome::Queue(_)
                | Outcome::ReplicaAllocated(_)
                | Outcome::Done
                | Outcome::Rejected(_) => {}
            }
        }
        self.mark.applied = Some(entry_id);
        if step.is_multiple_of(40) {
            self.mark.membership = Bytes::from(format!("members as of {step}"));
            self.mark.membership_at = Some(entry_id);
        }
        applied.changes
    }

    /// Applies and commits so many entries.
    pub fn run(&mut self, table: &dyn StateTable, steps: u64) {
        for _ in 0..steps {
            let changes = self.step();
            table.commit(&changes, self.state.meta(), &self.mark).unwrap();
        }
    }

    fn commands(&mut self) -> Vec<Command> {
        let step = self.step;
        let worker = || WorkerLabel::parse("worker", "w|1").unwrap();
        let operation = match step % 9 {
            _ if step == 1 => Operation::InitCluster(InitCluster {
                cluster_id: ClusterId([3; 16]),
                members: vec![member(1), member(2), member(3)],
            }),
            1 => Operation::UpdateQueue(UpdateQueue {
                queue: queue(step % 2),
                patch: ag_core::queue::QueuePolicyPatch { retention_ms: Some(5_000), ..Default::default() },
            }),
            2..=4 => Operation::Enqueue(Enqueue {
                jobs: (0..4).map(|number| new_job(step, number)).collect(),
                request_id: step.is_multiple_of(2).then(|| request_id(step)),
            }),
            5 | 6 => Operation::Claim(ClaimJobs {
                queues: vec![queue(0), queue(1)],
                worker: worker(),
                lease_ms: Some(3_000),
                jobs_max: 4,
                request_id: step.is_multiple_of(2).then(|| request_id(step)),
            }),
            7 => Operation::Heartbeat(
                self.held
                    .iter()
                    .map(|job_id| Heartbeat {
                        fencing_token: None,
                        job_id: Some(*job_id),
                        worker: worker(),
                        lease_ms: None,
                        progress: step.to_string().into_bytes(),
                    })
                    .collect(),
            ),
            8 => {
                let done = self.held.split_off(self.held.len().saturating_sub(4));
                Operation::Complete(
                    done.into_iter()
                        .map(|job_id| Complete {
                            fencing_token: None,
                            job_id: Some(job_id),
                            worker: worker(),
                            result: vec![7; (step % 5_000) as usize],
                            attestation: Some(NewAttestation {
                                attestation_type: AttestationType::parse("", "text/plain").unwrap(),
                                bytes: format!("attested {job_id}").into_bytes(),
                            }),
                            request_id: Some(request_id(step * 1_000 + job_id.0)),
                        })
                        .collect(),
                )
            }
            _ => match self.held.pop() {
                Some(job_id) => Operation::Fail(Fail {
                    fencing_token: None,
                    job_id: Some(job_id),
                    worker: worker(),
                    reason: "no luck".into(),
                    retry_after_ms: Some(1_000),
                    permanent: step.is_multiple_of(2),
                }),
                None => return Vec::new(),
            },
        };
        let actor = match step {
            1 => Actor::System,
            _ => Actor::Principal(PrincipalName::parse("", "tester").unwrap()),
        };
        vec![Command { actor, operation }]
    }
}

fn queue(number: u64) -> QueueName {
    QueueName::parse("queue", &format!("queue-{number}")).unwrap()
}

fn request_id(number: u64) -> RequestId {
    RequestId::parse("request_id", &format!("call {number}")).unwrap()
}

fn member(number: u64) -> Member {
    Member {
        replica_id: ReplicaId(number),
        addr: Addr::parse("", &format!("host-{number}:7400")).unwrap(),
        peer_addr: Addr::parse("", &format!("host-{number}:8400")).unwrap(),
        release: "0.1.0".into(),
        min_version: 1,
        max_version: 1,
    }
}

fn new_job(step: u64, number: u64) -> NewJob {
    NewJob {
        queue: queue(number % 2),
        payload: format!("payload {step} {number} ").repeat(1 + (step % 40) as usize).into_bytes(),
        priority: (number as i32) - 1,
        start: if number == 3 { Start::After(2_000) } else { Start::Now },
        max_attempts: Some(3),
        lease_ms: None,
        dedupe_key: (number == 2).then(|| DedupeKey::parse("", &format!("key {}", step % 20)).unwrap()),
        labels: BTreeMap::from([("step".to_owned(), step.to_string())]),
    }
}

/// Loads, without looking at the progress.
pub fn load(table: &dyn StateTable) -> Result<(State, AppliedMark), StoreError> {
    table.load(&mut |_: LoadProgress| {})
}

/// Opens a data directory as it is used in production.
pub fn open(path: &Path) -> DataDir {
    DataDir::open(path, StoreOptions::default()).unwrap()
}

/// Copies a folder with all that is in it.
pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for found in std::fs::read_dir(from).unwrap() {
        let found = found.unwrap();
        let target = to.join(found.file_name());
        match found.file_type().unwrap().is_dir() {
            true => copy(&found.path(), &target),
            false => drop(std::fs::copy(found.path(), target).unwrap()),
        }
    }
}

/// One way to damage a file.
#[derive(Clone, Copy, Debug)]
pub enum Damage {
    /// Flip a bit at this share of the file's length, in thousandths.
    Flip(usize),
    /// Cut the file off at this share.
    Cut(usize),
    /// Cut the last byte off.
    CutLastByte,
}

impl Damage {
    pub const ALL: [Self; 11] = [
        Self::Flip(0),
        Self::Flip(130),
        Self::Flip(260),
        Self::Flip(500),
        Self::Flip(770),
        Self::Flip(999),
        Self::Cut(0),
        Self::Cut(250),
        Self::Cut(500),
        Self::Cut(900),
        Self::CutLastByte,
    ];

    /// Damages the file. `false`: it is empty, and nothing was done.
    pub fn inflict(self, path: &Path) -> bool {
        let mut bytes = std::fs::read(path).unwrap();
        if bytes.is_empty() {
            return false;
        }
        match self {
            Self::Flip(share) => {
                let at = (bytes.len() * share / 1_000).min(bytes.len() - 1);
                bytes[at] ^= 0x10;
            }
            Self::Cut(share) => bytes.truncate(bytes.len() * share / 1_000),
            Self::CutLastByte => drop(bytes.pop()),
        }
        std::fs::write(path, bytes).unwrap();
        true
    }
}

/// All files below a folder, relative to it, in order.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for item in std::fs::read_dir(next).unwrap() {
            let path = item.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(path.strip_prefix(folder).unwrap().to_path_buf()),
            }
        }
    }
    found.sort();
    found
}
