//! What a store would hold: rows, gathered from the changes alone.

use std::collections::BTreeMap;

use ag_core::change::{Answer, BlobKind, Change, Reply, ReplyKey};
use ag_core::command::Member;
use ag_core::digest::Digest;
use ag_core::job::Job;
use ag_core::load::{LoadError, Loader};
use ag_core::name::{JobId, QueueName, ReplicaId};
use ag_core::queue::QueuePolicy;
use ag_core::{Meta, State};

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Jobs.
    pub jobs: BTreeMap<JobId, Job>,
    /// Queues.
    pub queues: BTreeMap<QueueName, QueuePolicy>,
    /// Replies.
    pub replies: BTreeMap<ReplyKey, Reply>,
    /// The answers of the replies.
    pub answers: BTreeMap<ReplyKey, Answer>,
    /// Members.
    pub members: BTreeMap<ReplicaId, Member>,
    /// Payloads, progress and results.
    pub blobs: BTreeMap<(JobId, BlobKind), Vec<u8>>,
    /// Attestations.
    pub attestations: BTreeMap<Digest, Vec<u8>>,
}

impl Rows {
    /// Carries changes out.
    pub fn commit(&mut self, changes: &[Change]) {
        changes.iter().for_each(|change| self.commit_one(change));
    }

    fn commit_one(&mut self, change: &Change) {
        match change {
            Change::PutJob(job) => _ = self.jobs.insert(job.job_id, (**job).clone()),
            Change::DropJob(job_id) => {
                assert!(self.jobs.remove(job_id).is_some(), "{job_id} is dropped, but was never put");
                self.blobs.retain(|(owner, _), _| owner != job_id);
            }
            Change::PutQueue { queue, policy } => _ = self.queues.insert(queue.clone(), policy.clone()),
            Change::PutBlob { job_id, kind, bytes } => {
                assert!(!bytes.is_empty());
                self.blobs.insert((*job_id, *kind), bytes.clone());
            }
            Change::PutAttestation { digest, attestation_type: _, bytes } => {
                assert_eq!(*digest, Digest::of(bytes));
                self.attestations.insert(*digest, bytes.clone());
            }
            Change::PutReply { reply, answer } => {
                self.replies.insert(reply.reply_key, reply.clone());
                self.answers.insert(reply.reply_key, answer.clone());
            }
            Change::DropReply(reply_key) => {
                assert!(self.replies.remove(reply_key).is_some());
                self.answers.remove(reply_key);
            }
            Change::PutMember(member) => _ = self.members.insert(member.replica_id, member.clone()),
            Change::DropMember(replica_id) => assert!(self.members.remove(replica_id).is_some()),
            Change::Clocks { .. }
            | Change::Audit(_)
            | Change::NextReplicaId(_)
            | Change::ClusterId(_)
            | Change::ClusterVersion(_)
            | Change::VersionHeld(_) => {}
        }
    }

    /// The state that these rows make up. Jobs and replies are given in falling order, other than they came.
    pub fn load(&self, meta: Meta) -> Result<State, LoadError> {
        let mut loader = Loader::default();
        self.queues.iter().rev().for_each(|(name, policy)| loader.queue(name.clone(), policy.clone()));
        self.jobs.values().rev().for_each(|job| loader.job(job.clone()));
        self.replies.values().rev().for_each(|reply| loader.reply(reply.clone()));
        self.members.values().rev().for_each(|member| loader.member(member.clone()));
        loader.finish(meta)
    }

    /// A blob, empty if there is none.
    pub fn blob(&self, job_id: JobId, kind: BlobKind) -> &[u8] {
        self.blobs.get(&(job_id, kind)).map_or(&[], Vec::as_slice)
    }
}
