//! Between replicas: forwarded requests, TLS, and who is not heard.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ag_core::command::Command;
use ag_core::name::PrincipalName;
use ag_replica::{ForwardAnswer, Forwarded, ProposeError, Replica, RequestHandler};
use futures::future::BoxFuture;
use support::*;

/// Enqueues a job for each request, or, told to wait, never answers.
struct Handler {
    replica: Replica,
    running: Arc<AtomicUsize>,
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl RequestHandler for Handler {
    fn handle(&self, request: Forwarded) -> BoxFuture<'static, ForwardAnswer> {
        let replica = self.replica.clone();
        self.running.fetch_add(1, Ordering::SeqCst);
        let counted = Counted(Arc::clone(&self.running));
        Box::pin(async move {
            let _counted = counted;
            if request.method == "wait" {
                std::future::pending::<()>().await;
            }
            let command = Command { actor: admin(), operation: enqueue("q", 1) };
            match replica.propose(command, request.deadline).await {
                Ok(answered) => ForwardAnswer {
                    message: format!("{} {}", request.principal, request.roles),
                    body: request.body,
                    applied_at: Some(answered.applied_at),
                    ..ForwardAnswer::default()
                },
                Err(error) => ForwardAnswer { code: 14, message: error.to_string(), ..ForwardAnswer::default() },
            }
        })
    }
}

fn request(method: &str, left: Duration) -> Forwarded {
    Forwarded {
        method: method.to_owned(),
        body: vec![1, 2, 255].into(),
        principal: PrincipalName::parse("principal", "someone").unwrap(),
        roles: 5,
        deadline: Instant::now() + left,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_passes_requests_on_and_a_caller_that_goes_ends_them() {
    let cluster = Cluster::of(3).await;
    let running = Arc::new(AtomicUsize::new(0));
    for replica in cluster.running() {
        let handler = Handler { replica: replica.clone(), running: Arc::clone(&running) };
        replica.set_request_handler(Arc::new(handler));
    }
    let leader = cluster.leader().await;
    let follower = cluster.seats[(leader + 1) % 3].get().clone();
    let answer = follower.forward(request("enqueue", PATIENCE)).await.unwrap();
    assert_eq!((answer.code, answer.message.as_str(), &answer.body[..]), (0, "someone 5", &[1, 2, 255][..]));
    assert!(answer.applied_at.is_some());
    follower.read_barrier(deadline()).await.unwrap();
    assert_eq!(follower.read(|state| state.job_count()), 1);

    let waiting = tokio::spawn(async move { follower.forward(request("wait", PATIENCE)).await });
    eventually("it is handled", || running.load(Ordering::SeqCst) == 1).await;
    waiting.abort();
    eventually("it is given up", || running.load(Ordering::SeqCst) == 0).await;

    let leader = cluster.seats[leader].get();
    let answer = leader.forward(request("enqueue", PATIENCE)).await;
    assert!(matches!(answer, Err(ProposeError::NotLeader { .. })), "{answer:?}");
    let late = cluster.seats[0].get().forward(request("enqueue", Duration::ZERO)).await;
    assert!(matches!(late, Err(ProposeError::DeadlineExceeded)), "{late:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_with_certificates_work_together_and_one_without_is_not_heard() {
    let folder = tempfile::tempdir().unwrap();
    let certs = ag_auth::certs::ReplicaCerts { name: "r".to_owned(), hosts: vec!["127.0.0.1".to_owned()] };
    ag_auth::certs::make(folder.path(), &[certs], Duration::from_secs(86_400 * 2)).unwrap();
    let file = |name: &str| folder.path().join(name);
    let tls = ag_auth::PeerTls::from_files(&file("peer-ca.crt"), &file("r-peer.crt"), &file("r-peer.key"));
    let tls = tls.unwrap();
    let cluster = Cluster::with(3, |seat| seat.peer_tls = Some(tls.clone())).await;
    cluster.propose(enqueue("q", 3)).await;
    cluster.agree().await;

    // Without certificates, in either direction.
    let mut plain = Seat::empty();
    plain.start().await;
    let leader = cluster.seats[cluster.leader().await].get();
    let added = leader.add_replica(admin(), plain.peer_addr(), false, deadline()).await;
    assert!(matches!(added, Err(ag_replica::ClusterError::Unreachable { .. })), "{added:?}");
    let peers = vec![cluster.seats[0].peer_addr()];
    let made = plain.get().init_cluster(admin(), peers, deadline()).await;
    assert!(matches!(made, Err(ag_replica::ClusterError::Unreachable { .. })), "{made:?}");
}
