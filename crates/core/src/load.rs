//! Rebuilding the state from stored rows.

use crate::change::{Change, Reply};
use crate::command::Member;
use crate::hash::RowSum;
use crate::job::Job;
use crate::name::QueueName;
use crate::queue::QueuePolicy;
use crate::state::{Meta, State};

/// Takes rows in any order within a table; queues before jobs.
#[derive(Default)]
pub struct Loader {
    state: State,
}

/// The rows are not the ones that were stored: one was changed, lost or added. Do not serve them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stored rows do not have the stored sum: one of them was changed, lost or added")]
pub struct LoadError;

impl Loader {
    /// A queue.
    pub fn queue(&mut self, queue: QueueName, policy: QueuePolicy) {
        self.state.evolve(&Change::PutQueue { queue, policy });
    }

    /// A job.
    pub fn job(&mut self, job: Job) {
        self.state.put_job(job);
    }

    /// A reply.
    pub fn reply(&mut self, reply: Reply) {
        self.state.put_reply(&reply);
    }

    /// A member.
    pub fn member(&mut self, member: Member) {
        self.state.evolve(&Change::PutMember(member));
    }

    /// The state, once all rows are in.
    pub fn finish(mut self, meta: Meta) -> Result<State, LoadError> {
        let rows: RowSum = self.state.meta.rows;
        if rows != meta.rows {
            return Err(LoadError);
        }
        self.state.meta = meta;
        Ok(self.state)
    }
}
