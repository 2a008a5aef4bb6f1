//! Roles, and what each permits.

use std::fmt;

use crate::authenticator::Caller;

/// What a principal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Claims jobs and works on them.
    Worker,
    /// Enqueues jobs, cancels and retries them.
    Producer,
    /// May do everything.
    Admin,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 3] = [Role::Worker, Role::Producer, Role::Admin];

    /// Its name in the principals file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Producer => "producer",
            Self::Admin => "admin",
        }
    }

    /// The role of this name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == text)
    }

    fn bit(self) -> u32 {
        match self {
            Self::Worker => 1,
            Self::Producer => 2,
            Self::Admin => 4,
        }
    }

    fn permits(self, permission: Permission) -> bool {
        match permission {
            Permission::ReadJobs | Permission::ReadQueues | Permission::ReadAttestations => true,
            Permission::Claim
            | Permission::Heartbeat
            | Permission::Complete
            | Permission::Fail
            | Permission::Release => matches!(self, Self::Worker | Self::Admin),
            Permission::Enqueue | Permission::Cancel | Permission::Retry => {
                matches!(self, Self::Producer | Self::Admin)
            }
            Permission::UpdateQueue | Permission::ReadAudit | Permission::ReadCluster | Permission::ManageCluster => {
                self == Self::Admin
            }
        }
    }
}

/// A set of roles.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Roles(u32);

impl Roles {
    /// No role at all.
    pub const NONE: Roles = Roles(0);

    /// Every role.
    pub fn all() -> Self {
        Role::ALL.into_iter().collect()
    }

    /// The set as bits, to be passed on between replicas.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// The set with these bits. Bits of roles that this release does not know permit nothing, and are dropped.
    pub fn from_bits(bits: u32) -> Self {
        Self(bits & Self::all().0)
    }

    /// Whether `role` is in it.
    pub fn contains(self, role: Role) -> bool {
        self.0 & role.bit() != 0
    }

    /// Whether one of its roles permits this.
    pub fn permit(self, permission: Permission) -> bool {
        Role::ALL.into_iter().any(|role| self.contains(role) && role.permits(permission))
    }
}

impl FromIterator<Role> for Roles {
    fn from_iter<I: IntoIterator<Item = Role>>(roles: I) -> Self {
        Self(roles.into_iter().fold(0, |bits, role| bits | role.bit()))
    }
}

impl fmt::Debug for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(Role::ALL.into_iter().filter(|role| self.contains(*role))).finish()
    }
}

/// Something that a caller may or may not do. Which method needs which is the API's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Permission {
    /// Put jobs into queues.
    Enqueue,
    /// Cancel jobs.
    Cancel,
    /// Give finished jobs a fresh retry budget.
    Retry,
    /// Claim jobs.
    Claim,
    /// Extend claims.
    Heartbeat,
    /// Complete jobs.
    Complete,
    /// Report failed claims.
    Fail,
    /// Give claims back.
    Release,
    /// Read and list jobs.
    ReadJobs,
    /// Read and list queues.
    ReadQueues,
    /// Read attestations.
    ReadAttestations,
    /// Change a queue's policy.
    UpdateQueue,
    /// Read the audit log.
    ReadAudit,
    /// Read the state of the cluster.
    ReadCluster,
    /// Make the cluster, add and remove replicas, move the leadership, set the cluster version.
    ManageCluster,
}

impl Permission {
    /// All permissions.
    pub const ALL: [Permission; 15] = [
        Self::Enqueue,
        Self::Cancel,
        Self::Retry,
        Self::Claim,
        Self::Heartbeat,
        Self::Complete,
        Self::Fail,
        Self::Release,
        Self::ReadJobs,
        Self::ReadQueues,
        Self::ReadAttestations,
        Self::UpdateQueue,
        Self::ReadAudit,
        Self::ReadCluster,
        Self::ManageCluster,
    ];
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Enqueue => "enqueue jobs",
            Self::Cancel => "cancel jobs",
            Self::Retry => "retry jobs",
            Self::Claim => "claim jobs",
            Self::Heartbeat => "extend claims",
            Self::Complete => "complete jobs",
            Self::Fail => "fail jobs",
            Self::Release => "release jobs",
            Self::ReadJobs => "read jobs",
            Self::ReadQueues => "read queues",
            Self::ReadAttestations => "read attestations",
            Self::UpdateQueue => "change queues",
            Self::ReadAudit => "read the audit log",
            Self::ReadCluster => "read the state of the cluster",
            Self::ManageCluster => "change the cluster",
        })
    }
}

/// Whether `caller` may do this.
pub fn permits(caller: &Caller, permission: Permission) -> bool {
    caller.roles.permit(permission)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_permits_exactly_what_its_row_says() {
        use Permission::*;
        let reads = [ReadJobs, ReadQueues, ReadAttestations];
        let rows: [(Role, &[Permission]); 3] = [
            (Role::Worker, &[Claim, Heartbeat, Complete, Fail, Release]),
            (Role::Producer, &[Enqueue, Cancel, Retry]),
            (Role::Admin, &Permission::ALL),
        ];
        for (role, row) in rows {
            let roles: Roles = [role].into_iter().collect();
            for permission in Permission::ALL {
                let expected = row.contains(&permission) || reads.contains(&permission);
                assert_eq!(roles.permit(permission), expected, "{role:?} {permission:?}");
            }
        }
    }

    #[test]
    fn no_role_permits_nothing_and_two_roles_permit_what_either_does() {
        assert!(Permission::ALL.into_iter().all(|permission| !Roles::NONE.permit(permission)));
        let both: Roles = [Role::Worker, Role::Producer].into_iter().collect();
        assert!(both.permit(Permission::Claim) && both.permit(Permission::Enqueue));
        assert!(!both.permit(Permission::ManageCluster));
    }

    #[test]
    fn bits_survive_and_unknown_ones_grant_nothing() {
        let both: Roles = [Role::Worker, Role::Admin].into_iter().collect();
        assert_eq!(Roles::from_bits(both.bits()), both);
        assert_eq!(Roles::from_bits(0xffff_fff8), Roles::NONE);
        assert_eq!((Role::Worker.bit(), Role::Producer.bit(), Role::Admin.bit()), (1, 2, 4), "sent between replicas");
    }
}
