//! The fence, over real processes: what an older claim of the same worker sends is refused, and changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use ag_client::{Client, v1};
use ag_cluster_tests::cluster::Cluster;
use ag_cluster_tests::{http, until};
use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until a job's lease has run out.
async fn lapse(addr: &str, job_id: &str) -> Result<()> {
    let lapsed = || async {
        let job = http::get(addr, &format!("/v1/jobs/{job_id}")).await?.json;
        Ok((job["lapsed"] == true).then_some(()))
    };
    until("the lease runs out", PATIENCE, lapsed).await
}

/// A call of each verb with this number, and the status and reason that it must come to.
fn calls(fencing_token: &Value) -> [(&'static str, Value, u16); 4] {
    let body = |more: Value| {
        let mut body = json!({"worker": "worker-7"});
        if !fencing_token.is_null() {
            body["fencingToken"] = fencing_token.clone();
        }
        if let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object()) {
            body.extend(more.clone());
        }
        body
    };
    [
        ("heartbeat", body(json!({"progress": "c3RhbGU=", "lease": "60s"})), 404),
        ("fail", body(json!({"reason": "stale", "permanent": true})), 404),
        ("release", body(json!({})), 404),
        ("complete", body(json!({"result": "c3RhbGU=", "attestation": "e30=", "attestationType": "text/json"})), 400),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_claim_of_the_same_worker_is_fenced_off() -> Result<()> {
    let cluster = Cluster::start(3, &[]).await?;
    cluster.at_version(2).await?;
    let addr = |number: usize| cluster.addr(1 + (number % 3) as u16);
    let job = http::post(&addr(0), "/v1/jobs", &json!({"queue": "q", "payload": "cGF5bG9hZA=="})).await?.json;
    let job_id = job["jobId"].as_str().context("a job id")?.to_owned();
    let claim = json!({"queues": ["q"], "worker": "worker-7", "lease": "0.5s", "wait": "10s"});
    let old = http::post(&addr(1), "/v1/jobs:claim", &claim).await?.json["job"]["attempts"].clone();
    ensure!(old == 1, "{old}");
    let beat = json!({"worker": "worker-7", "fencingToken": "1", "progress": "Zmlyc3Q="});
    let beat = http::post(&addr(2), &format!("/v1/jobs/{job_id}:heartbeat"), &beat).await?;
    ensure!(beat.status == 200 && beat.json["fenced"] == true, "{beat:?}");
    lapse(&addr(0), &job_id).await?;
    let claim = json!({"queues": ["q"], "worker": "worker-7", "lease": "60s", "wait": "10s"});
    let new = http::post(&addr(2), "/v1/jobs:claim", &claim).await?.json["job"].clone();
    ensure!(new["attempts"] == 2 && new["jobId"] == job_id.as_str(), "{new}");

    let read = || async { Ok::<_, anyhow::Error>(http::get(&addr(0), &format!("/v1/jobs/{job_id}")).await?.json) };
    let before = read().await?;
    let head = http::get(&addr(1), "/v1/audit:head").await?.json["sequence"].clone();
    let mut refused = 0;
    for number in 0..3 {
        for token in [json!("1"), json!(1), json!(3), json!("4294967295")] {
            for (verb, body, status) in calls(&token) {
                let answer = http::post(&addr(number), &format!("/v1/jobs/{job_id}:{verb}"), &body).await?;
                ensure!((answer.status, answer.reason()) == (status, "STALE_FENCING_TOKEN"), "{verb}: {answer:?}");
                let text = answer.json["message"].as_str().unwrap_or_default();
                ensure!(!text.contains('2'), "{verb}: tells the current number: {text}");
                refused += 1;
            }
        }
        for token in [json!("4294967296"), json!(-1), json!(1.5), json!("abc"), json!("18446744073709551616")] {
            for (verb, body, _) in calls(&token) {
                let answer = http::post(&addr(number), &format!("/v1/jobs/{job_id}:{verb}"), &body).await?;
                ensure!((answer.status, answer.reason()) == (400, "INVALID_FENCING_TOKEN"), "{verb}: {answer:?}");
            }
        }
    }
    ensure!(read().await? == before, "a refused call changed the job");
    let evidence = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
    let attestation = http::get(&addr(0), &format!("/v1/attestations/{evidence}")).await?;
    ensure!(attestation.status == 404, "the attestation of a stale claim was stored: {attestation:?}");
    let after = http::get(&addr(1), "/v1/audit:head").await?.json["sequence"].clone();
    let count = |value: &Value| value.as_str().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    ensure!(count(&after) == count(&head) + refused, "{refused} refusals, {head} to {after} records");

    for token in [json!("2"), json!(2), json!("0"), Value::Null] {
        let body = calls(&token)[0].1.clone();
        let beat = http::post(&addr(2), &format!("/v1/jobs/{job_id}:heartbeat"), &body).await?;
        let fenced = token == 2 || token == "2";
        ensure!(beat.status == 200 && beat.json["fenced"].as_bool().unwrap_or(false) == fenced, "{token}: {beat:?}");
    }
    let complete = json!({"worker": "worker-7", "fencingToken": "2", "result": "Z29vZA=="});
    let complete = http::post(&addr(1), &format!("/v1/jobs/{job_id}:complete"), &complete).await?;
    ensure!(complete.json["state"] == "COMPLETED" && complete.json["fenced"] == true, "{complete:?}");
    println!("{refused} calls of the old claim refused through three replicas, each with its record and nothing else");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_can_require_tokens() -> Result<()> {
    let cluster = Cluster::start(3, &[]).await?;
    cluster.at_version(2).await?;
    let addr = cluster.addr(2);
    let client = cluster.client()?;
    let update =
        v1::UpdateQueueRequest { queue: "q".into(), fencing: v1::Fencing::Required.into(), ..Default::default() };
    let queue = client.update_queue(update).await?.value;
    ensure!(queue.policy.is_some_and(|policy| policy.fencing() == v1::Fencing::Required), "the policy");
    http::post(&addr, "/v1/jobs", &json!({"queue": "q"})).await?;
    let claim = json!({"queues": ["q"], "worker": "worker-7"});
    let job = http::post(&addr, "/v1/jobs:claim", &claim).await?.json["job"].clone();
    let job_id = job["jobId"].as_str().context("a job id")?.to_owned();
    for token in [Value::Null, json!("0")] {
        for (verb, body, _) in calls(&token) {
            let answer = http::post(&addr, &format!("/v1/jobs/{job_id}:{verb}"), &body).await?;
            ensure!((answer.status, answer.reason()) == (400, "FENCING_TOKEN_REQUIRED"), "{verb}: {answer:?}");
        }
    }
    let complete = json!({"worker": "worker-7", "fencingToken": 1});
    let complete = http::post(&addr, &format!("/v1/jobs/{job_id}:complete"), &complete).await?;
    ensure!(complete.status == 200, "{complete:?}");
    Ok(())
}

const ROUNDS: u16 = 10;
const JOBS: usize = 1_000;

/// What became of one stale call: whether it was accepted, and where it was applied.
struct Late {
    job_id: String,
    accepted: bool,
    log_index: Option<u64>,
}

/// The stale call and the new claim arrive together, 10,000 times, through different replicas, with leader changes in
/// between. In the order of the log, no call of the first claim is accepted after the second one was made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_calls_that_race_with_the_takeover_never_come_after_it() -> Result<()> {
    let mut cluster = Cluster::start(3, &[]).await?;
    cluster.at_version(2).await?;
    let (mut accepted, mut refused, mut taken_over) = (0, 0, 0);
    for round in 0..ROUNDS {
        let queue = format!("race-{round}");
        let client = cluster.client()?;
        let job = v1::EnqueueJobRequest { queue: queue.clone(), ..Default::default() };
        client.enqueue_jobs(v1::EnqueueJobsRequest { jobs: vec![job; JOBS], ..Default::default() }).await?;
        let claimed = claim(&client, &queue).await?;
        ensure!(claimed.len() == JOBS, "{} claimed", claimed.len());
        let lapsed = || async {
            let request = v1::GetQueueRequest { queue: queue.clone(), stale: false };
            let counts = client.get_queue(request).await?.value.counts.unwrap_or_default();
            Ok((counts.lapsed == JOBS as u64).then_some(()))
        };
        until("all leases run out", PATIENCE, lapsed).await?;

        let clients: Vec<_> =
            cluster.running().into_iter().map(|number| cluster.client_of(number)).collect::<Result<_>>()?;
        let stale = claimed.keys().enumerate().map(|(place, job_id)| late(&clients[place % 3], place, job_id));
        let stale = futures::stream::iter(stale).buffer_unordered(48).collect::<Vec<_>>();
        let takeover = async {
            let mut taken = BTreeMap::new();
            for _ in 0..4 {
                taken.extend(claim(&clients[usize::from(round) % 3], &queue).await?);
            }
            Ok::<_, anyhow::Error>(taken)
        };
        let change = async {
            match round {
                5 => Ok(()),
                round if round % 2 == 1 => client.transfer_leadership(Default::default()).await.map(drop).or(Ok(())),
                _ => Ok::<(), anyhow::Error>(()),
            }
        };
        let (stale, taken, changed) = futures::join!(stale, takeover, change);
        changed?;
        let taken = taken?;
        for call in stale.into_iter().collect::<Result<Vec<_>>>()? {
            let second = taken.get(&call.job_id);
            taken_over += u32::from(second.is_some());
            accepted += u32::from(call.accepted);
            refused += u32::from(!call.accepted);
            if let (true, Some(second), Some(log_index)) = (call.accepted, second, call.log_index) {
                ensure!(log_index <= *second, "{}: accepted at {log_index}, taken over at {second}", call.job_id);
            }
        }
        if round == 5 {
            let leader = cluster.leader().await?;
            cluster.kill(leader)?;
            cluster.start_replica(leader)?;
            cluster.serve_all().await?;
        }
    }
    // The log itself: each accepted call of a claim is one of the newest claim so far.
    let mut newest: BTreeMap<String, u32> = BTreeMap::new();
    for record in cluster.audit(1).await?.into_iter().filter(|record| record.outcome == "done") {
        match record.verb.as_str() {
            "claim" => drop(newest.insert(record.job_id, record.attempts)),
            "complete" | "fail" | "release" => {
                let now = newest.get(&record.job_id);
                ensure!(now == Some(&record.attempts), "record {}: {now:?}", record.sequence);
            }
            _ => {}
        }
    }
    cluster.same_hash(3).await?;
    println!(
        "{} races: {accepted} calls of the first claim in time, {refused} refused, {taken_over} jobs taken over",
        u32::from(ROUNDS) * JOBS as u32
    );
    ensure!(accepted + refused == u32::from(ROUNDS) * JOBS as u32, "a call is missing");
    ensure!(accepted > 0 && refused > 100 && taken_over > 100, "there was no race");
    Ok(())
}

/// Claims all that can be claimed now, for a tenth of a second; gives each job's place in the log.
async fn claim(client: &Client, queue: &str) -> Result<BTreeMap<String, u64>> {
    let request = v1::ClaimJobsRequest {
        queues: vec![queue.into()],
        worker: "worker-7".into(),
        lease: Some(prost_types::Duration { seconds: 0, nanos: 100_000_000 }),
        max_jobs: JOBS as u32,
        ..Default::default()
    };
    let answer = client.claim_jobs(request).await?;
    let (_, log_index) = answer.applied.context("a claim says where it was applied")?;
    Ok(answer.value.jobs.into_iter().map(|job| (job.job_id, log_index)).collect())
}

/// A call of the first claim, by the verb of its place.
async fn late(client: &Client, place: usize, job_id: &str) -> Result<Late> {
    let (job_id, worker, fencing_token) = (job_id.to_owned(), "worker-7".to_owned(), 1);
    let id = job_id.clone();
    let raw = client.raw();
    let told = match place % 4 {
        0 => {
            let beat = v1::HeartbeatJobRequest { job_id, worker, fencing_token, ..Default::default() };
            raw.heartbeat_job(beat).await.map(|answer| answer.applied)
        }
        1 => {
            let complete = v1::CompleteJobRequest { job_id, worker, fencing_token, ..Default::default() };
            raw.complete_job(complete).await.map(|answer| answer.applied)
        }
        2 => {
            let fail = v1::FailJobRequest { job_id, worker, fencing_token, ..Default::default() };
            raw.fail_job(fail).await.map(|answer| answer.applied)
        }
        _ => {
            let release = v1::ReleaseJobRequest { job_id, worker, fencing_token };
            raw.release_job(release).await.map(|answer| answer.applied)
        }
    };
    Ok(match told {
        Ok(applied) => Late { job_id: id, accepted: true, log_index: applied.map(|(_, log_index)| log_index) },
        Err(error) => {
            // A call whose outcome is unknown counts as refused here; the log is judged as a whole below.
            let known = matches!(error.reason(), "STALE_FENCING_TOKEN" | "CLAIM_LOST" | "ALREADY_COMPLETED");
            ensure!(known || error.is_unknown() || error.is_not_proposed(), "{error}");
            Late { job_id: id, accepted: false, log_index: None }
        }
    })
}
