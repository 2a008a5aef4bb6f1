//! Tries, deadlines, hints and request ids, against scripted services over real connections.

// A helper of a test that unwraps fails the test with the right line.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::TcpListener;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ag_client::{Client, Code, v1};
use support::{Fake, Script, refusal, until};
use tonic::{Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

type Reply<T> = Result<Response<T>, Status>;
type Plan = Box<dyn Fn(usize) -> Act + Send + Sync>;

/// What the service does with the call of this number, from 0.
enum Act {
    Answer,
    Refuse(Status),
    Hang,
}

/// Records every call; the plan says what becomes of it.
struct Recorder {
    plan: Plan,
    calls: Mutex<Vec<Seen>>,
}

#[derive(Clone, Debug)]
struct Seen {
    request_id: String,
    timeout: Option<String>,
    authorization: Option<String>,
    wait: Option<Duration>,
    at: Instant,
}

impl Recorder {
    fn new(plan: impl Fn(usize) -> Act + Send + Sync + 'static) -> Self {
        Self { plan: Box::new(plan), calls: Mutex::default() }
    }

    fn seen(&self) -> Vec<Seen> {
        self.calls.lock().unwrap().clone()
    }

    async fn act<Q, A>(&self, request: &Request<Q>, request_id: &str, wait: Option<Duration>, answer: A) -> Reply<A> {
        let text = |name| request.metadata().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let number = {
            let mut calls = self.calls.lock().unwrap();
            let (timeout, authorization) = (text("grpc-timeout"), text("authorization"));
            calls.push(Seen { request_id: request_id.into(), timeout, authorization, wait, at: Instant::now() });
            calls.len() - 1
        };
        match (self.plan)(number) {
            Act::Answer => {
                let mut response = Response::new(answer);
                response.metadata_mut().insert("ag-applied", "3/17".parse().unwrap());
                Ok(response)
            }
            Act::Refuse(status) => Err(status),
            Act::Hang => std::future::pending().await,
        }
    }
}

#[tonic::async_trait]
impl Script for Recorder {
    async fn enqueue_job(&self, request: Request<v1::EnqueueJobRequest>) -> Reply<v1::Job> {
        self.act(&request, &request.get_ref().request_id, None, v1::Job::default()).await
    }

    async fn claim_jobs(&self, request: Request<v1::ClaimJobsRequest>) -> Reply<v1::ClaimJobsResponse> {
        let wait = request.get_ref().wait.and_then(|wait| Duration::try_from(wait).ok());
        self.act(&request, &request.get_ref().request_id, wait, v1::ClaimJobsResponse::default()).await
    }

    async fn fail_job(&self, request: Request<v1::FailJobRequest>) -> Reply<v1::Job> {
        self.act(&request, "", None, v1::Job::default()).await
    }

    async fn get_job(&self, request: Request<v1::GetJobRequest>) -> Reply<v1::Job> {
        self.act(&request, "", None, v1::Job::default()).await
    }
}

fn always(act: fn() -> Act) -> Recorder {
    Recorder::new(move |_| act())
}

fn client(addrs: &[&str]) -> Client {
    Client::builder().addrs(&addrs.join(",")).deadline(Duration::from_secs(20)).build().unwrap()
}

fn with_leader(mut status: Status, leader: &str) -> Status {
    status.metadata_mut().insert("ag-leader", leader.parse().unwrap());
    status
}

/// An address at which nothing listens.
fn closed() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[tokio::test]
async fn a_leader_hint_is_followed_even_to_an_address_that_was_not_given() {
    let leader = Fake::start(always(|| Act::Answer));
    let leader_addr = leader.addr.to_string();
    let hint = leader_addr.clone();
    let follower =
        Fake::start(Recorder::new(move |_| Act::Refuse(with_leader(refusal(Code::Unavailable, "NOT_LEADER"), &hint))));
    let client = client(&[&follower.addr.to_string()]);
    let answer = client.enqueue_job(v1::EnqueueJobRequest::default()).await.unwrap();
    assert_eq!(answer.applied, Some((3, 17)));
    client.raw().fail_job(v1::FailJobRequest::default()).await.unwrap();
    assert_eq!(follower.script.seen().len(), 1, "the second call goes to the leader at once");
    assert_eq!(leader.script.seen().len(), 2);
    assert_eq!(follower.script.seen()[0].request_id, leader.script.seen()[0].request_id);
}

#[tokio::test]
async fn who_stays_follows_no_hint() {
    let leader = Fake::start(always(|| Act::Answer));
    let hint = leader.addr.to_string();
    let follower = Fake::start(Recorder::new(move |number| match number {
        0 => Act::Refuse(with_leader(refusal(Code::Unavailable, "NOT_LEADER"), &hint)),
        _ => Act::Answer,
    }));
    let client = Client::builder().addrs(&follower.addr.to_string()).stay().build().unwrap();
    client.get_job(v1::GetJobRequest::default()).await.unwrap();
    assert_eq!((follower.script.seen().len(), leader.script.seen().len()), (2, 0));
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_elsewhere_with_the_same_request_id() {
    let dying = Fake::start(always(|| Act::Hang));
    let other = Fake::start(always(|| Act::Answer));
    let client = client(&[&dying.addr.to_string(), &other.addr.to_string()]);
    let call = tokio::spawn(async move { client.enqueue_job(v1::EnqueueJobRequest::default()).await });
    until("the first service has the call", || (!dying.script.seen().is_empty()).then_some(())).await;
    let (_, first) = dying.kill();
    call.await.unwrap().unwrap();
    let (first, second) = (first.seen(), other.script.seen());
    assert_eq!((first.len(), second.len()), (1, 1));
    assert!(!first[0].request_id.is_empty());
    assert_eq!(first[0].request_id, second[0].request_id);
}

#[tokio::test]
async fn a_failure_report_is_never_repeated_when_its_outcome_is_unknown() {
    let dying = Fake::start(always(|| Act::Hang));
    let other = Fake::start(always(|| Act::Answer));
    let client = client(&[&dying.addr.to_string(), &other.addr.to_string()]);
    let call = tokio::spawn(async move { client.raw().fail_job(v1::FailJobRequest::default()).await });
    until("the first service has the call", || (!dying.script.seen().is_empty()).then_some(())).await;
    drop(dying);
    let error = call.await.unwrap().unwrap_err();
    assert!(error.is_unknown() && !error.is_not_proposed(), "{error}");
    assert_eq!(other.script.seen().len(), 0);
}

#[tokio::test]
async fn a_failure_report_is_repeated_when_nothing_was_proposed() {
    let busy = Fake::start(always(|| Act::Refuse(refusal(Code::Unavailable, "NO_LEADER"))));
    let other = Fake::start(always(|| Act::Answer));
    let client = client(&[&closed(), &busy.addr.to_string(), &other.addr.to_string()]);
    client.raw().fail_job(v1::FailJobRequest::default()).await.unwrap();
    assert_eq!((busy.script.seen().len(), other.script.seen().len()), (1, 1));
}

#[tokio::test]
async fn the_deadline_is_sent_along_and_kept() {
    let hanging = Fake::start(always(|| Act::Hang));
    let client = client(&[&hanging.addr.to_string()]).with_deadline(Duration::from_millis(700));
    let start = Instant::now();
    let error = client.enqueue_job(v1::EnqueueJobRequest::default()).await.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert!(error.is_unknown());
    assert!((Duration::from_millis(700)..Duration::from_secs(5)).contains(&start.elapsed()), "{:?}", start.elapsed());
    let timeout = hanging.script.seen()[0].timeout.clone().expect("grpc-timeout is sent");
    let micros: u64 = timeout.strip_suffix('u').expect("in microseconds").parse().unwrap();
    assert!((1..=700_000).contains(&micros), "{timeout}");
}

#[tokio::test]
async fn no_replica_at_all_is_an_error_within_the_deadline_that_proves_nothing_happened() {
    let client = client(&[&closed(), &closed()]).with_deadline(Duration::from_millis(600));
    let start = Instant::now();
    let error = client.raw().fail_job(v1::FailJobRequest::default()).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.is_not_proposed() && error.tries() > 2, "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_replica_that_hangs_costs_one_try_only() {
    let hanging = Fake::start(always(|| Act::Hang));
    let other = Fake::start(always(|| Act::Answer));
    let client = client(&[&hanging.addr.to_string(), &other.addr.to_string()]);
    let client = client.with_try_timeout(Duration::from_millis(300));
    client.get_job(v1::GetJobRequest::default()).await.unwrap();
    client.get_job(v1::GetJobRequest::default()).await.unwrap();
    assert_eq!((hanging.script.seen().len(), other.script.seen().len()), (1, 2));
}

#[tokio::test]
async fn a_refusal_is_final_and_typed() {
    let facts = [("field", "queue"), ("bound", "must be short"), ("limit", "7")];
    let facts = facts.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let details = ErrorDetails::with_error_info("INVALID_FIELD", "agwp.v1", facts);
    let status = Status::with_error_details(Code::InvalidArgument, "queue: must be short", details);
    let service = Fake::start(Recorder::new(move |_| Act::Refuse(status.clone())));
    let error = client(&[&service.addr.to_string()]).enqueue_job(v1::EnqueueJobRequest::default()).await.unwrap_err();
    assert_eq!((error.code(), error.reason()), (Code::InvalidArgument, "INVALID_FIELD"));
    assert_eq!(error.metadata()["limit"], "7");
    assert_eq!((error.fields()[0].field.as_str(), error.fields()[0].bound.as_str()), ("queue", "must be short"));
    assert!(!error.is_unknown() && !error.is_not_proposed());
    assert_eq!(error.applied(), None);
    assert_eq!(service.script.seen().len(), 1);
}

#[tokio::test]
async fn a_refusal_by_the_state_machine_carries_its_place_and_is_never_repeated() {
    let service = Fake::start(Recorder::new(|_| {
        // Even with a code that would be repeated without the place.
        let mut status = refusal(Code::Unavailable, "NO_LEADER");
        status.metadata_mut().insert("ag-applied", "4/9".parse().unwrap());
        Act::Refuse(status)
    }));
    let error = client(&[&service.addr.to_string()]).enqueue_job(v1::EnqueueJobRequest::default()).await.unwrap_err();
    assert_eq!(error.applied(), Some((4, 9)));
    assert_eq!(service.script.seen().len(), 1);
}

#[tokio::test]
async fn the_pause_that_the_service_asks_for_is_kept() {
    let service = Fake::start(Recorder::new(|number| match number {
        0 => {
            let mut details = ErrorDetails::with_error_info("OVERLOADED", "agwp.v1", [("limit".into(), "7".into())]);
            details.set_retry_info(Some(Duration::from_millis(250)));
            Act::Refuse(Status::with_error_details(Code::ResourceExhausted, "busy", details))
        }
        _ => Act::Answer,
    }));
    client(&[&service.addr.to_string()]).raw().fail_job(v1::FailJobRequest::default()).await.unwrap();
    let seen = service.script.seen();
    assert_eq!(seen.len(), 2);
    assert!(seen[1].at - seen[0].at >= Duration::from_millis(250));
}

#[tokio::test]
async fn a_repeated_claim_waits_only_for_what_is_left() {
    let service = Fake::start(Recorder::new(|number| if number == 0 { Act::Hang } else { Act::Answer }));
    let client = client(&[&service.addr.to_string()]).with_try_timeout(Duration::from_millis(200));
    let wait = prost_types::Duration { seconds: 1, nanos: 0 };
    let request = v1::ClaimJobsRequest { wait: Some(wait), max_jobs: 1, ..Default::default() };
    client.claim_jobs(request).await.unwrap();
    let seen = service.script.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].wait, Some(Duration::from_secs(1)));
    assert_eq!(seen[1].wait, Some(Duration::ZERO), "the first try has taken all of it");
    assert_eq!(seen[0].request_id, seen[1].request_id);
}

#[tokio::test]
async fn the_bearer_token_is_shown_on_every_call() {
    let service = Fake::start(always(|| Act::Answer));
    let builder = Client::builder().addrs(&service.addr.to_string()).bearer_token("opensesame-opensesame");
    builder.build().unwrap().get_job(v1::GetJobRequest::default()).await.unwrap();
    assert_eq!(service.script.seen()[0].authorization.as_deref(), Some("Bearer opensesame-opensesame"));
}

#[tokio::test]
async fn a_replica_that_comes_back_at_its_address_is_found_again() {
    let service = Fake::start(always(|| Act::Answer));
    let client = client(&[&service.addr.to_string()]);
    client.get_job(v1::GetJobRequest::default()).await.unwrap();
    let (addr, script) = service.kill();
    let call = tokio::spawn(async move { client.get_job(v1::GetJobRequest::default()).await });
    let again = tokio::task::spawn_blocking(move || Fake::start_at(addr, script)).await.unwrap();
    call.await.unwrap().unwrap();
    assert!(again.script.seen().len() >= 2);
}
