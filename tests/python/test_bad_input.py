"""Every field of every request, made bad: the right code, the field named, nothing changed.

The fields come from the descriptor, so a field that is new has no entry in `BAD`, and the test says so.
"""

import urllib.parse

import grpc
import pytest
from google.protobuf import descriptor, duration_pb2, json_format, message_factory, timestamp_pb2
from google.rpc import error_details_pb2, status_pb2

NAMES = ["", "a b", "/a", "a/", "a\0b", "a\nb", "a|b", "é🙂", "a" * 129]
CONTROL = ["a\0b", "a\nb"]
TEN_YEARS_S = 315_576_000


def d(seconds, nanos=0):
    return duration_pb2.Duration(seconds=seconds, nanos=nanos)


def at(seconds, nanos=0):
    return timestamp_pb2.Timestamp(seconds=seconds, nanos=nanos)


# What no message with a sign error, a foreign unit or an overflow must get past: -1, 2^31 and 2^63 ms, and more.
DURATIONS = [d(-1), d(0, -1_000_000), d(2_147_483_648), d(9_223_372_036_854_775), d(2**63 - 1), d(1, -1), d(1, 10**9)]
LEASES = DURATIONS + [d(0), d(0, 99_000_000), d(86_400, 1_000_000)]
FAR = DURATIONS + [d(TEN_YEARS_S, 1_000_000)]
TIMES = [at(-1), at(2**63 - 1), at(-(2**63)), at(253_402_300_799), at(1, 10**9), at(1, -1)]
ATTEMPTS = [0, 1_000_001, 2**32 - 1]

# Values that a field must not have, for all requests, or for one.
BAD = {
    "queue": NAMES,
    "queues": [[], [""], ["a b"], ["a|b"], ["q"] * 101],
    "worker": ["", "a" * 257] + CONTROL,
    "request_id": ["a" * 129] + CONTROL,
    "dedupe_key": ["a" * 257] + CONTROL,
    "payload": [b"a" * (2**20 + 1)],
    "result": [b"a" * (2**20 + 1)],
    "progress": [b"a" * (64 * 1024 + 1)],
    "attestation": [b"a" * (256 * 1024 + 1)],
    "attestation_type": ["a" * 257, "without-one"] + CONTROL,
    "reason": ["a" * (16 * 1024 + 1), "a\0b"],
    "labels": [{"": "v"}, {"k" * 129: "v"}, {"k": "v" * 1025}, {"a=b": "v"}, {f"k{n}": "" for n in range(65)}],
    "priority": [],
    "permanent": [],
    "run_at": TIMES,
    "delay": FAR,
    "retry_after": FAR,
    "retention": FAR,
    "lease": LEASES,
    "default_lease": LEASES,
    "wait": DURATIONS + [d(60, 1_000_000)],
    "max_attempts": ATTEMPTS,
    "max_jobs": [0, 1001, 2**32 - 1],
    "page_size": [0, -1, 1001, 2**31 - 1],
    "page_token": ["made up", "AAAA", "\0", "🙂", "a" * 10_000],
    "ListJobsRequest.queue": NAMES[1:],
    "label": [["=v"]],
    "state": [99],
    "stale": [],
    "after": [],
    "digest": ["", "xyz", "A" * 64, "0" * 63, "0" * 65, "\0"],
    "job_id": ["", "j" * 129],
    "paused": [],
    "concurrency_limit": [],
    "fencing": [99],
    "fencing_token": [2**32, 2**64 - 1],
}

VALID = {
    "EnqueueJobRequest": {"queue": "none"},
    "ClaimJobRequest": {"queues": ["none"], "worker": "w"},
    "ClaimJobsRequest": {"queues": ["none"], "worker": "w", "max_jobs": 1},
    "HeartbeatJobRequest": {"worker": "w"},
    "CompleteJobRequest": {"worker": "w"},
    "FailJobRequest": {"worker": "w"},
    "ReleaseJobRequest": {"worker": "w"},
    "UpdateQueueRequest": {"queue": "held"},
}
BATCHES = {"jobs": "EnqueueJobRequest", "heartbeats": "HeartbeatJobRequest", "completions": "CompleteJobRequest"}
NOT_HERE = {"ClusterService"}  # A cluster of one refuses for other reasons; see tests/cluster.


