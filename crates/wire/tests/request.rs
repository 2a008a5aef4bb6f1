//! Every field of every request: at its bound, one beyond, empty, absent, and text that may not be there.

#![allow(
    clippy::field_reassign_with_default,
    clippy::type_complexity,
    reason = "a macro sets the field under test on whatever it is given"
)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;

use ag_core::command::Start;
use ag_core::limits;
use ag_core::name::FieldError;
use ag_core::time::WallTime;
use ag_proto::v1;
use ag_wire::request;
use prost_types::{Duration, Timestamp};

const NOW: WallTime = WallTime(1_800_000_000_000);

type Tried = Result<(), FieldError>;

fn job() -> v1::EnqueueJobRequest {
    v1::EnqueueJobRequest { queue: "q".into(), ..Default::default() }
}

fn claim() -> v1::ClaimJobRequest {
    v1::ClaimJobRequest { queues: vec!["q".into()], worker: "w".into(), ..Default::default() }
}

fn claims() -> v1::ClaimJobsRequest {
    v1::ClaimJobsRequest { queues: vec!["q".into()], worker: "w".into(), max_jobs: 1, ..Default::default() }
}

fn heartbeat() -> v1::HeartbeatJobRequest {
    v1::HeartbeatJobRequest { job_id: "j1".into(), worker: "w".into(), ..Default::default() }
}

fn complete() -> v1::CompleteJobRequest {
    v1::CompleteJobRequest { job_id: "j1".into(), worker: "w".into(), ..Default::default() }
}

fn fail() -> v1::FailJobRequest {
    v1::FailJobRequest { job_id: "j1".into(), worker: "w".into(), ..Default::default() }
}

fn release() -> v1::ReleaseJobRequest {
    v1::ReleaseJobRequest { fencing_token: 0, job_id: "j1".into(), worker: "w".into() }
}

fn update() -> v1::UpdateQueueRequest {
    v1::UpdateQueueRequest { queue: "q".into(), ..Default::default() }
}

/// Sets fields of a valid request and parses it.
macro_rules! with {
    ($parse:path, $valid:expr, $($field:ident = $value:expr),+) => {{
        let mut message = $valid;
        $(message.$field = $value;)+
        $parse(message).map(drop)
    }};
}

fn enqueue_one(message: v1::EnqueueJobRequest) -> Tried {
    request::enqueue_job(message, NOW).map(drop)
}

/// The job as the fourth of a batch.
fn enqueue_fourth(message: v1::EnqueueJobRequest) -> Tried {
    let jobs = vec![job(), job(), job(), message];
    request::enqueue_jobs(v1::EnqueueJobsRequest { jobs, ..Default::default() }, NOW).map(drop)
}

fn enqueue_batch(message: v1::EnqueueJobsRequest) -> Tried {
    request::enqueue_jobs(message, NOW).map(drop)
}

fn claim_one(message: v1::ClaimJobRequest) -> Tried {
    request::claim_job(&message).map(drop)
}

fn claim_many(message: v1::ClaimJobsRequest) -> Tried {
    request::claim_jobs(&message).map(drop)
}

fn release_one(message: v1::ReleaseJobRequest) -> Tried {
    request::release(&message).map(drop)
}

fn update_one(message: v1::UpdateQueueRequest) -> Tried {
    request::update_queue(&message).map(drop)
}

fn heartbeat_second(message: v1::HeartbeatJobRequest) -> Tried {
    request::heartbeats(v1::HeartbeatJobsRequest { heartbeats: vec![heartbeat(), message] })?
        .into_iter()
        .try_for_each(|entry| entry.map(drop))
}

fn complete_second(message: v1::CompleteJobRequest) -> Tried {
    let completions = vec![complete(), message];
    let parsed = request::completions(v1::CompleteJobsRequest { completions, ..Default::default() })?;
    parsed.into_iter().try_for_each(|entry| entry.map(drop))
}

