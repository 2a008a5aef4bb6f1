//! Which request goes where.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ag_auth::Caller;
use ag_core::name::FieldError;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::failure::{DOMAIN, Failure};
use crate::front::Front;
use crate::http_form::{self, Route};
use crate::limits;
use crate::method::Method;
use crate::service::unknown_method;

struct Shared {
    front: Arc<Front>,
    routes: Vec<Route>,
    openapi: String,
    draining: CancellationToken,
}

/// All of the client port.
pub(crate) async fn router(front: Arc<Front>, draining: CancellationToken) -> Router {
    let (reporter, health) = tonic_health::server::health_reporter();
    tokio::spawn(report_health(reporter, Arc::clone(&front), draining.clone()));
    let mut router = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi))
        .route_service("/grpc.health.v1.Health/{method}", health)
        .fallback(any(call));
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(ag_proto::DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    match (reflection().build_v1(), reflection().build_v1alpha()) {
        (Ok(v1), Ok(alpha)) => {
            router = router
                .route_service("/grpc.reflection.v1.ServerReflection/{method}", v1)
                .route_service("/grpc.reflection.v1alpha.ServerReflection/{method}", alpha);
        }
        (Err(error), _) | (_, Err(error)) => tracing::error!(%error, "gRPC reflection is off"),
    }
    let (routes, openapi) = (http_form::routes(), crate::openapi::document());
    router.with_state(Arc::new(Shared { front, routes, openapi, draining }))
}

/// The gRPC health service follows readiness.
async fn report_health(reporter: tonic_health::server::HealthReporter, front: Arc<Front>, draining: CancellationToken) {
    let services = ["", "agwp.v1.JobService", "agwp.v1.QueueService", "agwp.v1.AuditService", "agwp.v1.ClusterService"];
    let mut told = None;
    loop {
        let ready = front.replica.is_ready() && !draining.is_cancelled();
        if told != Some(ready) {
            let status =
                if ready { tonic_health::ServingStatus::Serving } else { tonic_health::ServingStatus::NotServing };
            for service in services {
                reporter.set_service_status(service, status).await;
            }
            told = Some(ready);
        }
        if draining.is_cancelled() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(250)) => {}
            () = draining.cancelled() => {}
        }
    }
}

async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    if shared.front.replica.is_ready() && !shared.draining.is_cancelled() {
        return "ready\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, "not ready\n").into_response()
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], shared.front.metrics.text(&shared.front.replica)).into_response()
}

async fn openapi(State(shared): State<Arc<Shared>>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], shared.openapi.clone()).into_response()
}

/// A call, in either form.
async fn call(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    if content_type(request.headers()).is_some_and(is_grpc) {
        return match Method::of_path(request.uri().path()) {
            Some(method) => crate::grpc::serve(Arc::clone(&shared.front), method, request).await.map(Body::new),
            None => unknown_method(request.uri().path()).status().into_http::<Body>(),
        };
    }
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    let mut allowed = Vec::new();
    for route in &shared.routes {
        let Some(fields) = route.matches(path) else { continue };
        if route.verb != parts.method {
            allowed.push(route.verb.as_str());
            continue;
        }
        return match run(&shared, route, fields, &parts, body).await {
            Ok(response) => response,
            Err(failure) => failed(&shared, &failure),
        };
    }
    if allowed.is_empty() {
        let failure = Failure::new(Code::NotFound, "NO_SUCH_PATH", format!("there is nothing at {path}"));
        return failed(&shared, &failure);
    }
    let allowed = allowed.join(", ");
    let message = format!("{} is not allowed at {path}: use {allowed}", parts.method);
    let mut response = failed(&shared, &Failure::new(Code::Unimplemented, "METHOD_NOT_ALLOWED", message));
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    if let Ok(allowed) = HeaderValue::from_str(&allowed) {
        response.headers_mut().insert(header::ALLOW, allowed);
    }
    response
}

/// `application/grpc`, alone, with the name of an encoding, or with parameters.
fn is_grpc(content_type: &str) -> bool {
    let rest = content_type.strip_prefix("application/grpc");
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';']))
}

fn content_type(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::CONTENT_TYPE)?.to_str().ok()
}

async fn run(
    shared: &Shared,
    route: &Route,
    fields: Vec<(String, String)>,
    parts: &http::request::Parts,
    body: Body,
) -> Result<Response, Failure> {
    let from = Instant::now();
    let outcome = match prepare(shared, route, fields, parts, body).await {
        Ok((caller, request, deadline)) => shared.front.run(route.method, "http", caller, request, deadline).await,
        Err(failure) => {
            shared.front.metrics.called(route.method, "http", failure.code_name(), from.elapsed());
            Err(failure)
        }
    };
    let reply = outcome?;
    let answer = crate::json::to_json(&route.output, &reply.body)
        .map_err(|error| Failure::new(Code::Internal, "", format!("the answer cannot be written as JSON: {error}")))?;
    let mut response = json_response(StatusCode::OK, &answer);
    annotate(shared, response.headers_mut(), reply.applied_at);
    Ok(response)
}

