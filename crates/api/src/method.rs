//! The methods of the contract: what each is, and what it takes to call it.

use ag_auth::Permission;

/// A method of `agwp.v1`, by the name that it has in the protos.
#[expect(missing_docs, reason = "the protos say what each method does")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    EnqueueJob,
    EnqueueJobs,
    ClaimJob,
    ClaimJobs,
    HeartbeatJob,
    HeartbeatJobs,
    CompleteJob,
    CompleteJobs,
    FailJob,
    ReleaseJob,
    CancelJob,
    RetryJob,
    GetJob,
    ListJobs,
    ListQueues,
    GetQueue,
    UpdateQueue,
    ListAuditRecords,
    GetAuditHead,
    GetAttestation,
    GetCluster,
    InitCluster,
    AddReplica,
    RemoveReplica,
    TransferLeadership,
    SetClusterVersion,
}

/// Where a method runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the leader, through the log.
    Leader,
    /// On any replica, after a read barrier unless a stale answer is asked for.
    Reader,
    /// On the replica that is asked.
    Here,
}

impl Method {
    /// All of them.
    pub const ALL: [Self; 26] = [
        Self::EnqueueJob,
        Self::EnqueueJobs,
        Self::ClaimJob,
        Self::ClaimJobs,
        Self::HeartbeatJob,
        Self::HeartbeatJobs,
        Self::CompleteJob,
        Self::CompleteJobs,
        Self::FailJob,
        Self::ReleaseJob,
        Self::CancelJob,
        Self::RetryJob,
        Self::GetJob,
        Self::ListJobs,
        Self::ListQueues,
        Self::GetQueue,
        Self::UpdateQueue,
        Self::ListAuditRecords,
        Self::GetAuditHead,
        Self::GetAttestation,
        Self::GetCluster,
        Self::InitCluster,
        Self::AddReplica,
        Self::RemoveReplica,
        Self::TransferLeadership,
        Self::SetClusterVersion,
    ];

    /// `/<package>.<service>/<method>`.
    pub fn path(self) -> &'static str {
        match self {
            Self::EnqueueJob => "/agwp.v1.JobService/EnqueueJob",
            Self::EnqueueJobs => "/agwp.v1.JobService/EnqueueJobs",
            Self::ClaimJob => "/agwp.v1.JobService/ClaimJob",
            Self::ClaimJobs => "/agwp.v1.JobService/ClaimJobs",
            Self::HeartbeatJob => "/agwp.v1.JobService/HeartbeatJob",
            Self::HeartbeatJobs => "/agwp.v1.JobService/HeartbeatJobs",
            Self::CompleteJob => "/agwp.v1.JobService/CompleteJob",
            Self::CompleteJobs => "/agwp.v1.JobService/CompleteJobs",
            Self::FailJob => "/agwp.v1.JobService/FailJob",
            Self::ReleaseJob => "/agwp.v1.JobService/ReleaseJob",
            Self::CancelJob => "/agwp.v1.JobService/CancelJob",
            Self::RetryJob => "/agwp.v1.JobService/RetryJob",
            Self::GetJob => "/agwp.v1.JobService/GetJob",
            Self::ListJobs => "/agwp.v1.JobService/ListJobs",
            Self::ListQueues => "/agwp.v1.QueueService/ListQueues",
            Self::GetQueue => "/agwp.v1.QueueService/GetQueue",
            Self::UpdateQueue => "/agwp.v1.QueueService/UpdateQueue",
            Self::ListAuditRecords => "/agwp.v1.AuditService/ListAuditRecords",
            Self::GetAuditHead => "/agwp.v1.AuditService/GetAuditHead",
            Self::GetAttestation => "/agwp.v1.AuditService/GetAttestation",
            Self::GetCluster => "/agwp.v1.ClusterService/GetCluster",
            Self::InitCluster => "/agwp.v1.ClusterService/InitCluster",
            Self::AddReplica => "/agwp.v1.ClusterService/AddReplica",
            Self::RemoveReplica => "/agwp.v1.ClusterService/RemoveReplica",
            Self::TransferLeadership => "/agwp.v1.ClusterService/TransferLeadership",
            Self::SetClusterVersion => "/agwp.v1.ClusterService/SetClusterVersion",
        }
    }

    /// The method of this path.
    pub fn of_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.path() == path)
    }

    /// The name without package and service.
    pub fn name(self) -> &'static str {
        self.path().rsplit('/').next().unwrap_or_default()
    }

    /// What the caller must be allowed to do.
    pub fn permission(self) -> Permission {
        match self {
            Self::EnqueueJob | Self::EnqueueJobs => Permission::Enqueue,
            Self::ClaimJob | Self::ClaimJobs => Permission::Claim,
            Self::HeartbeatJob | Self::HeartbeatJobs => Permission::Heartbeat,
            Self::CompleteJob | Self::CompleteJobs => Permission::Complete,
            Self::FailJob => Permission::Fail,
            Self::ReleaseJob => Permission::Release,
            Self::CancelJob => Permission::Cancel,
            Self::RetryJob => Permission::Retry,
            Self::GetJob | Self::ListJobs => Permission::ReadJobs,
            Self::ListQueues | Self::GetQueue => Permission::ReadQueues,
            Self::UpdateQueue => Permission::UpdateQueue,
            Self::ListAuditRecords | Self::GetAuditHead => Permission::ReadAudit,
            Self::GetAttestation => Permission::ReadAttestations,
            Self::GetCluster => Permission::ReadCluster,
            Self::InitCluster
            | Self::AddReplica
            | Self::RemoveReplica
            | Self::TransferLeadership
            | Self::SetClusterVersion => Permission::ManageCluster,
        }
    }

    /// Where it runs.
    pub fn place(self) -> Place {
        match self {
            Self::GetJob
            | Self::ListJobs
            | Self::ListQueues
            | Self::GetQueue
            | Self::ListAuditRecords
            | Self::GetAuditHead
            | Self::GetAttestation => Place::Reader,
            Self::GetCluster | Self::InitCluster => Place::Here,
            Self::EnqueueJob
            | Self::EnqueueJobs
            | Self::ClaimJob
            | Self::ClaimJobs
            | Self::HeartbeatJob
            | Self::HeartbeatJobs
            | Self::CompleteJob
            | Self::CompleteJobs
            | Self::FailJob
            | Self::ReleaseJob
            | Self::CancelJob
            | Self::RetryJob
            | Self::UpdateQueue
            | Self::AddReplica
            | Self::RemoveReplica
            | Self::TransferLeadership
            | Self::SetClusterVersion => Place::Leader,
        }
    }
}
