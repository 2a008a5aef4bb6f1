//! `ag queue`: queues and their policies.

use std::time::Duration;

use ag_client::v1;
use anyhow::Result;
use clap::{Args, Subcommand};

use crate::connect::{Connect, duration, proto};
use crate::output;

/// Queues and their policies.
#[derive(Subcommand, Clone, Debug)]
pub enum Queue {
    /// List queues.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show a queue, as JSON.
    Get {
        /// Its name.
        queue: String,
    },
    /// Change a queue's policy; what is not given stays.
    Set(Set),
}

/// See [`Queue::Set`].
#[derive(Args, Clone, Debug)]
pub struct Set {
    /// Its name.
    queue: String,
    /// Hand out nothing (true), or hand out again (false).
    #[arg(long)]
    paused: Option<bool>,
    /// The lease of claims and jobs that name none.
    #[arg(long, value_parser = duration)]
    default_lease: Option<Duration>,
    /// The retry budget of jobs that name none.
    #[arg(long)]
    max_attempts: Option<u32>,
    /// How long finished jobs are kept.
    #[arg(long, value_parser = duration)]
    retention: Option<Duration>,
    /// How many jobs may be claimed at once; 0: no limit.
    #[arg(long)]
    concurrency_limit: Option<u32>,
    /// Whether calls on claims must carry the claim's number.
    #[arg(long, value_enum)]
    fencing: Option<Fencing>,
}

/// See [`Set::fencing`].
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Fencing {
    /// A call without a fencing token is accepted from whom the claim names.
    Optional,
    /// A call without a fencing token is refused. Needs cluster version 2.
    Required,
}

impl Fencing {
    fn proto(self) -> v1::Fencing {
        match self {
            Self::Optional => v1::Fencing::Optional,
            Self::Required => v1::Fencing::Required,
        }
    }
}

impl Queue {
    /// Runs the command.
    pub async fn run(self, connect: &Connect) -> Result<()> {
        let client = connect.client()?;
        match self {
            Self::List { json } => {
                let mut queues = Vec::new();
                let mut page_token = String::new();
                loop {
                    let request = v1::ListQueuesRequest { page_size: Some(1_000), page_token, stale: false };
                    let page = client.list_queues(request).await?.value;
                    queues.extend(page.queues);
                    page_token = page.next_page_token;
                    if page_token.is_empty() {
                        break;
                    }
                }
                if json {
                    let all = v1::ListQueuesResponse { queues, next_page_token: String::new() };
                    return output::json("agwp.v1.ListQueuesResponse", &all);
                }
                let titles =
                    ["QUEUE", "READY", "SCHEDULED", "CLAIMED", "COMPLETED", "DEAD", "CANCELLED", "PAUSED", "FENCING"];
                output::table(&titles, &queues.iter().map(row).collect::<Vec<_>>())
            }
            Self::Get { queue } => {
                let request = v1::GetQueueRequest { queue, stale: false };
                output::json("agwp.v1.Queue", &client.get_queue(request).await?.value)
            }
            Self::Set(set) => {
                let request = v1::UpdateQueueRequest {
                    queue: set.queue,
                    paused: set.paused,
                    default_lease: set.default_lease.map(proto),
                    max_attempts: set.max_attempts,
                    retention: set.retention.map(proto),
                    concurrency_limit: set.concurrency_limit,
                    fencing: set.fencing.map_or(v1::Fencing::Unspecified, Fencing::proto).into(),
                };
                output::json("agwp.v1.Queue", &client.update_queue(request).await?.value)
            }
        }
    }
}

fn row(queue: &v1::Queue) -> Vec<String> {
    let counts = queue.counts.unwrap_or_default();
    let numbers = [counts.ready, counts.scheduled, counts.claimed, counts.completed, counts.dead, counts.cancelled];
    let paused = queue.policy.as_ref().is_some_and(|policy| policy.paused);
    let mut cells = vec![queue.queue.clone()];
    cells.extend(numbers.iter().map(u64::to_string));
    cells.push(if paused { "yes" } else { "" }.into());
    let fencing = queue.policy.as_ref().map_or(v1::Fencing::Unspecified, v1::QueuePolicy::fencing);
    // A replica of an earlier release does not know of it.
    let fencing = if fencing == v1::Fencing::Unspecified { "" } else { fencing.as_str_name() };
    cells.push(fencing.to_lowercase());
    cells
}