/// Who calls, what is asked, and until when. Who may not call at all has no body read.
async fn prepare(
    shared: &Shared,
    route: &Route,
    fields: Vec<(String, String)>,
    parts: &http::request::Parts,
    body: Body,
) -> Result<(Caller, Bytes, Option<Instant>), Failure> {
    let authorization = match parts.headers.get(header::AUTHORIZATION) {
        None => None,
        Some(value) => Some(value.to_str().unwrap_or("not text")),
    };
    let caller = shared.front.authenticate(authorization)?;
    let query = parts.uri.query().unwrap_or_default();
    if query.len() > limits::QUERY_BYTES_MAX {
        let bound = format!("must be at most {} bytes", limits::QUERY_BYTES_MAX);
        return Err(FieldError::new("query", bound).into());
    }
    let body = if route.has_body { read_body(&parts.headers, body).await? } else { Bytes::new() };
    let request = route.request(fields, query, &body)?;
    let deadline = match parts.headers.get("ag-timeout") {
        None => None,
        Some(value) => Some(crate::grpc::deadline(timeout(value)?.min(limits::DEADLINE_MAX))),
    };
    Ok((caller, request.into(), deadline))
}

async fn read_body(headers: &HeaderMap, body: Body) -> Result<Bytes, Failure> {
    let limited = Limited::new(body, limits::JSON_BYTES_MAX);
    let collected = tokio::time::timeout(limits::BODY_TIMEOUT, limited.collect()).await;
    let collected = match collected {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            let bound = format!("must be at most {} bytes", limits::JSON_BYTES_MAX);
            return Err(FieldError::new("body", bound).into());
        }
        Ok(Err(error)) => return Err(FieldError::new("body", format!("was not received: {error}")).into()),
        Err(_) => {
            let bound = format!("must be received within {} s", limits::BODY_TIMEOUT.as_secs());
            return Err(FieldError::new("body", bound).into());
        }
    };
    let is_json = match headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or("not text")) {
        None => true,
        Some(text) => {
            let essence = text.split(';').next().unwrap_or_default().trim();
            essence.eq_ignore_ascii_case("application/json")
        }
    };
    if is_json || collected.is_empty() {
        return Ok(collected);
    }
    let mut failure = Failure::field(&FieldError::new("content-type", "must be application/json"));
    failure.reason = "UNSUPPORTED_CONTENT_TYPE".into();
    Err(failure)
}

/// `5s`, `250ms`.
fn timeout(value: &HeaderValue) -> Result<Duration, Failure> {
    let text = value.to_str().unwrap_or_default();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let parsed = digits.parse::<u32>().ok().and_then(|count| match &text[digits.len()..] {
        "s" => Some(Duration::from_secs(count.into())),
        "ms" => Some(Duration::from_millis(count.into())),
        _ => None,
    });
    parsed.ok_or_else(|| {
        FieldError::new("ag-timeout", "must be whole seconds or milliseconds, as in `5s` or `250ms`").into()
    })
}

fn annotate(shared: &Shared, headers: &mut HeaderMap, applied_at: Option<ag_core::name::LogPosition>) {
    let applied_at = applied_at.map(|at| at.to_string());
    for (name, value) in [("ag-applied", applied_at), ("ag-leader", shared.front.leader_addr())] {
        if let Some(value) = value.and_then(|value| HeaderValue::from_str(&value).ok()) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
}

fn failed(shared: &Shared, failure: &Failure) -> Response {
    let metadata: serde_json::Map<String, Value> =
        failure.facts.iter().map(|(key, value)| (key.clone(), Value::String(value.clone()))).collect();
    let details = match failure.reason.as_str() {
        "" => json!([]),
        reason => json!([{ "reason": reason, "domain": DOMAIN, "metadata": metadata }]),
    };
    let body = json!({
        "code": failure.code as i32,
        "status": failure.code_name(),
        "message": failure.message,
        "details": details,
    });
    let status = match failure.reason.as_str() {
        "UNSUPPORTED_CONTENT_TYPE" => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        _ => failure.http_status(),
    };
    let mut response = json_response(status, &body);
    annotate(shared, response.headers_mut(), failure.applied_at);
    if let Some(retry_after) = failure.retry_after {
        let seconds = retry_after.as_secs() + u64::from(retry_after.subsec_nanos() > 0);
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if failure.code == Code::Unauthenticated {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

fn json_response(status: StatusCode, body: &Value) -> Response {
    let mut text = body.to_string();
    text.push('\n');
    (status, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}
