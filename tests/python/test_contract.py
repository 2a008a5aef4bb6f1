"""A job's way through the service, by two clients that share no code with it."""

import base64

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2


def test_a_new_server_answers_within_five_seconds(server):
    print(f"GET /v1/queues answered {server.took_s:.2f} s after the start")
    assert server.took_s < 5


def test_a_job_by_grpc(server, stubs, channel):
    v1 = stubs["job"]
    jobs = stubs["job_grpc"].JobServiceStub(channel)
    job = jobs.EnqueueJob(v1.EnqueueJobRequest(queue="grpc", payload=b"\x00\xff", labels={"kind": "é🙂"}))
    assert (job.state, job.attempts, job.labels["kind"]) == (v1.READY, 0, "é🙂")

    lease = duration_pb2.Duration(seconds=30)
    claim = v1.ClaimJobRequest(queues=["grpc"], worker="w|1", lease=lease, request_id="grpc-1")
    claimed, call = jobs.ClaimJob.with_call(claim)
    assert (claimed.job.job_id, claimed.job.payload, claimed.job.attempts) == (job.job_id, b"\x00\xff", 1)
    assert claimed.job.claimed_by == "anonymous|w|1"
    applied = dict(call.initial_metadata()) | dict(call.trailing_metadata())
    term, log_index = map(int, applied["ag-applied"].split("/"))
    assert term >= 1 and log_index >= 1

    # The answer got lost, say: the same request id gets the same answer, and no other job.
    again, call = jobs.ClaimJob.with_call(claim)
    repeated = dict(call.initial_metadata()) | dict(call.trailing_metadata())
    assert again == claimed and repeated["ag-applied"] == applied["ag-applied"]

    beat = jobs.HeartbeatJob(v1.HeartbeatJobRequest(job_id=job.job_id, worker="w|1", progress=b"half"))
    assert beat.lease_expires_at.ToMilliseconds() >= claimed.job.lease_expires_at.ToMilliseconds()
    assert not beat.cancel_requested
    assert jobs.GetJob(v1.GetJobRequest(job_id=job.job_id)).progress == b"half"
    done = jobs.CompleteJob(v1.CompleteJobRequest(job_id=job.job_id, worker="w|1", result=b"\x01"))
    assert (done.state, done.result) == (v1.COMPLETED, b"\x01")


def test_a_refusal_by_grpc_has_its_reason(stubs, channel):
    v1 = stubs["job"]
    jobs = stubs["job_grpc"].JobServiceStub(channel)
    job = jobs.EnqueueJob(v1.EnqueueJobRequest(queue="refused"))
    with pytest.raises(grpc.RpcError) as refused:
        jobs.CompleteJob(v1.CompleteJobRequest(job_id=job.job_id, worker="w"))
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    metadata = dict(refused.value.initial_metadata() or ()) | dict(refused.value.trailing_metadata())
    assert "ag-applied" in metadata
    status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.domain, info.reason) == ("agwp.v1", "CLAIM_LOST")


def test_a_job_by_http(server):
    http = server.http
    job = http.post("/v1/jobs", {"queue": "a/b", "payload": base64.b64encode(b"hi").decode(), "priority": -7})
    assert (job["state"], job["priority"], job["attempts"]) == ("READY", -7, 0)
    claimed = http.post("/v1/jobs:claim", {"queues": ["a/b"], "worker": "w", "lease": "30s"})["job"]
    assert (claimed["jobId"], base64.b64decode(claimed["payload"]), claimed["attempts"]) == (job["jobId"], b"hi", 1)
    beat = http.post(f"/v1/jobs/{job['jobId']}:heartbeat", {"worker": "w", "lease": "45s"})
    assert beat["leaseExpiresAt"] > claimed["leaseExpiresAt"]
    done = http.post(f"/v1/jobs/{job['jobId']}:complete", {"worker": "w", "result": "b2s="})
    assert (done["state"], done["result"]) == ("COMPLETED", "b2s=")
    status, headers, queue = http.send("GET", "/v1/queues/a/b")
    assert (status, queue["counts"]["completed"]) == (200, "1"), "64-bit integers are strings"
    assert "/" in headers["ag-applied"]


def test_a_claim_by_grpc_is_extended_and_completed_by_http(server, stubs, channel):
    v1 = stubs["job"]
    jobs = stubs["job_grpc"].JobServiceStub(channel)
    server.http.post("/v1/jobs", {"queue": "both"})
    job = jobs.ClaimJob(v1.ClaimJobRequest(queues=["both"], worker="w")).job
    assert "leaseExpiresAt" in server.http.post(f"/v1/jobs/{job.job_id}:heartbeat", {"worker": "w"})
    assert server.http.post(f"/v1/jobs/{job.job_id}:complete", {"worker": "w"})["state"] == "COMPLETED"


def test_reflection_and_health_are_served(channel):
    call = channel.unary_unary("/grpc.health.v1.Health/Check", lambda _: b"", lambda answer: answer)
    assert call(None) == b"\x08\x01", "SERVING"
    reflect = channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", lambda asked: asked, lambda answer: answer
    )
    listed = b"".join(reflect(iter([b"\x3a\x01*"])))  # list_services = 7: "*"
    for service in (b"agwp.v1.JobService", b"agwp.v1.QueueService", b"agwp.v1.AuditService", b"agwp.v1.ClusterService"):
        assert service in listed
