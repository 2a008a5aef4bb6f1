//! The audit log and attestations.

use ag_core::digest::Digest;
use ag_core::name::FieldError;
use ag_proto::v1;
use ag_wire::{answer, request};
use tonic::Code;

use super::{barrier, unreadable};
use crate::failure::Failure;
use crate::limits::PAGE_BYTES_MAX;
use crate::service::{Call, Reply, Service, reply};

pub(super) async fn list_records(
    service: &Service,
    call: &Call,
    request: &v1::ListAuditRecordsRequest,
) -> Result<Reply, Failure> {
    let page_size = request::page_size(request.page_size)?;
    let at = barrier(service, call, request.stale).await?;
    let records = match service.replica.table() {
        // A record is shown both as its canonical bytes and as fields.
        Some(table) => table.audit_after(request.after, page_size, PAGE_BYTES_MAX as usize / 3),
        None => Ok(Vec::new()),
    };
    let records = records.map_err(|error| unreadable(&error))?;
    let records = records.iter().map(answer::audit_record).collect();
    Ok(reply(&v1::ListAuditRecordsResponse { records }, at))
}

pub(super) async fn get_head(
    service: &Service,
    call: &Call,
    request: &v1::GetAuditHeadRequest,
) -> Result<Reply, Failure> {
    let at = barrier(service, call, request.stale).await?;
    let head = service.replica.read(|state| state.meta().audit_head);
    Ok(reply(&answer::audit_head(head), at))
}

pub(super) async fn get_attestation(
    service: &Service,
    call: &Call,
    request: &v1::GetAttestationRequest,
) -> Result<Reply, Failure> {
    let digest =
        Digest::parse(&request.digest).ok_or_else(|| FieldError::new("digest", "must be 64 lowercase hex digits"))?;
    let at = barrier(service, call, false).await?;
    let found = match service.replica.table() {
        Some(table) => table.attestation(&digest).map_err(|error| unreadable(&error))?,
        None => None,
    };
    let not_found = || Failure::new(Code::NotFound, "ATTESTATION_NOT_FOUND", "there is no such attestation");
    let (attestation_type, attestation) = found.ok_or_else(not_found)?;
    let attestation_type = attestation_type.as_str().to_owned();
    Ok(reply(&v1::Attestation { digest: digest.to_string(), attestation_type, attestation }, at))
}
