//! Completing claimed jobs.

use super::holder::ClaimCall;
use super::{Decision, about, finish};
use crate::audit::AuditEvent;
use crate::change::{BlobKind, Change};
use crate::command::{Actor, Complete};
use crate::digest::Digest;
use crate::job::JobState;
use crate::outcome::{Changed, Completion};
use crate::rejection::Rejection;
use crate::state::State;

type Verdict = Decision<Result<Completion, Rejection>>;

fn call<'a>(actor: &'a Actor, complete: &'a Complete) -> ClaimCall<'a> {
    let Complete { job_id, fencing_token, .. } = *complete;
    ClaimCall { verb: "complete", actor, worker: &complete.worker, job_id, fencing_token }
}

fn with_request(mut event: AuditEvent, complete: &Complete) -> AuditEvent {
    event.request_id = complete.request_id.as_ref().map_or("", |request_id| request_id.as_str()).into();
    event
}

/// Refuses a completion before anything of it is stored.
pub(crate) fn refuse(state: &State, actor: &Actor, complete: &Complete, rejection: Rejection) -> Verdict {
    let mut decision = call(actor, complete).refuse(state, rejection);
    decision.event = decision.event.map(|event| with_request(event, complete));
    decision
}

/// Completes a job that the caller holds.
pub(crate) fn complete(state: &State, actor: &Actor, complete: Complete) -> Verdict {
    let call = call(actor, &complete);
    let (mut job, fenced) = match call.held(state) {
        Ok(held) => (held.job.clone(), held.fenced),
        Err(rejection) => return refuse(state, actor, &complete, rejection),
    };
    let mut event = with_request(call.event("done"), &complete);
    let mut changes = Vec::with_capacity(3);
    finish(state, &mut job, JobState::Completed);
    job.notes_mut().result_bytes = complete.result.len() as u32;
    event = event.detail("result_sha256", Digest::of(&complete.result));
    if !complete.result.is_empty() {
        changes.push(Change::PutBlob { job_id: job.job_id, kind: BlobKind::Result, bytes: complete.result });
    }
    if let Some(attestation) = complete.attestation {
        let digest = Digest::of(&attestation.bytes);
        job.notes_mut().attestation = Some(digest);
        event = event.detail("attestation_sha256", digest);
        let (attestation_type, bytes) = (attestation.attestation_type, attestation.bytes);
        changes.push(Change::PutAttestation { digest, attestation_type, bytes });
    }
    let event = about(event, &job);
    changes.push(Change::PutJob(Box::new(job.clone())));
    let changed = Changed { job: Box::new(job), fenced };
    Decision { value: Ok(Completion::Now(changed)), changes, event: Some(event) }
}
