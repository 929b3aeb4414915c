"""A whole system as a user starts it: one subprocess, whose processes all inherit a mark.

This module imports no Ray: tests use HTTP, standard output, and the remaining files and processes.
"""

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.costs import count_system
from tests.stopping import stop_process

SHARED_MEMORY = Path("/dev/shm")
MARK = "CLOUDMATRIX_TEST_MARK"
PATIENCE_S = 240.0
"""Time limit of every wait in tests: generous, another system may start on the same two cores."""
STOP_S = 45.0
"""Ctrl-C ends all processes within this time; on an idle machine in a fifth of it."""
PORTS = range(20_000, 32_768)
"""Below the kernel's ephemeral ports: Ray and its connections take some hundreds of them."""


def wait_for(
    condition: Callable[[], bool],
    what: str,
    patience_s: float = PATIENCE_S,
    state: Callable[[], object] = str,
    pause_s: float = 0.05,
) -> None:
    """Wait until `condition` holds; on a timeout fail with `what` and `state`.

    Args:
        pause_s: time between two polls; long if a poll starts a process on the cores that the awaited work needs.
    """
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, f"still not so after {patience_s:.0f} s: {what} {state()}"
        time.sleep(pause_s)


def free_port() -> int:
    """A free port that is unlikely to be taken before the caller uses it."""
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@dataclass
class ProcessTable:
    """All running processes except zombies, by process id."""

    titles: dict[int, str] = field(default_factory=dict)
    environments: dict[int, bytes] = field(default_factory=dict)
    parents: dict[int, int] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)

    @classmethod
    def read(cls) -> Self:
        """Read the current table."""
        table = cls()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    table._add(int(entry.name), entry)
        return table

    def _add(self, pid: int, entry: Path) -> None:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
        if fields[0] in "ZX":
            return
        environment = (entry / "environ").read_bytes()
        self.titles[pid] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
        self.environments[pid] = environment
        self.parents[pid], self.starts[pid] = int(fields[1]), int(fields[19])


def raylet_of(pid: int) -> int:
    """Raylet of a worker: the one that it watches if it was forked from the launcher's seed, else its parent."""
    table = ProcessTable.read()
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):
            watched = re.search(r"^Pid:\s+(\d+)$", entry.read_text(), re.MULTILINE)
            if watched is not None and "raylet/raylet" in table.titles.get(int(watched[1]), ""):
                return int(watched[1])
    return table.parents[pid]


BUSY_MACHINE = "Failed to get queue length from Replica"


