"""A system of real processes without Ray: replicas that can be killed and frozen, a gateway that responds, a
supervisor.

A replica is a sleeping process with the title of a Serve replica, which maps a UB segment of its session, as the real
ones do. The gateway's tokens are those of `http_server.play`; a test enables its faults.
"""

import contextlib
import json
import secrets
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from serving.tools.chaos.final_audit import REPLICA_COUNTS

SHARED_MEMORY = Path("/dev/shm")
_REPLICA = """
import mmap, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(fd, 4096)
kept = mmap.mmap(fd, 4096)
print("up", flush=True)
while True:
    time.sleep(60)
"""
TOKEN_S = 0.01


@dataclass
class FakeReplica:
    """One process."""

    pool: str
    name: str
    segment: Path
    process: "subprocess.Popen[bytes]"

    @classmethod
    def start(cls, pool: str, session: str) -> Self:
        """A new process; returns when it maps its segment."""
        name = f"{pool}#{secrets.token_hex(3)}"
        segment = SHARED_MEMORY / f"cloudmatrix-ub-{session}-node-{pool}-{name[-6:]}"
        command = [f"ray::ServeReplica:cloudmatrix:{pool}", "-I", "-S", "-c", _REPLICA, str(segment)]
        process = subprocess.Popen(command, executable=sys.executable, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        return cls(pool, name, segment, process)

    @property
    def stopped(self) -> bool:
        """Whether it is frozen."""
        with contextlib.suppress(OSError):
            return (Path("/proc") / str(self.process.pid) / "stat").read_text().rpartition(")")[2].split()[0] == "T"
        return False

    def end(self) -> None:
        """Kill it and remove its segment."""
        self.process.kill()
        self.process.wait()
        self.segment.unlink(missing_ok=True)


@dataclass
class FakeSystem:
    """Two replicas per pool, kept at two.

    Args:
        frozen_for_s: a replica that is frozen for this long is replaced.
        heals: whether lost replicas are replaced at all.
        forgets: whether a dead replica's segment remains.
        wrong_after_loss: whether responses that start after the first loss are wrong.
        cut_at_loss: whether streams that run when a replica is lost are cut.
    """

    pools: tuple[str, ...] = ("prefill", "decode")
    frozen_for_s: float = 0.6
    heals: bool = True
    forgets: bool = False
    wrong_after_loss: bool = False
    cut_at_loss: bool = False
    chaos: bool = True
    busy: int = 0
    ready: bool = True
    session: str = field(default_factory=lambda: secrets.token_hex(3))
    lost: int = 0
    replicas: list[FakeReplica] = field(default_factory=list)
    url: str = ""

    def __enter__(self) -> Self:
        self.replicas = [FakeReplica.start(pool, self.session) for pool in self.pools for _ in range(2)]
        handler = type("Handler", (_Handler,), {"fake": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._server.serve_forever, self._supervise)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()
        for replica in self.replicas:
            replica.end()
        for path in SHARED_MEMORY.glob(f"cloudmatrix-*{self.session}*"):
            path.unlink()

    def status(self) -> dict[str, Any]:
        """As `GET /cluster`."""
        zero = dict.fromkeys(REPLICA_COUNTS, 0)
        rows = [
            {
                "name": pool,
                "target_replicas": 2,
                "replicas": [
                    {"replica": one.name, "pid": one.process.pid, **zero, "held": self.busy}
                    for one in list(self.replicas)
                    if one.pool == pool
                ],
            }
            for pool in self.pools
        ]
        return {"model": "fake", "chaos": self.chaos, "gateway": {"running": 0}, "pools": rows}

    def _supervise(self) -> None:
        since: dict[str, float] = {}
        while not self._ended.wait(0.05):
            for replica in list(self.replicas):
                since.setdefault(replica.name, time.monotonic())
                if not replica.stopped:
                    since[replica.name] = time.monotonic()
                frozen = time.monotonic() - since[replica.name] > self.frozen_for_s
                if replica.process.poll() is not None or frozen:
                    self._replace(replica)

    def _replace(self, replica: FakeReplica) -> None:
        self.lost += 1
        self.replicas.remove(replica)
        replica.process.kill()
        replica.process.wait()
        if not self.forgets:
            replica.segment.unlink(missing_ok=True)
        if self.heals:
            self.replicas.append(FakeReplica.start(replica.pool, self.session))


class _Handler(BaseHTTPRequestHandler):
    """The gateway."""

    fake: FakeSystem
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Suppress log output."""

    def do_GET(self) -> None:
        """`/cluster`, `/ready`."""
        if self.path == "/ready" and not self.fake.ready:
            self.send_error(503)
            return
        self._json({} if self.path == "/ready" else self.fake.status())

    def do_POST(self) -> None:
        """A generation."""
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        wrong = self.fake.wrong_after_loss and self.fake.lost > 0
        tokens = [number + wrong for number in range(1, int(order["max_tokens"]) + 1)]
        choices = range(int(order.get("n", 1)))
        with contextlib.suppress(OSError):
            if order["stream"]:
                self._stream(tokens, choices)
                return
            whole = [{"index": i, "text": "", "token_ids": tokens, "finish_reason": "length"} for i in choices]
            self._json({"choices": whole})

    def _stream(self, tokens: list[int], choices: range) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        lost = self.fake.lost
        for token in tokens:
            if self.fake.cut_at_loss and self.fake.lost > lost:
                self.close_connection = True
                return
            finish = "length" if token == tokens[-1] else None
            pieces = [{"index": i, "text": "", "token_ids": [token], "finish_reason": finish} for i in choices]
            self._chunk(b"data: " + json.dumps({"choices": pieces}).encode() + b"\n\n")
            time.sleep(TOKEN_S)
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _json(self, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