def methods(stubs):
    for name in ("job", "queue", "audit"):
        for service in stubs[name].DESCRIPTOR.services_by_name.values():
            assert service.name not in NOT_HERE
            for method in service.methods:
                yield f"/{service.full_name}/{method.name}", method.input_type


def build(kind, values):
    message = message_factory.GetMessageClass(kind)()
    for name, value in values.items():
        put(message, name, value)
    return message


def put(message, name, value):
    if isinstance(value, dict):
        getattr(message, name).update(value)
    elif isinstance(value, list):
        getattr(message, name)[:] = value
    elif isinstance(value, (duration_pb2.Duration, timestamp_pb2.Timestamp)):
        getattr(message, name).CopyFrom(value)
    else:
        setattr(message, name, value)


def bad_values(kind, field):
    key = f"{kind.name}.{field.name}"
    key = key if key in BAD else field.name
    assert key in BAD, f"{kind.name}.{field.name} is new: say in BAD what it must not be"
    return BAD[key]


def call(channel, path, data):
    return channel.unary_unary(path, lambda bytes_: bytes_, lambda bytes_: bytes_)(data, timeout=30)


ENTRIES_ALONE = {"heartbeats": "HeartbeatJobsResponse", "completions": "CompleteJobsResponse"}
"""Batches of which each entry is refused alone, in its own status."""


def reason_for(field):
    return "INVALID_FENCING_TOKEN" if field.endswith("fencing_token") else "INVALID_FIELD"


def entry_refusal(status):
    """The code, the reason and the named field of an entry's status, as a message or as JSON."""
    code, reason, message = (status.get(key, "") for key in ("code", "reason", "message"))
    code = next((known for known in grpc.StatusCode if known.value[0] == (code or 0)), None)
    return code, reason, message.split(":")[0]


def refusal(channel, path, data, answers=None):
    """The code, the reason and the named field of a call, or of a batch's only entry, that must be refused."""
    try:
        answer = call(channel, path, data)
        if answers:
            results = json_format.MessageToDict(answers.FromString(answer)).get("results") or [{}]
            return entry_refusal(results[0].get("status", {}))
    except grpc.RpcError as error:
        info = error_details_pb2.ErrorInfo()
        details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
        for detail in status_pb2.Status.FromString(details).details if details else ():
            detail.Unpack(info)
        return error.code(), info.reason, info.metadata.get("field", "")
    return grpc.StatusCode.OK, "", ""


@pytest.fixture(scope="module")
def held(server):
    """A job that is held by w, so that a bad call which got through would change something."""
    http = server.http
    job = http.post("/v1/jobs", {"queue": "held"})
    http.post("/v1/jobs:claim", {"queues": ["held"], "worker": "w", "lease": "3600s"})
    return job["jobId"]


def requests(stubs, held):
    """Each request with one field made bad: path, the field as it must be named, the message."""
    for path, kind in methods(stubs):
        valid = dict(VALID.get(kind.name, {}))
        if "job_id" in kind.fields_by_name:
            valid["job_id"] = held
        for field in kind.fields:
            if field.name in BATCHES:
                yield from entries(path, kind, field, held)
                continue
            for value in bad_values(kind, field):
                message = build(kind, valid | {field.name: value})
                for batch in BATCHES.keys() & kind.fields_by_name.keys():
                    entry = kind.fields_by_name[batch].message_type
                    getattr(message, batch).add().CopyFrom(valid_entry(entry, batch, held))
                yield path, field.name, message


def entries(path, kind, batch, held):
    """An entry of a batch is bad, and named with its place: the third, or the only one where each stands alone."""
    good = valid_entry(batch.message_type, batch.name, held)
    yield path, batch.name, build(kind, {})
    yield path, batch.name, with_entries(kind, batch, [good] * 1001)
    for field in batch.message_type.fields:
        for value in bad_values(batch.message_type, field):
            bad = type(good)()
            bad.CopyFrom(good)
            put(bad, field.name, value)
            before = [] if batch.name in ENTRIES_ALONE else [good, good]
            yield path, f"{batch.name}[{len(before)}].{field.name}", with_entries(kind, batch, before + [bad])


