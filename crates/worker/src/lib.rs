//! The worker of ag: claims jobs, runs a command for each, and never lets one run on under a claim that may be lost.
//!
//! # What a command gets, and what it gives
//!
//! It runs as `sh -c COMMAND`, the leader of its own session and process group.
//!
//! | | |
//! | --- | --- |
//! | standard input | the payload |
//! | standard output | the result, at most 1 MiB; a command that writes more is killed, and the job has failed |
//! | standard error | its last 4 KiB are part of the reason of a failure |
//! | `AG_JOB_ID`, `AG_QUEUE` | which job |
//! | `AG_CLAIM_NUMBER` | the claim's number; rises with every claim of the job |
//! | `AG_ATTEMPT` | the same without the claims that were given back unused; from 1 |
//! | `AG_PROGRESS_FILE` | what it writes there, up to 64 KiB, goes along with the heartbeats. Write another file and rename it, if half of it must not be seen |
//! | exit code 0 | the job is completed |
//! | exit code 75 | (`EX_TEMPFAIL`) not now: the claim is given back, the retry budget is not charged, and the worker takes no further job for a moment, longer each time in a row |
//! | any other exit, a signal | the job has failed, and is tried again later within its retry budget |
//!
//! `AG_BEARER_TOKEN` is not passed on. When the command has ended, what is left of its process group is killed.
//!
//! # When a claim is lost
//!
//! Each claim has a deadline on this machine's `CLOCK_BOOTTIME`, counted from before the call that began or extended it
//! was sent, less a margin. When it comes and no heartbeat has put it off (no replica answers, the network is cut, this
//! process was stopped), the whole process group is killed with SIGKILL while the lease still holds. The claim is then
//! told of as lost; the cluster is not told anything, since it is no failure of the job. The same goes for a heartbeat
//! that is refused. After having been stopped (SIGSTOP) itself, the worker kills first and does everything else
//! afterwards: each step looks at the clock before it acts. Processes that leave the group of their command (`setsid`)
//! are out of reach.
//!
//! A worker that dies leaves no command running: the kernel kills the shell, and a helper process the rest of its
//! group.

mod attest;
mod beat;
mod claim;
mod command;
mod config;
mod convert;
mod event;
mod fence;
mod keeper;
mod lease;
mod os;
mod progress;
mod report;
mod run;

pub use attest::ATTESTATION_TYPE;
pub use claim::EXIT_RELEASE;
pub use config::{Observer, SettingError, WorkerConfig};
pub use event::{ClaimRef, Event, WorkerReport};
pub use run::{WorkerError, run};
