//! The only writer of the state.

use crate::canonical;
use crate::change::{Change, Reply, ReplyKey};
use crate::command::Member;
use crate::digest::Digest;
use crate::job::{Job, JobState};
use crate::name::{JobId, QueueName, ReplicaId};
use crate::queue::QueuePolicy;
use crate::state::{Queue, ReadyKey, State};

impl State {
    /// Carries one change out. Changes that a state of the same history decided on always can be.
    pub fn evolve(&mut self, change: &Change) {
        match change {
            Change::Clocks { lease_now, wall_now } => {
                self.meta.lease_now = *lease_now;
                self.meta.wall_now = *wall_now;
            }
            Change::PutJob(job) => {
                if job.job_id >= self.meta.next_job_id {
                    self.meta.next_job_id = JobId(job.job_id.0 + 1);
                }
                self.put_job((**job).clone());
            }
            Change::DropJob(job_id) => self.drop_job(*job_id),
            Change::PutQueue { queue, policy } => self.put_queue(queue, policy),
            Change::PutBlob { job_id, kind, bytes } => self.put_content(&canonical::blob(*job_id, *kind, bytes)),
            Change::PutAttestation { digest, attestation_type, bytes: _ } => {
                self.put_content(&canonical::attestation(*digest, attestation_type));
            }
            Change::PutReply { reply, answer } => {
                self.put_content(&canonical::answer(answer));
                self.meta.reply_number = reply.reply_number;
                self.put_reply(reply);
            }
            Change::DropReply(reply_key) => self.drop_reply(*reply_key),
            Change::Audit(record) => self.meta.audit_head = record.head(),
            Change::PutMember(member) => self.put_member(member),
            Change::DropMember(replica_id) => self.drop_member(*replica_id),
            Change::NextReplicaId(replica_id) => self.meta.next_replica_id = *replica_id,
            Change::ClusterId(cluster_id) => self.meta.cluster_id = *cluster_id,
            Change::ClusterVersion(cluster_version) => self.meta.cluster_version = *cluster_version,
            Change::VersionHeld(held) => self.meta.version_held = *held,
        }
    }

    /// What the state does not keep, it remembers by the hash of all of it.
    fn put_content(&mut self, canonical: &[u8]) {
        self.meta.content_head = Digest::of_two(&self.meta.content_head.0, canonical);
    }

    pub(crate) fn put_job(&mut self, mut job: Job) {
        if let Some(before) = self.jobs.remove(&job.job_id) {
            self.meta.rows.remove(&canonical::job(&before));
            self.unindex(&before);
        }
        // One name in memory a queue, however many jobs it has.
        if let Some((name, _)) = self.queues.get_key_value(&job.queue) {
            job.queue = name.clone();
        }
        self.meta.rows.add(&canonical::job(&job));
        self.index(&job);
        self.jobs.insert(job.job_id, job);
    }

    fn drop_job(&mut self, job_id: JobId) {
        if let Some(before) = self.jobs.remove(&job_id) {
            self.meta.rows.remove(&canonical::job(&before));
            self.unindex(&before);
        }
    }

    fn put_queue(&mut self, name: &QueueName, policy: &QueuePolicy) {
        self.refresh_drop(
            name,
            |queue| queue.policy = policy.clone(),
            |state, queue| {
                if let Some(before) = queue {
                    state.meta.rows.remove(&canonical::queue(name, before));
                }
                state.meta.rows.add(&canonical::queue(name, policy));
            },
        );
    }

    /// Changes a queue, and moves its place among the drops to where it belongs afterwards.
    fn refresh_drop(
        &mut self,
        name: &QueueName,
        change: impl FnOnce(&mut Queue),
        rows: impl FnOnce(&mut Self, Option<&QueuePolicy>),
    ) {
        let existing = self.queues.remove(name);
        rows(self, existing.as_ref().map(|queue| &queue.policy));
        let mut queue = existing.unwrap_or_default();
        if let Some(at) = queue.next_drop() {
            self.drops.remove(&(at, name.clone()));
        }
        change(&mut queue);
        if let Some(at) = queue.next_drop() {
            self.drops.insert((at, name.clone()));
        }
        self.queues.insert(name.clone(), queue);
    }