class Server:
    """`cloudmatrix serve` in a separate process, with its own folder for all temporary files.

    with Server(config) as server:
        server.post("/v1/completions", {...})
    """

    def __init__(self, config: Path, *arguments: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [sys.executable, "-m", "serving.cli", "serve", "--config", str(config), "--port"]
        self._command += [str(self.port), *arguments]
        self._mark = secrets.token_hex(8)
        self.folder = Path("/tmp", f"c{secrets.token_hex(3)}")  # short: socket paths below it have a limit
        self.folder.mkdir(mode=0o700)
        self._process: subprocess.Popen[bytes] | None = None
        self._segments: list[Path] = []
        self._seen: dict[int, int] = {}
        self.key: str | None = None
        self.admin_key: str | None = None
        """If tenants share the system, only an administrator sees all of it."""

    def __enter__(self) -> Self:
        self.launch()
        try:
            self.wait_ready()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def launch(self) -> None:
        """Start the command without waiting."""
        count_system("serve")
        environment = {**os.environ, MARK: self._mark, "TMPDIR": str(self.folder), "OMP_NUM_THREADS": "1"}
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            self._process = subprocess.Popen(
                self._command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    def wait_ready(self) -> None:
        """Wait for the banner."""
        wait_for(lambda: "Ctrl-C ends everything" in self.out or self.process.poll() is not None, "the banner")
        assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.out}{self.err}"
        self._segments = self.segments_now()
        assert self.processes(), "all that there is, before it can become orphans"

    def segments_now(self) -> list[Path]:
        """Existing segments of this start."""
        return list(SHARED_MEMORY.glob(f"cloudmatrix-ub-{self.session}-*"))

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """Process of the launcher."""
        assert self._process is not None
        return self._process

    @property
    def out(self) -> str:
        """Standard output so far."""
        return (self.folder / "out").read_text(errors="replace")

    @property
    def err(self) -> str:
        """Standard error so far, without Ray Serve's own messages on a busy machine."""
        lines = (self.folder / "err").read_text(errors="replace").splitlines(keepends=True)
        return "".join(line for line in lines if BUSY_MACHINE not in line)

    @property
    def session(self) -> str:
        """Name of this start."""
        (folder,) = self.folder.glob("cloudmatrix-*")
        return folder.name.partition("-")[2]

    def printed(self, label: str) -> str:
        """A value printed in the banner."""
        found = re.search(rf"{label} +(\S+)", self.out)
        assert found is not None, f"no {label} in {self.out}"
        return found[1]

    def segments(self) -> list[Path]:
        """Existing UB segments of this start."""
        return [path for path in self._segments if path.exists()]

    def interrupt(self) -> float:
        """Send Ctrl-C. Returns: time until all processes have ended [s]."""
        begun = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        self.process.wait(PATIENCE_S)
        self.wait_ended()
        return time.monotonic() - begun

    def kill_launcher(self) -> list[Path]:
        """Send SIGKILL to the launcher only. Returns: the segments that other processes have to remove."""
        self._segments = self.segments_now()
        self.process.kill()
        self.process.wait(30)
        return self._segments

    def wait_ended(self, patience_s: float = STOP_S) -> None:
        """Wait until no process of this start exists."""
        wait_for(lambda: not self.processes(), "every process has ended", patience_s, self.processes)

    def assert_nothing_left(self) -> None:
        """Assert that no process, shared memory or folder remains."""
        assert not self.processes(), self.processes()
        assert not self.segments()
        left = sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*"))
        said = (self.folder / "err").read_text()[-2000:]
        assert left == ["err", "out"], f"{left[:8]}; the launcher ended with {self.process.returncode}: {said}"

    def end(self) -> None:
        """End all remaining processes by id, and remove remaining files. Ignores processes that a test has ended."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
        self.kill_all()
        for path in self._segments:
            path.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill_all(self) -> None:
        """SIGKILL to every process of this start."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait(30)
        self.wait_ended(30)

    def processes(self) -> dict[int, str]:
        """Titles of all processes of this start, by process id. Zombies do not count."""
        table = ProcessTable.read()
        # A process that sets its title overwrites its environment: it is found as a descendant, once.
        found = {pid for pid in table.titles if self._mark.encode() in table.environments[pid]}
        found |= {pid for pid, start in self._seen.items() if table.starts.get(pid) == start}
        grown = True
        while grown:
            children = {pid for pid, parent in table.parents.items() if parent in found} - found
            found |= children
            grown = bool(children)
        self._seen |= {pid: table.starts[pid] for pid in found}
        return {pid: table.titles[pid] for pid in sorted(found)}

    # ---- HTTP --------------------------------------------------------------------------------------------------------

    def get(self, path: str, *, url: str | None = None, headers: dict[str, str] | None = None) -> str:
        """Body of a GET.

        Raises: urllib.error.HTTPError.
        """
        return self._fetch(urllib.request.Request(f"{url or self.url}{path}", headers=self._headers(headers)))

    def post(
        self, path: str, body: dict[str, Any], *, url: str | None = None, headers: dict[str, str] | None = None
    ) -> Any:
        """JSON of a POST.

        Raises: urllib.error.HTTPError.
        """
        sent = {"Content-Type": "application/json", **self._headers(headers)}
        request = urllib.request.Request(f"{url or self.url}{path}", json.dumps(body).encode(), sent)
        return json.loads(self._fetch(request))

    def cluster(self) -> dict[str, Any]:
        """Current response of `GET /cluster`."""
        return self._told("/cluster")

    def experts(self) -> dict[str, Any]:
        """Current response of `GET /experts`."""
        return self._told("/experts")

    def _told(self, path: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.admin_key}"} if self.admin_key else None
        status: dict[str, Any] = json.loads(self.get(path, headers=headers))
        return status

    def replicas(self, pool: str) -> list[dict[str, Any]]:
        """Listed replicas of one pool."""
        return next(p["replicas"] for p in self.cluster()["pools"] if p["name"] == pool)

    def busy(self) -> dict[str, Any]:
        """All held blocks and queued requests; empty at idle."""
        return held_in(self.cluster())

    def wait_idle(self) -> None:
        """Wait until no blocks are held and no requests queued, by reports that each replica sends from now on."""
        asked = time.monotonic()  # the clock of all processes of this machine

        def at_rest() -> bool:
            status = self.cluster()
            announced = [one["told_s"] for pool in status["pools"] for one in pool["replicas"]]
            return not held_in(status) and all(at > asked for at in announced)

        wait_for(at_rest, "all at rest", state=self.cluster)

    def _headers(self, headers: dict[str, str] | None) -> dict[str, str]:
        own = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return {**own, **(headers or {})}

    @staticmethod
    def _fetch(request: urllib.request.Request) -> str:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            body: bytes = response.read()
            return body.decode()


def held_in(status: dict[str, Any]) -> dict[str, Any]:
    """All held blocks and queued requests reported by `GET /cluster`."""
    left = {f"gateway {name}": count for name, count in status["gateway"].items() if count}
    for replica in (replica for pool in status["pools"] for replica in pool["replicas"]):
        for name in ("kv_blocks_used", "waiting", "held", "pulling", "fetching", "running", "queued_tokens"):
            if replica[name]:
                left[f"{replica['replica']} {name}"] = replica[name]
    return left


@contextlib.contextmanager
def stopped(server: Server, pid: int) -> Iterator[None]:
    """Freeze a process of the system inside the block; afterwards resume it if it still exists."""
    assert pid in server.processes()
    stop_process(pid)
    try:
        yield
    finally:
        if pid in server.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
