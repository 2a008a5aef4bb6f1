//! Deadlines, long polls, and what is too much.

use std::time::{Duration, Instant};

use ag_auth::Authenticator;
use ag_proto::v1;
use ag_proto::v1::job_service_client::JobServiceClient;
use tokio::task::JoinSet;

use crate::server::Server;

/// Kind H. A thousand claims wait; one job wakes one of them, and few entries are written for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_job_wakes_one_of_a_thousand_waiting_claims() {
    let server = Server::start().await;
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", server.addr)).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let mut waiting = JoinSet::new();
    for number in 0..1_000 {
        let mut client = JobServiceClient::new(channel.clone());
        let claim = v1::ClaimJobRequest {
            queues: vec!["q".into()],
            worker: format!("w{number}"),
            wait: Some(prost_types::Duration { seconds: 30, nanos: 0 }),
            ..Default::default()
        };
        waiting.spawn(async move { client.claim_job(claim).await });
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while server.replica.metrics().waiting_claims < 1_000 {
        assert!(Instant::now() < deadline, "{} wait", server.replica.metrics().waiting_claims);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let before = server.replica.metrics().applied_index.unwrap();
    assert_eq!(server.post("/v1/jobs", r#"{"queue": "q"}"#).await.status, 200);
    let first = waiting.join_next().await.unwrap().unwrap().unwrap();
    assert!(first.into_inner().job.is_some());
    let entries = server.replica.metrics().applied_index.unwrap() - before;
    assert!(entries <= 6, "{entries} entries for one job");
    assert_eq!(server.replica.metrics().waiting_claims, 999);

    // A waiter that is gone gets no job: the next one does.
    waiting.abort_all();
    while waiting.join_next().await.is_some() {}
    let deadline = Instant::now() + Duration::from_secs(20);
    while server.replica.metrics().waiting_claims > 0 {
        assert!(Instant::now() < deadline, "{} still wait", server.replica.metrics().waiting_claims);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.post("/v1/jobs", r#"{"queue": "q"}"#).await;
    let claimed = server.post("/v1/jobs:claim", r#"{"queues": ["q"], "worker": "late"}"#).await;
    assert_eq!(claimed.json()["job"]["attempts"], 1, "{claimed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadlines_and_waits_are_kept() {
    let server = Server::start().await;
    let from = Instant::now();
    let empty = server.post("/v1/jobs:claim", r#"{"queues": ["q"], "worker": "w", "wait": "0.3s"}"#).await;
    assert_eq!((empty.status, empty.json()["job"].is_null()), (200, true));
    assert!(from.elapsed() >= Duration::from_millis(280), "it did not wait: {:?}", from.elapsed());
    let head = "POST /v1/jobs:claim HTTP/1.1\r\ncontent-type: application/json\r\nag-timeout: 600ms\r\n";
    let bounded = server.send(head, br#"{"queues": ["q"], "worker": "w", "wait": "30s"}"#).await;
    assert!(from.elapsed() < Duration::from_secs(10), "the deadline was not kept: {:?}", from.elapsed());
    assert!(bounded.status == 200 || bounded.status == 504, "{bounded:?}");
    let bad = server.send("GET /v1/queues HTTP/1.1\r\nag-timeout: soon\r\n", b"").await;
    assert_eq!((bad.status, bad.field().as_str()), (400, "ag-timeout"));
}

/// Kind K. A payload at its limit goes through whole, and a batch of claims stays below the size of a message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_at_the_limit_go_through_both_forms() {
    let server = Server::start().await;
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", server.addr)).unwrap();
    let mut client = JobServiceClient::new(endpoint.connect().await.unwrap());
    for bytes in [(1 << 20) - 1, 1 << 20] {
        let payload = vec![7; bytes];
        let job = v1::EnqueueJobRequest { queue: "q".into(), payload: payload.clone(), ..Default::default() };
        let answer = client.enqueue_job(job.clone()).await.unwrap().into_inner();
        assert_eq!(answer.payload.len(), bytes);
        for _ in 0..2 {
            client.enqueue_job(job.clone()).await.unwrap();
        }
    }
    let over = v1::EnqueueJobRequest { queue: "q".into(), payload: vec![7; (1 << 20) + 1], ..Default::default() };
    assert_eq!(client.enqueue_job(over).await.unwrap_err().code(), tonic::Code::InvalidArgument);
    let mut delivered = 0;
    while delivered < 6 {
        let claim =
            v1::ClaimJobsRequest { queues: vec!["q".into()], worker: "w".into(), max_jobs: 10, ..Default::default() };
        let jobs = client.claim_jobs(claim).await.unwrap().into_inner().jobs;
        assert!(!jobs.is_empty() && jobs.len() < 4, "{} in one answer", jobs.len());
        delivered += jobs.len();
    }
    let counts = server.get("/v1/queues/q").await.json()["counts"].clone();
    assert_eq!(counts["claimed"], "6", "claimed, and all of them delivered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("principals.toml");
    let (producer, worker) = (ag_auth::BearerToken::generate(), ag_auth::BearerToken::generate());
    let entry = |name: &str, bearer_token: &ag_auth::BearerToken| {
        let hash = bearer_token.hash();
        format!("[[principal]]\nname = \"{name}\"\nroles = [\"{name}\"]\nbearer_sha256 = \"{hash}\"\n")
    };
    std::fs::write(&path, entry("producer", &producer) + &entry("worker", &worker)).unwrap();
    let server = Server::start_with(Authenticator::from_file(&path).unwrap()).await;
    let post = async |path: &str, body: &str, bearer: Option<&str>| {
        let authorization = bearer.map_or_else(String::new, |bearer| format!("authorization: Bearer {bearer}\r\n"));
        let head = format!("POST {path} HTTP/1.1\r\ncontent-type: application/json\r\n{authorization}");
        server.send(&head, body.as_bytes()).await
    };
    let job = r#"{"queue": "q"}"#;
    let none = post("/v1/jobs", job, None).await;
    assert_eq!((none.status, none.header("www-authenticate").as_deref()), (401, Some("Bearer")));
    assert_eq!(post("/v1/jobs", job, Some("wrong")).await.status, 401);
    assert_eq!(post("/v1/jobs", job, Some(worker.expose())).await.status, 403);
    assert_eq!(post("/v1/jobs", job, Some(producer.expose())).await.status, 200);
    let claim = r#"{"queues": ["q"], "worker": "w"}"#;
    assert_eq!(post("/v1/jobs:claim", claim, Some(producer.expose())).await.status, 403);
    let claimed = post("/v1/jobs:claim", claim, Some(worker.expose())).await;
    assert_eq!(claimed.json()["job"]["claimedBy"], "worker|w");
    assert_eq!(server.get("/healthz").await.status, 200, "health needs no credentials");
}

/// Field report T59. A batch that was carried out is answered, whatever its jobs carry, and so is its repetition.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_jobs_with_the_largest_labels_is_answered() {
    let server = Server::start().await;
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", server.addr)).unwrap();
    let mut client = JobServiceClient::new(endpoint.connect().await.unwrap());
    let labels: std::collections::BTreeMap<_, _> =
        (0..64).map(|number| (format!("{number:0>128}"), "v".repeat(1_024))).collect();
    let job = v1::EnqueueJobRequest { queue: "q".into(), labels, ..Default::default() };
    let mut completions = Vec::new();
    for _ in 0..4 {
        let jobs = vec![job.clone(); 25];
        client.enqueue_jobs(v1::EnqueueJobsRequest { jobs, request_id: String::new() }).await.unwrap();
    }
    while completions.len() < 100 {
        let claim =
            v1::ClaimJobsRequest { queues: vec!["q".into()], worker: "w".into(), max_jobs: 100, ..Default::default() };
        let jobs = client.claim_jobs(claim).await.unwrap().into_inner().jobs;
        completions.extend(jobs.into_iter().map(|job| v1::CompleteJobRequest {
            job_id: job.job_id,
            worker: "w".into(),
            fencing_token: job.attempts.into(),
            ..Default::default()
        }));
    }
    let batch = v1::CompleteJobsRequest { completions, request_id: "all".into() };
    for round in ["first", "again"] {
        let results = client.complete_jobs(batch.clone()).await.unwrap().into_inner().results;
        let jobs: Vec<_> = results.into_iter().filter_map(|result| result.job).collect();
        assert_eq!(jobs.len(), 100, "{round}");
        assert!(jobs[0].labels.len() == 64 && jobs[99].labels.is_empty(), "{round}");
        assert!(jobs.iter().all(|job| job.state() == v1::JobState::Completed), "{round}");
    }
    let body: Vec<_> =
        batch.completions.iter().map(|entry| serde_json::json!({"jobId": entry.job_id, "worker": "w"})).collect();
    let answer = server.post("/v1/jobs:completeBatch", &serde_json::json!({"completions": body}).to_string()).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["results"][99]["status"]["reason"], "ALREADY_COMPLETED");
}
