//! Bad input, field by field: the right code, the field named, nothing changed.

use std::collections::BTreeMap;

use crate::server::Server;

const TEXT: [&str; 4] = [r#"5"#, r#"{"a": 1}"#, r#"[1]"#, r#""\ud800""#];
const NAME: [&str; 7] = [r#""a b""#, r#""/a""#, r#""a/""#, r#""a\u0000b""#, r#""a\nb""#, r#""a|b""#, r#""é🙂""#];
const CONTROL: [&str; 2] = [r#""a\u0000b""#, r#""a\nb""#];
const NUMBER: [&str; 4] = [r#""x""#, "1.5", "99999999999", "[1]"];
const DURATION: [&str; 6] =
    [r#""x""#, "5", r#""-1s""#, r#""2147483648000s""#, r#""9223372036854775807s""#, r#""99999999999999999999s""#];
const FENCING_TOKEN: [&str; 7] =
    ["-1", "1.5", r#""abc""#, "4294967296", r#""18446744073709551616""#, "18446744073709551615", "[1]"];
const BYTES: [&str; 2] = [r#""*""#, "5"];

/// A valid request, and for each of its fields values that are not.
struct Case {
    verb: &'static str,
    path: &'static str,
    valid: &'static [(&'static str, &'static str)],
    bad: Vec<(&'static str, Vec<String>)>,
}

fn values(lists: &[&[&str]]) -> Vec<String> {
    lists.iter().flat_map(|list| list.iter().map(|value| (*value).to_owned())).collect()
}

fn long(bytes: usize) -> String {
    format!("\"{}\"", "a".repeat(bytes))
}

fn more(lists: &[&[&str]], extra: &[String]) -> Vec<String> {
    let mut values = values(lists);
    values.extend_from_slice(extra);
    values
}

fn worker() -> Vec<String> {
    more(&[&TEXT, &CONTROL], &["\"\"".into(), long(257)])
}

fn request_id() -> Vec<String> {
    more(&[&TEXT, &CONTROL], &[long(129)])
}

fn lease() -> Vec<String> {
    more(&[&DURATION], &[r#""0s""#.into(), r#""0.099s""#.into(), r#""86400.001s""#.into()])
}

fn base64_over(bytes: usize) -> String {
    // Four letters are three bytes.
    format!("\"{}\"", "AAAA".repeat(bytes / 3 + 1))
}

fn claim_cases() -> Vec<(&'static str, Vec<String>)> {
    let many = format!("[{}]", vec!["\"q\""; 101].join(","));
    let mut queues = vec!["[]".to_owned(), "\"q\"".into(), "[5]".into(), "[\"\"]".into(), many];
    queues.extend(NAME.iter().map(|name| format!("[{name}]")));
    let wait = more(&[&DURATION], &[r#""60.001s""#.into()]);
    vec![("queues", queues), ("worker", worker()), ("lease", lease()), ("wait", wait), ("requestId", request_id())]
}

fn cases() -> Vec<Case> {
    let enqueue = vec![
        ("queue", more(&[&TEXT, &NAME], &["\"\"".into(), long(129)])),
        ("payload", more(&[&BYTES], &[base64_over(1 << 20)])),
        ("priority", more(&[&NUMBER], &["2147483648".into(), "-2147483649".into()])),
        ("delay", more(&[&DURATION], &[r#""315576000.001s""#.into()])),
        ("runAt", values(&[&["5", r#""x""#, r#""1969-12-31T23:59:59Z""#, r#""9999-12-31T23:59:59Z""#]])),
        ("maxAttempts", more(&[&NUMBER], &["0".into(), "-1".into(), "1000001".into(), "4294967296".into()])),
        ("lease", lease()),
        ("dedupeKey", more(&[&TEXT, &CONTROL], &[long(257)])),
        (
            "labels",
            vec![
                "5".into(),
                "[]".into(),
                r#"{"": "v"}"#.into(),
                r#"{"a=b": "v"}"#.into(),
                r#"{"k": 5}"#.into(),
                format!("{{{}: \"v\"}}", long(129)),
                format!("{{\"k\": {}}}", long(1_025)),
                format!("{{{}}}", (0..65).map(|n| format!("\"k{n}\": \"v\"")).collect::<Vec<_>>().join(",")),
            ],
        ),
        ("requestId", request_id()),
    ];
    let mut claim_jobs = claim_cases();
    claim_jobs.push(("maxJobs", more(&[&NUMBER], &["0".into(), "-1".into(), "1001".into()])));
    let heartbeat = vec![
        ("worker", worker()),
        ("lease", lease()),
        ("progress", more(&[&BYTES], &[base64_over(64 << 10)])),
        ("fencingToken", values(&[&FENCING_TOKEN])),
    ];
    let complete = vec![
        ("worker", worker()),
        ("result", more(&[&BYTES], &[base64_over(1 << 20)])),
        ("attestation", more(&[&BYTES], &[base64_over(256 << 10)])),
        ("attestationType", more(&[&TEXT, &CONTROL], &[long(257), "\"without-one\"".into()])),
        ("requestId", request_id()),
        ("fencingToken", values(&[&FENCING_TOKEN])),
    ];
    let fail = vec![
        ("fencingToken", values(&[&FENCING_TOKEN])),
        ("worker", worker()),
        ("reason", more(&[&TEXT], &[r#""a\u0000""#.into(), long((16 << 10) + 1)])),
        ("retryAfter", more(&[&DURATION], &[r#""315576000.001s""#.into()])),
        ("permanent", values(&[&["5", r#""x""#]])),
    ];
    let update = vec![
        ("paused", values(&[&["5", r#""x""#]])),
        ("defaultLease", lease()),
        ("maxAttempts", more(&[&NUMBER], &["0".into(), "1000001".into()])),
        ("retention", more(&[&DURATION], &[r#""315576000.001s""#.into()])),
        ("fencing", values(&[&[r#""NONE""#, "99", "1.5", "{}"]])),
        ("concurrencyLimit", more(&[&NUMBER], &["-1".into(), "4294967296".into()])),
    ];
    let on_claim: &[(&str, &str)] = &[("worker", r#""w""#)];
    vec![
        Case { verb: "POST", path: "/v1/jobs", valid: &[("queue", r#""q""#)], bad: enqueue },
        Case {
            verb: "POST",
            path: "/v1/jobs:claim",
            valid: &[("queues", r#"["none"]"#), ("worker", r#""w""#)],
            bad: claim_cases(),
        },
        Case {
            verb: "POST",
            path: "/v1/jobs:claimBatch",
            valid: &[("queues", r#"["none"]"#), ("worker", r#""w""#), ("maxJobs", "1")],
            bad: claim_jobs,
        },
        Case { verb: "POST", path: "/v1/jobs/j0000000000000001:heartbeat", valid: on_claim, bad: heartbeat },
        Case { verb: "POST", path: "/v1/jobs/j0000000000000001:complete", valid: on_claim, bad: complete },
        Case { verb: "POST", path: "/v1/jobs/j0000000000000001:fail", valid: on_claim, bad: fail },
        Case {
            verb: "POST",
            path: "/v1/jobs/j0000000000000001:release",
            valid: on_claim,
            bad: vec![("worker", worker()), ("fencingToken", values(&[&FENCING_TOKEN]))],
        },
        Case { verb: "PATCH", path: "/v1/queues/q", valid: &[], bad: update },
    ]
}

/// `jobId` and `job_id` are the same field.
fn same_field(named: &str, field: &str) -> bool {
    let plain = |text: &str| text.replace('_', "").to_lowercase();
    plain(named).contains(&plain(field))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_field_of_every_verb_has_its_bounds_and_its_type() {
    let server = Server::start().await;
    assert_eq!(server.post("/v1/jobs", r#"{"queue": "q"}"#).await.status, 200);
    assert_eq!(server.post("/v1/jobs:claim", r#"{"queues": ["q"], "worker": "w"}"#).await.status, 200);
    let before = server.state_hash();
    let mut tried = 0;
    for case in cases() {
        for (field, values) in &case.bad {
            for value in values {
                let mut fields: BTreeMap<&str, &str> = case.valid.iter().copied().collect();
                fields.insert(field, value);
                let members: Vec<_> = fields.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
                let body = format!("{{{}}}", members.join(", "));
                let head = format!("{} {} HTTP/1.1\r\ncontent-type: application/json\r\n", case.verb, case.path);
                let answer = server.send(&head, body.as_bytes()).await;
                let shown = &body[..body.len().min(200)];
                assert_eq!(answer.status, 400, "{} {shown}: {answer:?}", case.path);
                assert_eq!(answer.json()["status"], "INVALID_ARGUMENT", "{shown}");
                let reason = if *field == "fencingToken" { "INVALID_FENCING_TOKEN" } else { "INVALID_FIELD" };
                assert_eq!(answer.reason(), reason, "{shown}");
                assert!(same_field(&answer.field(), field), "{} {shown}: names {}", case.path, answer.field());
                tried += 1;
            }
        }
        // A required field that is missing is named as well.
        for (field, _) in case.valid {
            let rest: Vec<_> = case.valid.iter().filter(|(name, _)| name != field).collect();
            let members: Vec<_> = rest.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
            let answer = server.post(case.path, &format!("{{{}}}", members.join(", "))).await;
            assert_eq!(answer.status, 400, "{} without {field}", case.path);
            assert!(same_field(&answer.field(), field), "{} without {field}: names {}", case.path, answer.field());
            tried += 1;
        }
    }
    println!("{tried} bad requests, each refused with its field named");
    assert!(tried > 250, "{tried}");
    assert_eq!(server.state_hash(), before, "a refused request changed something");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_are_no_request_are_refused() {
    let server = Server::start().await;
    let before = server.state_hash();
    let nested = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let large = format!(r#"{{"queue": "q", "payload": "{}"}}"#, "A".repeat(5 << 20));
    let inside = format!(r#"{{"queue": "q", "unknown": {nested}}}"#);
    for body in ["{", "nonsense", "[]", "5", "null", "{\"queue\": \"q\"} {}", "\"\\ud800\"", &nested, &large, &inside] {
        let answer = server.post("/v1/jobs", body).await;
        assert_eq!(answer.status, 400, "{}: {answer:?}", &body[..body.len().min(60)]);
        assert_eq!(answer.reason(), "INVALID_FIELD");
        assert!(!answer.field().is_empty());
    }
    let wrong_type = server.send("POST /v1/jobs HTTP/1.1\r\ncontent-type: text/xml\r\n", b"<a/>").await;
    assert_eq!(wrong_type.status, 415, "{wrong_type:?}");
    assert_eq!(server.state_hash(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_that_do_not_exist_and_made_up_tokens() {
    let server = Server::start().await;
    for id in ["j0000000000000009", "j1", "JX", "%00", "a%2Fb", "%F0%9F%99%82"] {
        for verb in ["heartbeat", "complete", "fail", "release"] {
            let answer = server.post(&format!("/v1/jobs/{id}:{verb}"), r#"{"worker": "w"}"#).await;
            assert_eq!((answer.status, answer.reason().as_str()), (404, "JOB_NOT_FOUND"), "{verb} {id}: {answer:?}");
        }
        for verb in ["cancel", "retry"] {
            let answer = server.post(&format!("/v1/jobs/{id}:{verb}"), "{}").await;
            assert_eq!((answer.status, answer.reason().as_str()), (404, "JOB_NOT_FOUND"), "{verb} {id}");
        }
        let answer = server.get(&format!("/v1/jobs/{id}")).await;
        assert_eq!(answer.status, 404, "{id}");
    }
    for (path, field) in [
        ("/v1/jobs?page_token=AAAA", "page_token"),
        ("/v1/jobs?page_size=0", "page_size"),
        ("/v1/jobs?page_size=1001", "page_size"),
        ("/v1/jobs?page_size=x", "page_size"),
        ("/v1/jobs?state=NONE", "state"),
        ("/v1/jobs?queue=a%20b", "queue"),
        ("/v1/jobs?label=%3Dv", "label"),
        ("/v1/jobs?stale=maybe", "stale"),
        ("/v1/queues?page_token=%F0%9F%99%82", "page_token"),
        ("/v1/audit?after=-1", "after"),
        ("/v1/audit?after=18446744073709551616", "after"),
        ("/v1/attestations/xyz", "digest"),
    ] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, 400, "{path}: {answer:?}");
        assert!(same_field(&answer.field(), field), "{path}: names {}", answer.field());
    }
    assert_eq!(server.get("/v1/queues/none").await.status, 404);
    assert_eq!(server.get(&format!("/v1/attestations/{}", "0".repeat(64))).await.status, 404);
}
