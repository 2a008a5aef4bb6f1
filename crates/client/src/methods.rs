//! The methods, one for each RPC.

use std::time::Duration;

use ag_proto::v1;
use ag_proto::v1::audit_service_client::AuditServiceClient;
use ag_proto::v1::cluster_service_client::ClusterServiceClient;
use ag_proto::v1::job_service_client::JobServiceClient;
use ag_proto::v1::queue_service_client::QueueServiceClient;

use crate::ANSWER_BYTES_MAX;
use crate::answer::Answer;
use crate::call::{Client, Rules};
use crate::claim::Raw;
use crate::error::ClientError;
use crate::retry::{self, Repeat};

/// Longest `wait` that is added to a deadline; the service takes none that is longer.
const WAIT_MAX: Duration = Duration::from_secs(60);

macro_rules! method {
    ($(#[$doc:meta])*
     $name:ident, $service:ident, $request:ident => $answer:ident, $repeat:ident $(, $fill:ident)?) => {
        $(#[$doc])*
        pub async fn $name(&self, request: v1::$request) -> Result<Answer<v1::$answer>, ClientError> {
            $(let mut request = request; retry::fill(&mut request.$fill);)?
            let rules = Rules { method: stringify!($name), repeat: Repeat::$repeat, wait: Duration::ZERO };
            let send = |channel, request| async move {
                let mut client = $service::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
                client.$name(request).await
            };
            self.call(rules, |_| request.clone(), send).await
        }
    };
}

/// The same, on [`Raw`].
macro_rules! raw {
    ($(#[$doc:meta])*
     $name:ident, $service:ident, $request:ident => $answer:ident, $repeat:ident $(, $fill:ident)?) => {
        $(#[$doc])*
        pub async fn $name(self, request: v1::$request) -> Result<Answer<v1::$answer>, ClientError> {
            $(let mut request = request; retry::fill(&mut request.$fill);)?
            let rules = Rules { method: stringify!($name), repeat: Repeat::$repeat, wait: Duration::ZERO };
            let send = |channel, request| async move {
                let mut client = $service::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
                client.$name(request).await
            };
            self.0.call(rules, |_| request.clone(), send).await
        }
    };
}

macro_rules! claim {
    ($(#[$doc:meta])* $name:ident, $request:ident => $answer:ident) => {
        $(#[$doc])*
        pub async fn $name(&self, mut request: v1::$request) -> Result<Answer<v1::$answer>, ClientError> {
            retry::fill(&mut request.request_id);
            let asked = request.wait.as_ref().and_then(|wait| Duration::try_from(*wait).ok());
            let wait = asked.unwrap_or_default().min(WAIT_MAX);
            let rules = Rules { method: stringify!($name), repeat: Repeat::Freely, wait };
            let make = |taken: Duration| {
                let mut request = request.clone();
                // A repeat waits only for what is left. `wait` is not part of what a request id stands for. A wait out
                // of bounds stays as it is, for the service to refuse.
                if asked.is_some_and(|asked| asked == wait) && taken > Duration::from_millis(100) {
                    request.wait = prost_types::Duration::try_from(wait.saturating_sub(taken)).ok();
                }
                request
            };
            let send = |channel, request| async move {
                let mut client = JobServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
                client.$name(request).await
            };
            self.call(rules, make, send).await
        }
    };
}

/// Jobs.
impl Client {
    method!(
        /// Puts one job into a queue.
        enqueue_job, JobServiceClient, EnqueueJobRequest => Job, Freely, request_id
    );
    method!(
        /// Puts up to 1,000 jobs into queues, all or none.
        enqueue_jobs, JobServiceClient, EnqueueJobsRequest => EnqueueJobsResponse, Freely, request_id
    );
    claim!(
        /// Claims the next job of the named queues, waiting up to `wait` for one. The deadline has `wait` on top.
        claim_job, ClaimJobRequest => ClaimJobResponse
    );
    claim!(
        /// Claims up to `max_jobs` jobs, waiting up to `wait` for the first. The deadline has `wait` on top.
        claim_jobs, ClaimJobsRequest => ClaimJobsResponse
    );
    method!(
        /// Cancels a job, or asks its holder to stop.
        cancel_job, JobServiceClient, CancelJobRequest => Job, IfNotProposed
    );
    method!(
        /// Gives a dead or cancelled job a fresh retry budget.
        retry_job, JobServiceClient, RetryJobRequest => Job, IfNotProposed
    );
    method!(
        /// Reads one job.
        get_job, JobServiceClient, GetJobRequest => Job, Freely
    );
    method!(
        /// Lists jobs.
        list_jobs, JobServiceClient, ListJobsRequest => ListJobsResponse, Freely
    );
}

/// Claims.
impl Raw<'_> {
    raw!(
        /// Extends the lease of a claim, and stores progress.
        heartbeat_job, JobServiceClient, HeartbeatJobRequest => HeartbeatJobResponse, Freely
    );
    raw!(
        /// Extends the leases of up to 1,000 claims, each with its own status in the answer.
        heartbeat_jobs, JobServiceClient, HeartbeatJobsRequest => HeartbeatJobsResponse, Freely
    );
    raw!(
        /// Completes a claimed job.
        complete_job, JobServiceClient, CompleteJobRequest => Job, Freely, request_id
    );
    raw!(
        /// Completes up to 1,000 claimed jobs, each with its own status in the answer.
        complete_jobs, JobServiceClient, CompleteJobsRequest => CompleteJobsResponse, Freely, request_id
    );
    raw!(
        /// Reports that a claim failed.
        fail_job, JobServiceClient, FailJobRequest => Job, IfNotProposed
    );
    raw!(
        /// Gives a claim back unused.
        release_job, JobServiceClient, ReleaseJobRequest => Job, Freely
    );
}

/// Queues.
impl Client {
    method!(
        /// Lists the queues.
        list_queues, QueueServiceClient, ListQueuesRequest => ListQueuesResponse, Freely
    );
    method!(
        /// Reads one queue.
        get_queue, QueueServiceClient, GetQueueRequest => Queue, Freely
    );
    method!(
        /// Changes a queue's policy.
        update_queue, QueueServiceClient, UpdateQueueRequest => Queue, IfNotProposed
    );
}

/// The audit log and the attestations.
impl Client {
    method!(
        /// Lists audit records.
        list_audit_records, AuditServiceClient, ListAuditRecordsRequest => ListAuditRecordsResponse, Freely
    );
    method!(
        /// Reads the newest audit record's number and hash.
        get_audit_head, AuditServiceClient, GetAuditHeadRequest => AuditHead, Freely
    );
    method!(
        /// Reads an attestation by its digest.
        get_attestation, AuditServiceClient, GetAttestationRequest => Attestation, Freely
    );
}

/// The cluster.
impl Client {
    method!(
        /// Reads the state of the cluster, as one replica sees it.
        get_cluster, ClusterServiceClient, GetClusterRequest => Cluster, Freely
    );
    method!(
        /// Makes a new cluster of empty replicas.
        init_cluster, ClusterServiceClient, InitClusterRequest => Cluster, IfNotProposed
    );
    method!(
        /// Adds an empty replica.
        add_replica, ClusterServiceClient, AddReplicaRequest => Cluster, IfNotProposed
    );
    method!(
        /// Removes a replica.
        remove_replica, ClusterServiceClient, RemoveReplicaRequest => Cluster, IfNotProposed
    );
    method!(
        /// Makes another voter the leader.
        transfer_leadership, ClusterServiceClient, TransferLeadershipRequest => Cluster, IfNotProposed
    );
    method!(
        /// Raises the cluster version, or holds it.
        set_cluster_version, ClusterServiceClient, SetClusterVersionRequest => Cluster, IfNotProposed
    );
}