    pub(crate) fn put_reply(&mut self, reply: &Reply) {
        self.drop_reply(reply.reply_key);
        self.meta.rows.add(&canonical::reply(reply));
        self.reply_order.insert(reply.reply_number, reply.reply_key);
        self.replies.insert(reply.reply_key, reply.clone());
    }

    fn drop_reply(&mut self, reply_key: ReplyKey) {
        if let Some(before) = self.replies.remove(&reply_key) {
            self.meta.rows.remove(&canonical::reply(&before));
            self.reply_order.remove(&before.reply_number);
        }
    }

    fn put_member(&mut self, member: &Member) {
        self.drop_member(member.replica_id);
        self.meta.rows.add(&canonical::member(member));
        self.members.insert(member.replica_id, member.clone());
    }

    fn drop_member(&mut self, replica_id: ReplicaId) {
        if let Some(before) = self.members.remove(&replica_id) {
            self.meta.rows.remove(&canonical::member(&before));
        }
    }

    fn index(&mut self, job: &Job) {
        if let (Some(dedupe_key), false) = (&job.notes().dedupe_key, job.state.is_terminal()) {
            self.dedupe.insert((job.queue.clone(), dedupe_key.clone()), job.job_id);
        }
        if job.state == JobState::Scheduled {
            self.scheduled.insert((job.run_at, job.job_id));
        }
        if let Some(claim) = job.held_claim() {
            self.deadlines.insert((claim.lease_ends_at, job.job_id));
        }
        self.with_queue(job, |queue| queue.index(job));
    }

    fn unindex(&mut self, job: &Job) {
        if let (Some(dedupe_key), false) = (&job.notes().dedupe_key, job.state.is_terminal()) {
            self.dedupe.remove(&(job.queue.clone(), dedupe_key.clone()));
        }
        if job.state == JobState::Scheduled {
            self.scheduled.remove(&(job.run_at, job.job_id));
        }
        if let Some(claim) = job.held_claim() {
            self.deadlines.remove(&(claim.lease_ends_at, job.job_id));
        }
        self.with_queue(job, |queue| queue.unindex(job));
    }

    /// Changes the indexes of a job's queue. Only finished jobs move the queue's place among the drops.
    fn with_queue(&mut self, job: &Job, change: impl FnOnce(&mut Queue)) {
        if job.state.is_terminal() || !self.queues.contains_key(&job.queue) {
            self.refresh_drop(&job.queue, change, |_, _| {});
        } else if let Some(queue) = self.queues.get_mut(&job.queue) {
            change(queue);
        }
    }
}

impl Queue {
    fn index(&mut self, job: &Job) {
        *self.count(job.state) += 1;
        match job.state {
            JobState::Ready => _ = self.ready.insert(ReadyKey::of(job)),
            JobState::Claimed if job.is_lapsed() => {
                self.counts.lapsed += 1;
                self.lapsed.insert(ReadyKey::of(job));
            }
            JobState::Completed | JobState::Dead | JobState::Cancelled => {
                self.finished.insert((job.finished_at(), job.job_id));
            }
            JobState::Scheduled | JobState::Claimed => {}
        }
    }

    fn unindex(&mut self, job: &Job) {
        *self.count(job.state) -= 1;
        match job.state {
            JobState::Ready => _ = self.ready.remove(&ReadyKey::of(job)),
            JobState::Claimed if job.is_lapsed() => {
                self.counts.lapsed -= 1;
                self.lapsed.remove(&ReadyKey::of(job));
            }
            JobState::Completed | JobState::Dead | JobState::Cancelled => {
                self.finished.remove(&(job.finished_at(), job.job_id));
            }
            JobState::Scheduled | JobState::Claimed => {}
        }
    }

    fn count(&mut self, state: JobState) -> &mut u64 {
        match state {
            JobState::Scheduled => &mut self.counts.scheduled,
            JobState::Ready => &mut self.counts.ready,
            JobState::Claimed => &mut self.counts.claimed,
            JobState::Completed => &mut self.counts.completed,
            JobState::Dead => &mut self.counts.dead,
            JobState::Cancelled => &mut self.counts.cancelled,
        }
    }
}
