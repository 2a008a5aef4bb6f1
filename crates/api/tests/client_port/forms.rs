//! The two forms say the same, and the documents describe what is served.

use std::time::Duration;

use ag_proto::v1;
use ag_proto::v1::job_service_client::JobServiceClient;
use serde_json::json;

use crate::server::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_goes_its_way_over_both_forms() {
    let server = Server::start().await;
    let enqueued =
        server.post("/v1/jobs", r#"{"queue": "a/b", "payload": "aGk=", "priority": -5, "later": {"x": 1}}"#).await;
    assert_eq!(enqueued.status, 200, "unknown fields are ignored: {enqueued:?}");
    let job = enqueued.json();
    assert_eq!((job["state"].as_str(), job["attempts"].as_u64()), (Some("READY"), Some(0)), "{job}");
    assert!(enqueued.header("ag-applied").is_some_and(|at| at.contains('/')), "{enqueued:?}");

    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", server.addr)).unwrap();
    let mut grpc = JobServiceClient::new(channel.connect().await.unwrap());
    let claim = v1::ClaimJobRequest { queues: vec!["a/b".into()], worker: "w|1".into(), ..Default::default() };
    let claimed = grpc.claim_job(claim).await.unwrap();
    assert!(claimed.metadata().get("ag-applied").is_some());
    let claimed = claimed.into_inner().job.unwrap();
    assert_eq!(
        (claimed.payload.as_slice(), claimed.attempts, claimed.claimed_by.as_str()),
        (&b"hi"[..], 1, "anonymous|w|1")
    );

    // snake_case is read as well; the job id of the path counts.
    let path = format!("/v1/jobs/{}:complete", claimed.job_id);
    let completed = server.post(&path, r#"{"job_id": "other", "worker": "w|1", "result": "b2s="}"#).await;
    assert_eq!(completed.status, 200, "{completed:?}");
    let seen = grpc.get_job(v1::GetJobRequest { job_id: claimed.job_id, stale: false }).await.unwrap().into_inner();
    assert_eq!((seen.state(), seen.result.as_slice()), (v1::JobState::Completed, &b"ok"[..]));
    let queue = server.get("/v1/queues/a/b").await;
    assert_eq!(queue.json()["counts"]["completed"], json!("1"), "64-bit integers are strings");
    assert_eq!(server.get("/v1/queues/a%2Fb").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_the_same_in_both_forms() {
    let server = Server::start().await;
    server.post("/v1/jobs", r#"{"queue": "q"}"#).await;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", server.addr)).unwrap();
    let mut grpc = JobServiceClient::new(channel.connect().await.unwrap());
    let job_id = "j0000000000000001".to_owned();
    let complete = v1::CompleteJobRequest { job_id: job_id.clone(), worker: "w".into(), ..Default::default() };
    let status = grpc.complete_job(complete).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::FailedPrecondition);
    assert!(status.metadata().get("ag-applied").is_some(), "a refusal by the state machine says where it was applied");
    let http = server.post(&format!("/v1/jobs/{job_id}:complete"), r#"{"worker": "w"}"#).await;
    assert_eq!((http.status, http.reason().as_str()), (400, "CLAIM_LOST"));
    assert_eq!(http.json()["code"], json!(9));
    assert!(http.header("ag-applied").is_some());
    let heartbeat = server.post(&format!("/v1/jobs/{job_id}:heartbeat"), r#"{"worker": "w"}"#).await;
    assert_eq!((heartbeat.status, heartbeat.reason().as_str()), (404, "CLAIM_LOST"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_methods_and_documents() {
    let server = Server::start().await;
    assert_eq!(server.get("/v1/nothing").await.status, 404);
    let wrong = server.get("/v1/jobs:claim").await;
    assert_eq!((wrong.status, wrong.header("allow").as_deref()), (405, Some("POST")));
    let grpc_like = server.send("POST /v1/jobs HTTP/1.1\r\ncontent-type: application/grpcx\r\n", b"{}").await;
    assert_eq!((grpc_like.status, grpc_like.reason().as_str()), (415, "UNSUPPORTED_CONTENT_TYPE"));
    assert_eq!(server.get("/healthz").await.status, 200);
    assert_eq!(server.get("/readyz").await.status, 200);
    assert_eq!(server.get("/openapi.json").await.body, ag_api::openapi_document());
    server.post("/v1/jobs", r#"{"queue": "q"}"#).await;
    let metrics = server.get("/metrics").await.body;
    for wanted in [
        "ag_calls_total{method=\"EnqueueJob\",form=\"http\",code=\"OK\"} 1",
        "ag_queue_jobs{queue=\"q\",state=\"ready\"} 1",
        "ag_replica_is_leader 1",
        "ag_cluster_version ",
    ] {
        assert!(metrics.contains(wanted), "{wanted} is missing in {metrics}");
    }
}

/// `docs/api/openapi.json` is what the server serves: `ag openapi > docs/api/openapi.json` brings it up to date.
#[test]
fn the_kept_openapi_document_has_not_drifted() {
    let kept = "../../docs/api/openapi.json";
    assert_eq!(std::fs::read_to_string(kept).unwrap(), ag_api::openapi_document());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_grpc_methods_and_the_health_service() {
    let server = Server::start().await;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", server.addr)).unwrap();
    let channel = channel.connect().await.unwrap();
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel.clone());
    let request = || tonic_health::pb::HealthCheckRequest { service: "agwp.v1.JobService".into() };
    let deadline = std::time::Instant::now() + Duration::from_secs(5);
    loop {
        let status = health.check(request()).await;
        if status.is_ok_and(|status| status.into_inner().status == 1) {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "never serving");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static("/agwp.v1.JobService/NoSuchMethod");
    let codec = tonic_prost::ProstCodec::<v1::GetJobRequest, v1::Job>::default();
    let status = grpc.unary(tonic::Request::new(v1::GetJobRequest::default()), path, codec).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unimplemented);
}

/// Field report T57: 64-bit integers go through JSON exactly, as numbers and as strings, and come back as strings.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn integers_beyond_a_double_are_exact() {
    let server = Server::start().await;
    for number in ["9007199254740993", "18446744073709551615"] {
        let page = server.get(&format!("/v1/audit?after={number}")).await;
        assert_eq!((page.status, &page.json()["records"]), (200, &serde_json::json!([])), "{page:?}");
        for form in [number.to_owned(), format!("\"{number}\"")] {
            let body = format!("{{\"replicaId\": {form}}}");
            let refused = server.post("/v1/cluster:transferLeadership", &body).await;
            assert!(refused.status >= 400 && refused.body.contains(number), "{form}: {refused:?}");
        }
    }
    let document: serde_json::Value = serde_json::from_str(&ag_api::openapi_document()).unwrap();
    let mut found = 0;
    each_object(&document, &mut |object| {
        if let Some(format) = object.get("format").and_then(|format| format.as_str())
            && format.ends_with("int64")
        {
            found += 1;
            assert_eq!(object.get("type").and_then(|kind| kind.as_str()), Some("string"), "{object:?}");
        }
    });
    assert!(found > 10, "{found} 64-bit integers in the document");
}

fn each_object(value: &serde_json::Value, see: &mut impl FnMut(&serde_json::Map<String, serde_json::Value>)) {
    match value {
        serde_json::Value::Object(object) => {
            see(object);
            object.values().for_each(|value| each_object(value, see));
        }
        serde_json::Value::Array(values) => values.iter().for_each(|value| each_object(value, see)),
        _ => {}
    }
}