fn batch_of_completions(message: v1::CompleteJobsRequest) -> Tried {
    request::completions(message)?.into_iter().try_for_each(|entry| entry.map(drop))
}

fn completions(request_id: &str) -> v1::CompleteJobsRequest {
    v1::CompleteJobsRequest { completions: vec![complete(); 1_000], request_id: request_id.into() }
}

#[track_caller]
fn refused(field: &str, what: &str, tried: Tried) {
    let error = tried.expect_err(&format!("{field}: {what} is taken"));
    assert_eq!(error.field, field, "{what}: {error}");
    assert!(!error.bound.is_empty(), "{field}: {what}: no bound is named");
}

#[track_caller]
fn taken(field: &str, what: &str, tried: Tried) {
    tried.unwrap_or_else(|error| panic!("{field}: {what} is refused: {error}"));
}

/// What text a field takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Letters, digits and `._-/`.
    Name,
    /// No control characters.
    Text,
    /// Any: text that is no job id names no job.
    JobId,
}

type TextField = (&'static str, Form, usize, bool, fn(String) -> Tried);

fn text_fields() -> Vec<TextField> {
    use Form::{JobId, Name, Text};
    const REQUEST_ID: usize = limits::REQUEST_ID_BYTES_MAX;
    const WORKER: usize = limits::WORKER_LABEL_BYTES_MAX;
    const DEDUPE_KEY: usize = limits::DEDUPE_KEY_BYTES_MAX;
    const TYPE: usize = limits::ATTESTATION_TYPE_BYTES_MAX;
    vec![
        ("queue", Name, 128, true, |text| with!(enqueue_one, job(), queue = text)),
        ("jobs[3].queue", Name, 128, true, |text| with!(enqueue_fourth, job(), queue = text)),
        ("dedupe_key", Text, DEDUPE_KEY, false, |text| with!(enqueue_one, job(), dedupe_key = text)),
        ("jobs[3].dedupe_key", Text, DEDUPE_KEY, false, |text| with!(enqueue_fourth, job(), dedupe_key = text)),
        ("request_id", Text, REQUEST_ID, false, |text| with!(enqueue_one, job(), request_id = text)),
        ("request_id", Text, REQUEST_ID, false, |text| {
            let batch = v1::EnqueueJobsRequest { jobs: vec![job()], ..Default::default() };
            with!(enqueue_batch, batch, request_id = text)
        }),
        ("queues[0]", Name, 128, true, |text| with!(claim_one, claim(), queues = vec![text])),
        ("queues[1]", Name, 128, true, |text| with!(claim_many, claims(), queues = vec!["q".into(), text])),
        ("worker", Text, WORKER, true, |text| with!(claim_one, claim(), worker = text)),
        ("worker", Text, WORKER, true, |text| with!(claim_many, claims(), worker = text)),
        ("request_id", Text, REQUEST_ID, false, |text| with!(claim_one, claim(), request_id = text)),
        ("request_id", Text, REQUEST_ID, false, |text| with!(claim_many, claims(), request_id = text)),
        ("job_id", JobId, 128, true, |text| with!(request::heartbeat, heartbeat(), job_id = text)),
        ("worker", Text, WORKER, true, |text| with!(request::heartbeat, heartbeat(), worker = text)),
        ("heartbeats[1].job_id", JobId, 128, true, |text| with!(heartbeat_second, heartbeat(), job_id = text)),
        ("heartbeats[1].worker", Text, WORKER, true, |text| with!(heartbeat_second, heartbeat(), worker = text)),
        ("job_id", JobId, 128, true, |text| with!(request::complete, complete(), job_id = text)),
        ("worker", Text, WORKER, true, |text| with!(request::complete, complete(), worker = text)),
        ("request_id", Text, REQUEST_ID, false, |text| with!(request::complete, complete(), request_id = text)),
        ("completions[1].worker", Text, WORKER, true, |text| with!(complete_second, complete(), worker = text)),
        ("completions[1].request_id", Text, REQUEST_ID, false, |text| {
            with!(complete_second, complete(), request_id = text)
        }),
        ("request_id", Text, REQUEST_ID, false, |text| with!(batch_of_completions, completions(""), request_id = text)),
        ("attestation_type", Text, TYPE, true, |text| {
            with!(request::complete, complete(), attestation = vec![1], attestation_type = text)
        }),
        ("job_id", JobId, 128, true, |text| with!(request::fail, fail(), job_id = text)),
        ("worker", Text, WORKER, true, |text| with!(request::fail, fail(), worker = text)),
        ("job_id", JobId, 128, true, |text| with!(release_one, release(), job_id = text)),
        ("worker", Text, WORKER, true, |text| with!(release_one, release(), worker = text)),
        ("queue", Name, 128, true, |text| with!(update_one, update(), queue = text)),
    ]
}

#[test]
fn text_has_its_bounds() {
    for (field, form, max, required, parse) in text_fields() {
        let check = |what: &str, text: String, is_taken: bool| match is_taken {
            true => taken(field, what, parse(text)),
            false => refused(field, what, parse(text)),
        };
        check("empty", String::new(), !required);
        check("one byte", "a".into(), true);
        check("at the bound", "a".repeat(max), true);
        check("one beyond", "a".repeat(max + 1), false);
        check("many bytes in few characters", "🙂".repeat(max / 4 + 1), false);
        check("NUL", "a\0b".into(), form == Form::JobId);
        check("a newline", "a\nb".into(), form == Form::JobId);
        check("`|`", "a|b".into(), form != Form::Name);
        check("an emoji", "🙂".into(), form != Form::Name);
        check("a leading `/`", "/a".into(), form != Form::Name);
        check("a trailing `/`", "a/".into(), form != Form::Name);
    }
}

type BytesField = (&'static str, usize, fn(usize) -> Tried);

#[test]
fn bytes_have_their_bounds() {
    let fields: [BytesField; 9] = [
        ("payload", 1 << 20, |bytes| with!(enqueue_one, job(), payload = vec![0; bytes])),
        ("jobs[3].payload", 1 << 20, |bytes| with!(enqueue_fourth, job(), payload = vec![0; bytes])),
        ("progress", 64 << 10, |bytes| with!(request::heartbeat, heartbeat(), progress = vec![0; bytes])),
        ("heartbeats[1].progress", 64 << 10, |bytes| with!(heartbeat_second, heartbeat(), progress = vec![0; bytes])),
        ("result", 1 << 20, |bytes| with!(request::complete, complete(), result = vec![0; bytes])),
        ("completions[1].result", 1 << 20, |bytes| with!(complete_second, complete(), result = vec![0; bytes])),
        ("attestation", 256 << 10, |bytes| {
            let attestation_type = if bytes == 0 { "" } else { "t" };
            let (attestation, attestation_type) = (vec![0; bytes], attestation_type.to_owned());
            with!(request::complete, complete(), attestation = attestation, attestation_type = attestation_type)
        }),
        ("reason", 16 << 10, |bytes| with!(request::fail, fail(), reason = "r".repeat(bytes))),
        ("labels[k]", 1_024, |bytes| {
            with!(enqueue_one, job(), labels = BTreeMap::from([("k".into(), "v".repeat(bytes))]))
        }),
    ];
    for (field, max, parse) in fields {
        taken(field, "empty", parse(0));
        taken(field, "at the bound", parse(max));
        refused(field, "one beyond", parse(max + 1));
    }
    refused("reason", "NUL", with!(request::fail, fail(), reason = "a\0".into()));
    taken("reason", "a newline", with!(request::fail, fail(), reason = "a\nb|🙂".into()));
    refused("attestation_type", "alone", with!(request::complete, complete(), attestation_type = "t".into()));
}

type DurationField = (&'static str, u64, u64, fn(Option<Duration>) -> Tried);

fn duration_fields() -> Vec<DurationField> {
    const DELAY: u64 = limits::DELAY_MS_MAX;
    const LEASE: u64 = 24 * 3_600_000;
    vec![
        ("lease", 100, LEASE, |value| with!(enqueue_one, job(), lease = value)),
        ("jobs[3].lease", 100, LEASE, |value| with!(enqueue_fourth, job(), lease = value)),
        ("delay", 0, DELAY, |value| with!(enqueue_one, job(), delay = value)),
        ("jobs[3].delay", 0, DELAY, |value| with!(enqueue_fourth, job(), delay = value)),
        ("lease", 100, LEASE, |value| with!(claim_one, claim(), lease = value)),
        ("wait", 0, 60_000, |value| with!(claim_one, claim(), wait = value)),
        ("lease", 100, LEASE, |value| with!(claim_many, claims(), lease = value)),
        ("wait", 0, 60_000, |value| with!(claim_many, claims(), wait = value)),
        ("lease", 100, LEASE, |value| with!(request::heartbeat, heartbeat(), lease = value)),
        ("heartbeats[1].lease", 100, LEASE, |value| with!(heartbeat_second, heartbeat(), lease = value)),
        ("retry_after", 0, DELAY, |value| with!(request::fail, fail(), retry_after = value)),
        ("default_lease", 100, LEASE, |value| with!(update_one, update(), default_lease = value)),
        ("retention", 0, DELAY, |value| with!(update_one, update(), retention = value)),
    ]
}

fn of_ms(ms: u64) -> Duration {
    Duration { seconds: (ms / 1_000) as i64, nanos: (ms % 1_000 * 1_000_000) as i32 }
}

#[test]
fn durations_have_their_bounds_and_never_wrap() {
    for (field, min, max, parse) in duration_fields() {
        let raw = |seconds, nanos| parse(Some(Duration { seconds, nanos }));
        taken(field, "absent", parse(None));
        taken(field, "at the lower bound", parse(Some(of_ms(min))));
        taken(field, "at the upper bound", parse(Some(of_ms(max))));
        refused(field, "one beyond", parse(Some(of_ms(max + 1))));
        let mut over = of_ms(max);
        over.nanos += 1;
        refused(field, "a nanosecond beyond", parse(Some(over)));
        if min > 0 {
            refused(field, "one below", parse(Some(of_ms(min - 1))));
            refused(field, "0", raw(0, 0));
            let mut under = of_ms(min);
            under.nanos -= 1;
            taken(field, "a part of a millisecond, which rounds up", parse(Some(under)));
        }
        for seconds in [-1, -(1 << 31), i64::MIN, i64::MAX, i64::MAX / 1_000, i64::MAX / 1_000 + 1] {
            refused(field, &format!("{seconds} s"), raw(seconds, 0));
        }
        for nanos in [-1, i32::MIN, 1_000_000_000, i32::MAX] {
            refused(field, &format!("{nanos} ns"), raw(1, nanos));
        }
    }
}

#[test]
fn a_start_is_now_or_a_time_within_ten_years() {
    let at = |seconds, nanos| with!(enqueue_one, job(), run_at = Some(Timestamp { seconds, nanos }));
    let latest = (NOW.0 + limits::DELAY_MS_MAX) / 1_000;
    let latest = i64::try_from(latest).unwrap();
    taken("run_at", "the past", at(0, 0));
    taken("run_at", "at the bound", at(latest, 0));
    refused("run_at", "a nanosecond beyond", at(latest, 1));
    for seconds in [-1, i64::MIN, i64::MAX, latest + 1] {
        refused("run_at", &format!("{seconds} s"), at(seconds, 0));
    }
    for nanos in [-1, i32::MIN, 1_000_000_000, i32::MAX] {
        refused("run_at", &format!("{nanos} ns"), at(1, nanos));
    }
    let both = with!(enqueue_one, job(), run_at = Some(Timestamp::default()), delay = Some(Duration::default()));
    refused("delay", "beside run_at", both);
    let start = |request| request::enqueue_job(request, NOW).unwrap().jobs.remove(0).start;
    assert_eq!(start(job()), Start::Now);
    let part = Duration { seconds: 0, nanos: 1 };
    assert_eq!(start(v1::EnqueueJobRequest { delay: Some(part), ..job() }), Start::After(1), "never early");
    let part = Timestamp { seconds: 1, nanos: 1 };
    assert_eq!(start(v1::EnqueueJobRequest { run_at: Some(part), ..job() }), Start::At(WallTime(1_001)));
}

#[test]
fn numbers_have_their_bounds() {
    for (value, is_taken) in [(0, false), (1, true), (1_000_000, true), (1_000_001, false), (u32::MAX, false)] {
        for (field, tried) in [
            ("max_attempts", with!(enqueue_one, job(), max_attempts = Some(value))),
            ("jobs[3].max_attempts", with!(enqueue_fourth, job(), max_attempts = Some(value))),
            ("max_attempts", with!(update_one, update(), max_attempts = Some(value))),
        ] {
            assert_eq!(tried.is_ok(), is_taken, "{field}: {value}");
            assert!(tried.err().is_none_or(|error| error.field == field), "{field}");
        }
    }
    for (value, is_taken) in [(0, false), (1, true), (1_000, true), (1_001, false), (u32::MAX, false)] {
        let tried = with!(claim_many, claims(), max_jobs = value);
        assert_eq!(tried.is_ok(), is_taken, "max_jobs: {value}");
        assert!(tried.err().is_none_or(|error| error.field == "max_jobs"));
    }
    for (value, is_taken) in [(i32::MIN, false), (-1, false), (0, false), (1, true), (1_000, true), (1_001, false)] {
        assert_eq!(request::page_size(Some(value)).is_ok(), is_taken, "page_size: {value}");
    }
    assert_eq!(request::page_size(None).unwrap(), 100);
    for priority in [i32::MIN, 0, i32::MAX] {
        taken("priority", "any", with!(enqueue_one, job(), priority = priority));
    }
}

#[test]
fn lists_have_their_bounds() {
    let jobs = |entries| with!(enqueue_batch, v1::EnqueueJobsRequest::default(), jobs = vec![job(); entries]);
    let beats = |entries| {
        with!(request::heartbeats, v1::HeartbeatJobsRequest::default(), heartbeats = vec![heartbeat(); entries])
    };
    let ends = |entries| with!(batch_of_completions, completions(""), completions = vec![complete(); entries]);
    let queues = |entries| with!(claim_one, claim(), queues = vec!["q".into(); entries]);
    let more_queues = |entries| with!(claim_many, claims(), queues = vec!["q".into(); entries]);
    let lists: [(&str, usize, &dyn Fn(usize) -> Tried); 5] = [
        ("jobs", 1_000, &jobs),
        ("heartbeats", 1_000, &beats),
        ("completions", 1_000, &ends),
        ("queues", 100, &queues),
        ("queues", 100, &more_queues),
    ];
    for (field, max, parse) in lists {
        refused(field, "empty", parse(0));
        taken(field, "one", parse(1));
        taken(field, "at the bound", parse(max));
        refused(field, "one beyond", parse(max + 1));
    }
    let own = v1::EnqueueJobRequest { request_id: "r".into(), ..job() };
    refused("jobs[3].request_id", "an entry's own", enqueue_fourth(own));
}

#[test]
fn labels_have_their_bounds() {
    let pairs = |count: usize| {
        let labels = (0..count).map(|number| (format!("k{number}"), String::new())).collect();
        with!(enqueue_fourth, job(), labels = labels)
    };
    taken("jobs[3].labels", "none", pairs(0));
    taken("jobs[3].labels", "at the bound", pairs(64));
    refused("jobs[3].labels", "one beyond", pairs(65));
    let pair =
        |key: &str, value: &str| with!(enqueue_one, job(), labels = BTreeMap::from([(key.into(), value.into())]));
    taken("labels", "a long key", pair(&"k".repeat(128), "v"));
    taken("labels", "`|` and an emoji", pair("a|🙂", "a|🙂\n"));
    for key in ["", &"k".repeat(129), "a\0", "a\nb", "a=b"] {
        refused("labels", "a bad key", pair(key, "v"));
    }
    refused("labels[k]", "NUL in a value", pair("k", "\0"));
}

#[test]
fn entries_of_a_batch_get_request_ids_of_their_own() {
    let ids = |request_id: &str| -> Vec<String> {
        let parsed = request::completions(completions(request_id)).unwrap();
        parsed.into_iter().map(|entry| entry.unwrap().request_id.unwrap().as_str().to_owned()).collect()
    };
    assert_eq!(ids("r")[..2], ["r#0", "r#1"]);
    // At every length up to the bound, each entry gets one, no two the same, and the same at a repeat.
    for length in [123, 124, 125, 126, 128] {
        let given = "r".repeat(length);
        let first = ids(&given);
        let distinct: std::collections::BTreeSet<_> = first.iter().collect();
        assert_eq!(distinct.len(), 1_000, "{length}");
        assert_eq!(first, ids(&given), "{length}");
        assert!(first.iter().all(|derived| derived.len() <= 128), "{length}");
    }
    let other = format!("{}s", "r".repeat(127));
    assert_ne!(ids(&"r".repeat(128))[0], ids(&other)[0]);
    let mut batch = completions("r");
    batch.completions[1].request_id = "own".into();
    let parsed = request::completions(batch).unwrap();
    assert_eq!(parsed[1].as_ref().unwrap().request_id.as_ref().unwrap().as_str(), "own");
    let without = request::completions(completions("")).unwrap();
    assert!(without.iter().all(|entry| entry.as_ref().unwrap().request_id.is_none()));
}

/// A claim's number is never cut to 32 bits, and 0 stands for none, on every call that has one.
#[test]
fn fencing_tokens_are_read_exactly_or_refused() {
    let read = |fencing_token: u64| -> Vec<(&'static str, Result<Option<u32>, FieldError>)> {
        let beat = v1::HeartbeatJobRequest { fencing_token, ..heartbeat() };
        let done = v1::CompleteJobRequest { fencing_token, ..complete() };
        let failed = v1::FailJobRequest { fencing_token, ..fail() };
        let released = v1::ReleaseJobRequest { fencing_token, ..release() };
        let beats = v1::HeartbeatJobsRequest { heartbeats: vec![heartbeat(), beat.clone()] };
        let completions = vec![complete(), done.clone()];
        let completions = v1::CompleteJobsRequest { completions, ..Default::default() };
        vec![
            ("fencing_token", request::heartbeat(beat).map(|entry| entry.fencing_token)),
            ("fencing_token", request::complete(done).map(|entry| entry.fencing_token)),
            ("fencing_token", request::fail(failed).map(|entry| entry.fencing_token)),
            ("fencing_token", request::release(&released).map(|entry| entry.fencing_token)),
            (
                "heartbeats[1].fencing_token",
                request::heartbeats(beats).unwrap().remove(1).map(|entry| entry.fencing_token),
            ),
            (
                "completions[1].fencing_token",
                request::completions(completions).unwrap().remove(1).map(|entry| entry.fencing_token),
            ),
        ]
    };
    for (value, expected) in [(0, None), (1, Some(1)), (7, Some(7)), (4_294_967_295, Some(u32::MAX))] {
        for (field, token) in read(value) {
            assert_eq!(token, Ok(expected), "{field} {value}");
        }
    }
    for value in [4_294_967_296, 4_294_967_297, 1 << 63, u64::MAX] {
        for (field, token) in read(value) {
            assert_eq!(token.unwrap_err().field, field, "{value}");
        }
    }
}
