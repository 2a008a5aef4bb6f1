//! The kinds of commands, numbered for ever.

use ag_core::command::Operation;

/// What a command is on disk and in the log. A number is never used for anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CommandKind {
    Enqueue = 1,
    Claim = 2,
    Heartbeat = 3,
    Complete = 4,
    Fail = 5,
    Release = 6,
    ReleaseUndelivered = 7,
    Cancel = 8,
    Retry = 9,
    UpdateQueue = 10,
    InitCluster = 11,
    RegisterReplica = 12,
    AllocateReplica = 13,
    ForgetReplica = 14,
    SetClusterVersion = 15,
    HoldClusterVersion = 16,
}

impl CommandKind {
    const ALL: [Self; 16] = [
        Self::Enqueue,
        Self::Claim,
        Self::Heartbeat,
        Self::Complete,
        Self::Fail,
        Self::Release,
        Self::ReleaseUndelivered,
        Self::Cancel,
        Self::Retry,
        Self::UpdateQueue,
        Self::InitCluster,
        Self::RegisterReplica,
        Self::AllocateReplica,
        Self::ForgetReplica,
        Self::SetClusterVersion,
        Self::HoldClusterVersion,
    ];

    /// The kind with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == number)
    }

    /// The kind of an operation.
    pub fn of(operation: &Operation) -> Self {
        match operation {
            Operation::Enqueue(_) => Self::Enqueue,
            Operation::Claim(_) => Self::Claim,
            Operation::Heartbeat(_) => Self::Heartbeat,
            Operation::Complete(_) => Self::Complete,
            Operation::Fail(_) => Self::Fail,
            Operation::Release(_) => Self::Release,
            Operation::ReleaseUndelivered(_) => Self::ReleaseUndelivered,
            Operation::Cancel(_) => Self::Cancel,
            Operation::Retry(_) => Self::Retry,
            Operation::UpdateQueue(_) => Self::UpdateQueue,
            Operation::InitCluster(_) => Self::InitCluster,
            Operation::RegisterReplica(_) => Self::RegisterReplica,
            Operation::AllocateReplica => Self::AllocateReplica,
            Operation::ForgetReplica(_) => Self::ForgetReplica,
            Operation::SetClusterVersion(_) => Self::SetClusterVersion,
            Operation::HoldClusterVersion(_) => Self::HoldClusterVersion,
        }
    }
}
