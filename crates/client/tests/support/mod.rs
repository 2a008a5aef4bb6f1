//! A service in this process that answers from a script, over real connections.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ag_client::v1;
use ag_client::v1::job_service_server::{JobService, JobServiceServer};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

macro_rules! script {
    ($($name:ident: $request:ident => $answer:ident),* $(,)?) => {
        /// What the service answers; whatever a script leaves out is unimplemented.
        #[tonic::async_trait]
        pub trait Script: Send + Sync + 'static {
            $(async fn $name(&self, _: Request<v1::$request>) -> Result<Response<v1::$answer>, Status> {
                Err(Status::unimplemented(stringify!($name)))
            })*
        }

        #[tonic::async_trait]
        impl<S: Script> JobService for Scripted<S> {
            $(async fn $name(&self, request: Request<v1::$request>) -> Result<Response<v1::$answer>, Status> {
                self.0.$name(request).await
            })*
        }
    };
}

/// A service that answers from a script.
pub struct Scripted<S>(Arc<S>);

/// The service that answers from `script`.
pub fn service<S: Script>(script: S) -> JobServiceServer<Scripted<S>> {
    scripted(Arc::new(script))
}

fn scripted<S: Script>(script: Arc<S>) -> JobServiceServer<Scripted<S>> {
    JobServiceServer::new(Scripted(script)).max_decoding_message_size(8 << 20)
}

script!(
    enqueue_job: EnqueueJobRequest => Job,
    enqueue_jobs: EnqueueJobsRequest => EnqueueJobsResponse,
    claim_job: ClaimJobRequest => ClaimJobResponse,
    claim_jobs: ClaimJobsRequest => ClaimJobsResponse,
    heartbeat_job: HeartbeatJobRequest => HeartbeatJobResponse,
    heartbeat_jobs: HeartbeatJobsRequest => HeartbeatJobsResponse,
    complete_job: CompleteJobRequest => Job,
    complete_jobs: CompleteJobsRequest => CompleteJobsResponse,
    fail_job: FailJobRequest => Job,
    release_job: ReleaseJobRequest => Job,
    cancel_job: CancelJobRequest => Job,
    retry_job: RetryJobRequest => Job,
    get_job: GetJobRequest => Job,
    list_jobs: ListJobsRequest => ListJobsResponse,
);

/// A running service. It dies, with all its connections, when it is dropped.
pub struct Fake<S> {
    /// Where it listens.
    pub addr: SocketAddr,
    /// Its script.
    pub script: Arc<S>,
    runtime: Option<Runtime>,
}

impl<S: Script> Fake<S> {
    /// Starts on a free port.
    pub fn start(script: S) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), Arc::new(script))
    }

    /// Starts at `addr`.
    pub fn start_at(addr: SocketAddr, script: Arc<S>) -> Self {
        // A runtime of its own, so that dropping it cuts every connection as the death of a process does.
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on_elsewhere(bind(addr));
        let addr = listener.local_addr().unwrap();
        let server = Server::builder().add_service(scripted(Arc::clone(&script)));
        runtime.spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        Self { addr, script, runtime: Some(runtime) }
    }
}

impl<S> Fake<S> {
    /// Dies, and gives what a successor at the same place needs.
    pub fn kill(mut self) -> (SocketAddr, Arc<S>) {
        self.stop();
        (self.addr, Arc::clone(&self.script))
    }

    fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // On a thread of its own, as no runtime may end within another, and to the end: until its listener is
            // closed, a successor cannot listen at the same place.
            let stopped = std::thread::spawn(move || runtime.shutdown_timeout(Duration::from_secs(20))).join();
            assert!(stopped.is_ok() || std::thread::panicking(), "a fake that did not stop");
        }
    }
}

impl<S> Drop for Fake<S> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Listens at `addr`. Whoever else was given that port while its owner was dead keeps it for a moment only.
async fn bind(addr: SocketAddr) -> tokio::net::TcpListener {
    let deadline = Instant::now() + Duration::from_secs(15);
    loop {
        match tokio::net::TcpListener::bind(addr).await {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            bound => return bound.unwrap(),
        }
    }
}

trait BlockOnElsewhere {
    fn block_on_elsewhere<F>(&self, future: F) -> F::Output
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static;
}

impl BlockOnElsewhere for Runtime {
    /// Runs `future` on this runtime and waits for it, also from within another runtime.
    fn block_on_elsewhere<F>(&self, future: F) -> F::Output
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let (send, receive) = std::sync::mpsc::channel();
        self.spawn(async move { send.send(future.await) });
        receive.recv_timeout(Duration::from_secs(20)).expect("the runtime runs")
    }
}

/// A status with a reason.
pub fn refusal(code: Code, reason: &str) -> Status {
    let details = ErrorDetails::with_error_info(reason, "agwp.v1", [("limit".to_owned(), "7".to_owned())]);
    Status::with_error_details(code, format!("because of {reason}"), details)
}

/// Waits until `check` gives something, at most 30 s.
pub async fn until<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
