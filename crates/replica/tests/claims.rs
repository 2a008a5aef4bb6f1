//! Claims that wait.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use ag_core::command::{Command, Operation};
use ag_core::job::JobState;
use ag_core::name::JobId;
use ag_replica::ProposeError;
use ag_wire::version::CLUSTER_VERSION_MAX;
use support::*;

const WAIT: Duration = Duration::from_secs(50);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_job_wakes_one_waiter_of_many() {
    let cluster = Cluster::of(1).await;
    let replica = cluster.seats[0].get().clone();
    let waiters: Vec<_> = (0..20)
        .map(|number| {
            let replica = replica.clone();
            tokio::spawn(
                async move { replica.claim(admin(), claim_of("q", &format!("w{number}")), WAIT, deadline()).await },
            )
        })
        .collect();
    eventually("all wait", || replica.metrics().waiting_claims == 20).await;
    let before = replica.applied().unwrap().log_index;
    cluster.propose(enqueue("q", 1)).await;
    eventually("one is served", || waiters.iter().any(tokio::task::JoinHandle::is_finished)).await;
    eventually("19 wait", || replica.metrics().waiting_claims == 19).await;
    // The job, and one claim: nobody else has asked.
    assert_eq!(replica.applied().unwrap().log_index, before + 2);
    cluster.propose(enqueue("q", 19)).await;
    for waiter in waiters {
        assert_eq!(claimed(&waiter.await.unwrap()), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_gone_gets_no_job() {
    let cluster = Cluster::of(1).await;
    let replica = cluster.seats[0].get().clone();
    let spawn = |worker: &'static str| {
        let replica = replica.clone();
        tokio::spawn(async move { replica.claim(admin(), claim_of("q", worker), WAIT, deadline()).await })
    };
    let gone = spawn("gone");
    eventually("it waits", || replica.metrics().waiting_claims == 1).await;
    let there = spawn("there");
    eventually("both wait", || replica.metrics().waiting_claims == 2).await;
    gone.abort();
    eventually("it is gone", || replica.metrics().waiting_claims == 1).await;
    cluster.propose(enqueue("q", 1)).await;
    assert_eq!(claimed(&there.await.unwrap()), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_receives_is_given_back() {
    let cluster = Cluster::of(3).await;
    let leader = cluster.seats[cluster.leader().await].get().clone();
    cluster.propose(enqueue("q", 200)).await;
    let deadline = deadline();
    let mut given_back = 0;
    // Callers that go at any moment between asking and being answered.
    for round in 0..200 {
        let claim = leader.claim(admin(), claim_of("q", "w"), Duration::ZERO, deadline);
        let answer = tokio::time::timeout(Duration::from_micros(round * 40), claim).await;
        if answer.is_err() {
            given_back += 1;
        }
    }
    assert!(given_back > 0, "all were answered");
    let kept = 200 - given_back;
    eventually("the rest is ready", || {
        leader.read(|state| state.jobs_after(JobId(0)).filter(|job| job.state == JobState::Claimed).count()) == kept
    })
    .await;
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_end_when_the_leader_goes() {
    let cluster = Cluster::of(3).await;
    let leader = cluster.seats[cluster.leader().await].get().clone();
    let waiter = {
        let leader = leader.clone();
        tokio::spawn(async move { leader.claim(admin(), claim_of("q", "w"), WAIT, deadline()).await })
    };
    eventually("it waits", || leader.metrics().waiting_claims == 1).await;
    leader.transfer_leadership(None, deadline()).await.unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(20), waiter).await.unwrap().unwrap();
    assert!(matches!(answer, Err(ProposeError::NotLeader { .. })), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_with_an_empty_answer_from_the_log() {
    let cluster = Cluster::of(1).await;
    let replica = cluster.seats[0].get();
    let begun = Instant::now();
    let answer = replica.claim(admin(), claim_of("q", "w"), Duration::from_millis(300), deadline()).await;
    assert_eq!(claimed(&answer), 0);
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert_eq!(Some(answer.unwrap().applied_at), replica.applied());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_claim_gets_its_job_again_at_once() {
    let cluster = Cluster::of(1).await;
    let replica = cluster.seats[0].get();
    cluster.propose(enqueue("q", 1)).await;
    let mut claim = claim_of("q", "w");
    claim.request_id = request_id("c1");
    let first = replica.claim(admin(), claim.clone(), WAIT, deadline()).await.unwrap();
    let begun = Instant::now();
    let second = replica.claim(admin(), claim, WAIT, deadline()).await.unwrap();
    assert_eq!(first, second);
    assert!(begun.elapsed() < WAIT / 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_proposed_while_nothing_is_due() {
    let cluster = Cluster::of(1).await;
    let replica = cluster.seats[0].get().clone();
    cluster.propose(enqueue("q", 1)).await;
    let cluster_deadline = Instant::now() + Duration::from_secs(20);
    // The cluster version, which rises by itself, is the last that comes by itself.
    while replica.read(|state| state.meta().cluster_version) < CLUSTER_VERSION_MAX {
        assert!(Instant::now() < cluster_deadline, "the cluster version does not rise");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let idle = replica.applied().unwrap();
    let waiter = {
        let replica = replica.clone();
        tokio::spawn(async move {
            replica.claim(admin(), claim_of("other", "w"), Duration::from_millis(1_500), deadline()).await
        })
    };
    assert_eq!(claimed(&waiter.await.unwrap()), 0);
    // Only the waiter's last word.
    assert_eq!(replica.applied().unwrap().log_index, idle.log_index + 1);

    // With a claim held, lease time goes on.
    let claim = Command { actor: admin(), operation: Operation::Claim(claim_of("q", "w")) };
    let lease_then = cluster_lease(&cluster, claim).await;
    eventually("time passes", || replica.read(|state| state.meta().lease_now.0) > lease_then + 400).await;
}

async fn cluster_lease(cluster: &Cluster, command: Command) -> u64 {
    let replica = cluster.seats[0].get();
    replica.propose(command, deadline()).await.unwrap();
    replica.read(|state| state.meta().lease_now.0)
}
