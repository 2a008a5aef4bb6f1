//! About how many bytes a command takes up, in memory and in an entry.

use ag_core::command::{Command, Operation};

/// What a command, or a part of a batch, takes up beside its payloads.
const OVERHEAD_BYTES: usize = 256;

/// About how many bytes `command` takes up.
pub(crate) fn command_bytes(command: &Command) -> usize {
    let bytes = match &command.operation {
        Operation::Enqueue(enqueue) => {
            let job = |job: &ag_core::command::NewJob| {
                let labels: usize = job.labels.iter().map(|(key, value)| key.len() + value.len()).sum();
                OVERHEAD_BYTES + job.payload.len() + labels
            };
            enqueue.jobs.iter().map(job).sum()
        }
        Operation::Claim(claim) => 64 * claim.queues.len(),
        Operation::Heartbeat(entries) => entries.iter().map(|entry| OVERHEAD_BYTES + entry.progress.len()).sum(),
        Operation::Complete(entries) => {
            let entry = |entry: &ag_core::command::Complete| {
                let attestation = entry.attestation.as_ref().map_or(0, |attestation| attestation.bytes.len());
                OVERHEAD_BYTES + entry.result.len() + attestation
            };
            entries.iter().map(entry).sum()
        }
        Operation::Fail(fail) => fail.reason.len(),
        Operation::ReleaseUndelivered(claims) => 16 * claims.len(),
        Operation::InitCluster(init) => OVERHEAD_BYTES * init.members.len(),
        Operation::Release(_)
        | Operation::Cancel(_)
        | Operation::Retry(_)
        | Operation::UpdateQueue(_)
        | Operation::RegisterReplica(_)
        | Operation::AllocateReplica
        | Operation::ForgetReplica(_)
        | Operation::SetClusterVersion(_)
        | Operation::HoldClusterVersion(_) => 0,
    };
    OVERHEAD_BYTES + bytes
}
