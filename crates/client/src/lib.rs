//! The Rust client of ag: any replica, leader hints, deadlines, and retries that cannot do a thing twice.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use ag_client::{Client, v1};
//!
//! let client = Client::builder().addrs("http://127.0.0.1:7400,127.0.0.1:7401").build()?;
//! let request = v1::EnqueueJobRequest { queue: "mail".into(), payload: b"hello".to_vec(), ..Default::default() };
//! let answer = client.enqueue_job(request).await?;
//! println!("{} was enqueued at {:?}", answer.value.job_id, answer.applied);
//! # Ok(())
//! # }
//! ```
//!
//! # What is repeated, and why that is safe
//!
//! Every call has one deadline, sent along as `grpc-timeout`. Within it, a call that failed is sent again, to the
//! leader that an answer named or else to the next address, after a growing pause with jitter:
//!
//! | calls | repeated when |
//! | --- | --- |
//! | all reads | the error is one of the connection, or says that the service is unavailable |
//! | enqueue, claim, complete, and their batches | the same; the client puts in a random `request_id` where there is none, and the service gives the first answer again. A batch of completions needs the one of the batch only |
//! | heartbeats | the same: they only ever extend a lease, and a second one extends it to the same end or a later one |
//! | release | the same: a claim that was given back cannot be given back again, so a repeat is refused as lost. Without a fencing token there is one exception, which costs work and never a result: while the answer was lost, a claimer with the same label may have been given the job again, and then loses that claim, unused |
//! | fail, cancel, retry, update of a queue, changes of the cluster | only when it is certain that nothing was proposed: the connection could not be made, or the answer says so |
//!
//! # Claims
//!
//! Calls on a claim take a [`Claim`], which [`Claim::of`] makes of the claimed job: it carries the claim's number, the
//! fencing token, into every call, so that the service can refuse what an older claim of the same worker sends.
//!
//! A refusal by the state machine is final and carries [`ClientError::applied`]. An error with
//! [`ClientError::is_unknown`] may or may not have had its effect.

mod answer;
mod builder;
mod call;
mod claim;
mod error;
mod methods;
mod pool;
mod retry;

pub use ag_proto::v1;
pub use answer::{Answer, Applied};
pub use builder::{ClientBuilder, ConfigError};
pub use call::Client;
pub use claim::{Claim, Raw};
pub use error::{ClientError, FieldViolation};
pub use retry::{NOT_PROPOSED_REASONS, new_request_id};
pub use tonic::Code;

/// How long a call may take when nothing else is said.
pub const DEADLINE_DEFAULT: std::time::Duration = std::time::Duration::from_secs(30);
/// How long one try of a call may take before another replica is asked, when nothing else is said. A claim that waits
/// has its `wait` on top.
pub const TRY_TIMEOUT_DEFAULT: std::time::Duration = std::time::Duration::from_secs(5);
/// Most addresses that a client keeps, those that it learned from answers included.
pub const ADDRS_MAX: usize = 32;
/// Largest answer that is taken, in bytes.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;
