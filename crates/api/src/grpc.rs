//! The gRPC front. Messages pass through as bytes: what this release does not know in them survives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes};
use futures::future::BoxFuture;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, UnaryService};
use tonic::{Request, Response, Status};

use crate::failure::Failure;
use crate::front::{Front, deadline_of_grpc};
use crate::limits::MESSAGE_BYTES_MAX;
use crate::method::Method;
use crate::service::Reply;

/// Messages as they are.
#[derive(Clone, Copy, Debug, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

struct Unary {
    front: Arc<Front>,
    method: Method,
}

impl UnaryService<Bytes> for Unary {
    type Response = Bytes;
    type Future = BoxFuture<'static, Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let (front, method) = (Arc::clone(&self.front), self.method);
        Box::pin(async move {
            let authorization = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
            let timeout = request.metadata().get("grpc-timeout").and_then(|value| value.to_str().ok());
            let outcome = match timeout.map(parse_timeout) {
                Some(None) => Err(Failure::field(&ag_core::name::FieldError::new(
                    "grpc-timeout",
                    "must be up to 8 digits and a unit, as in `5S`",
                ))),
                timeout => match front.authenticate(authorization) {
                    Ok(caller) => {
                        let deadline = deadline_of_grpc(timeout.flatten());
                        front.run(method, "grpc", caller, request.into_inner(), deadline).await
                    }
                    Err(failure) => {
                        front.metrics.called(method, "grpc", failure.code_name(), Duration::ZERO);
                        Err(failure)
                    }
                },
            };
            let leader = front.leader_addr();
            match outcome {
                Ok(Reply { body, applied_at }) => {
                    let mut response = Response::new(body);
                    annotate(response.metadata_mut(), applied_at, leader);
                    Ok(response)
                }
                Err(failure) => {
                    let mut status = failure.status();
                    annotate(status.metadata_mut(), failure.applied_at, leader);
                    Err(status)
                }
            }
        })
    }
}

fn annotate(
    metadata: &mut tonic::metadata::MetadataMap,
    applied_at: Option<ag_core::name::LogPosition>,
    leader: Option<String>,
) {
    let applied_at = applied_at.and_then(|at| at.to_string().parse().ok());
    if let Some(applied_at) = applied_at {
        metadata.insert("ag-applied", applied_at);
    }
    if let Some(leader) = leader.and_then(|leader| leader.parse().ok()) {
        metadata.insert("ag-leader", leader);
    }
}

/// The gRPC code `OUT_OF_RANGE`, as its header has it.
const OUT_OF_RANGE: &str = "11";

/// Runs a gRPC call.
pub(crate) async fn serve<B>(
    front: Arc<Front>,
    method: Method,
    request: http::Request<B>,
) -> http::Response<tonic::body::Body>
where
    B: http_body::Body + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    let grpc = Grpc::new(Raw)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX + (1 << 20));
    let mut grpc = grpc;
    let response = grpc.unary(Unary { front, method }, request).await;
    // No method of ours answers with this code: it is the decoder's, for a message above its limit.
    let is_too_large = response.headers().get(Status::GRPC_STATUS).is_some_and(|code| code == OUT_OF_RANGE);
    if is_too_large { crate::front::too_large().status().into_http() } else { response }
}

/// `5S` → 5 s, as the gRPC protocol writes timeouts.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3_600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

/// The deadline that is `timeout` from now.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_the_protocol_writes_them() {
        let cases = [("5S", Some(5_000)), ("250m", Some(250)), ("1H", Some(3_600_000)), ("99999999n", Some(99))];
        for (text, millis) in cases {
            assert_eq!(parse_timeout(text).map(|timeout| timeout.as_millis() as u64), millis, "{text}");
        }
        for bad in ["", "S", "5", "5x", "-5S", "123456789S", "5 S", "½"] {
            assert_eq!(parse_timeout(bad), None, "{bad}");
        }
    }
}