def valid_entry(kind, batch, held):
    valid = dict(VALID[BATCHES[batch]])
    return build(kind, valid | {"job_id": held} if "job_id" in kind.fields_by_name else valid)


def with_entries(kind, batch, entries):
    message = build(kind, {})
    getattr(message, batch.name).extend(entries)
    return message


def same_field(named, field):
    def plain(text):
        return text.replace("_", "").lower()

    return plain(named).startswith(plain(field))


def test_every_field_of_every_request_by_grpc(server, stubs, channel, held):
    before = server.state()
    tried, wrong = 0, []
    for path, field, message in requests(stubs, held):
        alone = ENTRIES_ALONE.get(field.split("[")[0]) if "[" in field else None
        answers = alone and message_factory.GetMessageClass(stubs["job"].DESCRIPTOR.message_types_by_name[alone])
        code, reason, named = refusal(channel, path, message.SerializeToString(), answers)
        tried += 1
        if (code, reason) != (grpc.StatusCode.INVALID_ARGUMENT, reason_for(field)) or not same_field(named, field):
            wrong.append((path, field, str(message)[-120:], code, reason, named))
    print(f"{tried} bad requests by gRPC")
    assert not wrong, "\n".join(map(str, wrong))
    assert tried > 300
    assert server.state() == before, "a refused request changed something"


def http_form(path, message, held):
    """The method, the path and the body of a request in HTTP; none where a GET takes the fields from its query."""
    fields = json_format.MessageToDict(message)
    routes = {
        "EnqueueJob": "/v1/jobs",
        "EnqueueJobs": "/v1/jobs:batch",
        "ClaimJob": "/v1/jobs:claim",
        "ClaimJobs": "/v1/jobs:claimBatch",
        "HeartbeatJobs": "/v1/jobs:heartbeatBatch",
        "CompleteJobs": "/v1/jobs:completeBatch",
        "HeartbeatJob": f"/v1/jobs/{held}:heartbeat",
        "CompleteJob": f"/v1/jobs/{held}:complete",
        "FailJob": f"/v1/jobs/{held}:fail",
        "ReleaseJob": f"/v1/jobs/{held}:release",
    }
    method = path.rsplit("/", 1)[1]
    return ("POST", routes[method], fields) if method in routes else None


def test_every_field_of_every_request_by_http(server, stubs, held):
    before = server.state()
    tried, wrong = 0, []
    for path, field, message in requests(stubs, held):
        try:
            form = http_form(path, message, held)
        except (json_format.Error, ValueError):
            continue  # No JSON can say it: a duration with 10^9 ns, a year beyond 9999.
        if form is None or field == "job_id":  # The path counts, not the body.
            continue
        status, _, answer = server.http.send(*form)
        details = (answer.get("details") or [{}])[0]
        reason, named = details.get("reason"), details.get("metadata", {}).get("field", "")
        if status == 200 and "[" in field and field.split("[")[0] in ENTRIES_ALONE:
            code, reason, named = entry_refusal(answer["results"][0]["status"])
            status = 400 if code == grpc.StatusCode.INVALID_ARGUMENT else status
        tried += 1
        if (status, reason) != (400, reason_for(field)) or not same_field(named, field):
            wrong.append((form[1], field, str(form[2])[-120:], status, answer))
    print(f"{tried} bad requests by HTTP")
    assert not wrong, "\n".join(map(str, wrong))
    assert tried > 170
    assert server.state() == before, "a refused request changed something"


