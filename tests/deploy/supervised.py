"""Hosts made of namespaces whose Ray is started by deploy/compose.yaml, and restarted whenever it ends."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from serving.tools.chaos.chaos_result import ChaosRun
from serving.tools.chaos.final_audit import busy
from tests.deploy.hosts import Hosts, hosts
from tests.deploy.starts import TOKEN, TOKEN_FILE, Start, service
from tests.deploy.tools import BIN

HEAD, STORE = "head", "redis"
WORKERS = ("worker-1", "worker-2")
HEAD_ADDRESS = f"{HEAD}:6379"
PATIENCE_S = 300.0
REST_S = 60.0
_STOP = "/tmp/streams-stop"


class Supervised:
    """A Ray whose head stores its state in Redis and runs no replicas, and its workers.

    Args:
        folder: for the output of each host.
    """

    def __init__(self, made: Hosts, folder: Path) -> None:
        self.hosts = made
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def begin(self, name: str) -> None:
        """Start a host as the file defines, and restart it whenever it ends. Effects: a process until `end`."""
        self.hosts.run(name, "sh", "-c", f"echo {TOKEN} >{TOKEN_FILE}; mkdir -p /tmp/data")
        with (self._folder / name).open("ab") as log:
            line = self.hosts.command(name, *self._start(name).line())
            self._running[name] = subprocess.Popen(line, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        """Power a host off."""
        self.hosts.does("kill", name)
        self._running.pop(name).wait(60)

    def replace(self, name: str) -> None:
        """Start an empty host in place of one that was powered off."""
        self.hosts.does("up", name)
        self.begin(name)

    def end(self) -> None:
        """End a started host."""
        for process in self._running.values():
            process.terminate()
            process.wait(60)

    def _start(self, name: str) -> Start:
        start = service(name)
        if name == STORE:
            command = ["sh", "-c", 'cd /tmp/data && exec "$@"', "sh", *start.command, "--protected-mode", "no"]
            return Start(command)
        return start

    def command(self, name: str, *command: str) -> list[str]:
        """Command line that runs in a host, in the environment of its Ray."""
        return self.hosts.command(name, *self._start(name).within(list(command)))

    def said(self, name: str, *command: str, timeout: float = PATIENCE_S) -> tuple[int, str]:
        """Exit code and output of a command in a host. Raises: subprocess.TimeoutExpired."""
        line = self.command(name, *command)
        done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
        return done.returncode, done.stdout

    def cloudmatrix(self, name: str, *arguments: str, timeout: float = PATIENCE_S) -> str:
        """Output of a command of the product; asserts success."""
        code, said = self.said(name, f"{BIN}/cloudmatrix", *arguments, timeout=timeout)
        assert code == 0, f"{arguments} in {name} ended with {code}:\n{said}"
        return said

    def together(self) -> None:
        """Wait until Ray has every started host."""
        count, end = len(self._running) - 1, time.monotonic() + PATIENCE_S
        while (said := self.said(HEAD, "ray", "status"))[1].count(" node_") < count or said[0]:
            assert time.monotonic() < end, said
            time.sleep(1.0)

    def url(self, name: str) -> str:
        """Base URL of a gateway on a host."""
        return f"http://{self.hosts.addresses[name]}:8000"

    def status(self, at: str) -> dict[str, Any]:
        """Status of the cluster, as reported by a gateway."""
        found: dict[str, Any] = json.loads(self.cloudmatrix(STORE, "status", "--json", "--url", self.url(at)))
        return found

    def leaks(self, at: str) -> list[str]:
        """Resources that are not released at idle, and findings of the pool's own audit."""
        end = time.monotonic() + REST_S
        while (left := busy(self.status(at))) and time.monotonic() < end:
            time.sleep(0.5)
        code, said = self.said(STORE, "cloudmatrix", "pool", "audit", "--url", self.url(at))
        return [*left, *([said] if code else [])]

    def until(self, at: str, so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first status that fulfils a condition."""
        end = time.monotonic() + PATIENCE_S
        while not so(status := self.status(at)):
            assert time.monotonic() < end, status
            time.sleep(0.5)
        return status


@contextmanager
def begun(made: Hosts, folder: Path, *names: str) -> Iterator[Supervised]:
    """Hosts of the file, all started, ended with the block. An error in it reports their last output."""
    one = Supervised(made, folder)
    try:
        for name in names:
            one.begin(name)
        yield one
    except AssertionError as error:
        for name in names:
            error.add_note(f"{name}: {(folder / name).read_text(errors='replace')[-2000:]}")
        raise
    finally:
        one.end()


@contextmanager
def supervised(folder: Path, *names: str) -> Iterator[Supervised]:
    """Hosts `redis`, `head` and others of the file, all started, ended with the block."""
    with hosts(HEAD, *names, STORE) as made, begun(made, folder, STORE, HEAD, *names) as one:
        yield one


def dashboard(on: Supervised) -> tuple[str, ...]:
    """Flags of commands that use Ray's dashboard."""
    return ("--dashboard", f"http://{on.hosts.addresses[HEAD]}:8265", "--token-file", TOKEN_FILE)


def without_head(on: Supervised, at: str) -> list[tuple[str, ...]]:
    """Commands to run on a worker while the head is lost: first those that still work."""
    url = ("--url", on.url(at))
    address = ("--address", HEAD_ADDRESS)
    return [
        ("status", *url), ("pool", *url), ("pool", "audit", *url),
        ("pool", "quota", "default", "--mib", "64", *url),
        ("scale", "decode", "3", *dashboard(on)), ("decisions", *dashboard(on)), ("doctor", *address),
        ("rotate-secret", *address), ("serve", *address, "--config", "deploy/hosts.toml"), ("down", *address),
        ("down", "--address", "auto"),
    ]  # fmt: skip


class Streams:
    """Clients that run while a block does; their outcomes are in `run`."""

    def __init__(self, on: Supervised, at: str, rate_per_s: float, tokens: int) -> None:
        self._on = on
        url = on.url(at)
        words = (str(BIN / "python"), "-m", "tests.deploy.streaming", url, _STOP, str(rate_per_s), str(tokens))
        self._command = on.hosts.command(STORE, *words)
        self.run: ChaosRun | None = None

    def __enter__(self) -> "Streams":
        self._on.hosts.run(STORE, "rm", "-f", _STOP)
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._on.hosts.run(STORE, "touch", _STOP)
        said, _errors = self._process.communicate(timeout=PATIENCE_S)
        self.run = msgspec.json.decode(said, type=ChaosRun)
