"""A server for the tests, and stubs that are made anew from the protos."""

import importlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import grpc
import pytest
from grpc_tools import protoc

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = ["job", "queue", "audit", "cluster"]
PATIENCE_S = 30


class Http:
    """The HTTP form, by nothing but the standard library."""

    def __init__(self, addr):
        self.base = f"http://{addr}"

    def send(self, verb, path, body=None, content_type="application/json"):
        """Gives the status, the headers and the JSON. `body` is bytes, or something to write as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": content_type} if data is not None else {}
        request = urllib.request.Request(self.base + path, data=data, method=verb, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, answer.headers, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.headers, json.loads(refusal.read() or b"null")

    def post(self, path, body):
        status, _, answer = self.send("POST", path, body)
        assert status == 200, (path, answer)
        return answer


class Server:
    """`ag dev`, killed by its own process id at the end."""

    def __init__(self, folder):
        binary = os.environ.get("AG_BIN", "ag")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("AG_")}
        for _ in range(20):
            self.addr = f"127.0.0.1:{free_port()}"
            self.log = open(folder / "log.txt", "w+b")
            self.started = time.monotonic()
            self.process = subprocess.Popen(
                [binary, "dev", "--data", str(folder / "data"), "--listen", self.addr],
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                env=environment,
            )
            self.http = Http(self.addr)
            if self.wait():
                return
        raise AssertionError(f"ag dev does not start: {self.words()}")

    def wait(self):
        """Polls until the server lists its queues. False if it ended, since another process took its port."""
        deadline = self.started + PATIENCE_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                return False
            try:
                if self.http.send("GET", "/v1/queues")[0] == 200:
                    self.took_s = time.monotonic() - self.started
                    return True
            except OSError:
                pass
            time.sleep(0.02)
        self.stop()
        raise AssertionError(f"no answer within {PATIENCE_S} s: {self.words()}")

    def words(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-2000:]

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def state(self):
        """All that a call can change: the head of the audit log, the jobs, the policies and counts of the queues.

        Not the hash of the whole state: that takes in the time, which moves on while a claim is held.
        """
        head, jobs, queues = (
            self.http.send("GET", path)[2] for path in ("/v1/audit:head", "/v1/jobs?page_size=1000", "/v1/queues")
        )
        assert not jobs["nextPageToken"]
        return head, jobs, [{name: queue[name] for name in ("queue", "policy", "counts")} for queue in queues["queues"]]


def free_port():
    # Below the range that the kernel hands out, so that no outgoing connection takes it in between.
    for port in range(21_000 + os.getpid() % 4_000, 32_000):
        with socket.socket() as client, socket.socket() as peer:
            try:
                client.bind(("127.0.0.1", port))
                peer.bind(("127.0.0.1", port + 1_000))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


@pytest.fixture(scope="session")
def stubs(tmp_path_factory):
    """The messages of agwp.v1, by file. google/api comes with googleapis-common-protos, as it would for any client."""
    out = tmp_path_factory.mktemp("stubs")
    include = importlib.resources.files("grpc_tools") / "_proto"
    arguments = ["protoc", f"-I{ROOT / 'proto'}", f"-I{include}", f"--python_out={out}", f"--grpc_python_out={out}"]
    assert protoc.main(arguments + [str(ROOT / f"proto/agwp/v1/{name}.proto") for name in FILES]) == 0
    sys.path.insert(0, str(out))
    return {name: importlib.import_module(f"agwp.v1.{name}_pb2") for name in FILES} | {
        f"{name}_grpc": importlib.import_module(f"agwp.v1.{name}_pb2_grpc") for name in FILES
    }


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def channel(server):
    with grpc.insecure_channel(server.addr) as channel:
        yield channel