WRONG_JSON = {
    descriptor.FieldDescriptor.TYPE_STRING: [
        b"5", b"{}", b"[1]", b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xff"', b"true",
    ],
    descriptor.FieldDescriptor.TYPE_BYTES: [b"5", b"{}", b'"*"', b"true"],
    descriptor.FieldDescriptor.TYPE_BOOL: [b"5", b'"x"', b"{}"],
    descriptor.FieldDescriptor.TYPE_INT32: [b'"x"', b"1.5", b"2147483648", b"-2147483649", b"{}", b"[1]", b"true"],
    descriptor.FieldDescriptor.TYPE_UINT32: [b'"x"', b"1.5", b"-1", b"4294967296", b"{}", b'"18446744073709551616"'],
    descriptor.FieldDescriptor.TYPE_UINT64: [b'"x"', b"1.5", b"-1", b"{}", b'"18446744073709551616"', b"true"],
    descriptor.FieldDescriptor.TYPE_ENUM: [b'"NONE"', b"1.5", b"{}", b"true"],
    descriptor.FieldDescriptor.TYPE_MESSAGE: [b"5", b'"x"', b"[]", b"true", b'"99999999999999999999s"'],
}


def test_every_field_of_the_wrong_type(server, stubs, held):
    before = server.state()
    tried, wrong = 0, []
    for path, kind in methods(stubs):
        form = http_form(path, build(kind, {}), held)
        for field in kind.fields if form else []:
            if f"{{{field.name}}}" in form[1] or field.name == "job_id":
                continue
            for value in WRONG_JSON[field.type]:
                repeated = field.message_type is not None and field.message_type.GetOptions().map_entry
                if value == b"[1]" and repeated:
                    continue
                body = b'{"%s": %s}' % (field.json_name.encode(), value)
                status, _, answer = server.http.send("POST", form[1], body)
                tried += 1
                if status != 400 or answer["details"][0]["reason"] != reason_for(field.name):
                    wrong.append((form[1], body, status, answer))
    print(f"{tried} fields of the wrong type")
    assert not wrong, "\n".join(map(str, wrong))
    assert tried > 150
    assert server.state() == before


@pytest.mark.parametrize("content_type", ["text/xml", "application/x-www-form-urlencoded", "application/json5", "é"])
def test_unknown_content_types(server, content_type):
    before = server.state()
    status, _, answer = server.http.send("POST", "/v1/jobs", b'{"queue": "none"}', content_type)
    assert (status, answer["details"][0]["reason"]) == (415, "UNSUPPORTED_CONTENT_TYPE"), answer
    assert server.state() == before


def test_unknown_methods_and_bytes_that_are_no_message(server, channel):
    before = server.state()
    for path in ("/agwp.v1.JobService/NoSuch", "/agwp.v1.NoSuch/ClaimJob", "/x", "/agwp.v1.JobService/claimjob"):
        assert refusal(channel, path, b"")[0] == grpc.StatusCode.UNIMPLEMENTED, path
        assert server.state() == before, path
    # Cut off; a queue that is no UTF-8; the three bytes that would be an unpaired surrogate; a field of another type.
    for data in (b"\x0a\x7f", b"\x0a\x02\xff\xfe", b"\x0a\x03\xed\xa0\x80", b"\x08\x01", b"\xff" * 40):
        code, _, _ = refusal(channel, "/agwp.v1.JobService/EnqueueJob", data)
        assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL), (data, code)
        assert server.state() == before, data
    large = b"\x0a\x01q\x12\x80\x80\xc0\x02" + b"a" * 5 * 2**20
    refused = refusal(channel, "/agwp.v1.JobService/EnqueueJob", large)
    assert refused == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", "request"), refused
    assert server.state() == before


@pytest.mark.parametrize("job_id", ["j9999999999999999", "j1", "x", "🙂", "a|b", "a\nb", "a\0b", "a/b"])
def test_ids_that_do_not_exist(server, stubs, channel, job_id):
    v1 = stubs["job"]
    for method in ("HeartbeatJob", "CompleteJob", "FailJob", "ReleaseJob", "CancelJob", "RetryJob", "GetJob"):
        request = build(v1.DESCRIPTOR.message_types_by_name[f"{method}Request"], {"job_id": job_id})
        if hasattr(request, "worker"):
            request.worker = "w"
        code, reason, _ = refusal(channel, f"/agwp.v1.JobService/{method}", request.SerializeToString())
        assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "JOB_NOT_FOUND"), (method, job_id)
    status, _, answer = server.http.send("GET", f"/v1/jobs/{urllib.parse.quote(job_id, safe='')}")
    assert status == 404, answer
