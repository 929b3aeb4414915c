"""A memory server in a separate process, which tests query, stop, continue and kill.

    with running_server(tmp_path, secret="s") as server:
        server.record.port ...
        server.kill()

All servers are forks of one process that has imported all modules: a start takes milliseconds, not the second of a
fresh interpreter. A server ends with its pipe, so it never outlives a killed test.
"""

import contextlib
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from serving.ids import NodeId
from serving.kvpool.core.server_settings import ServerSettings
from serving.kvpool.live.server import MemoryServer
from serving.values.pool_view import ServerRecord, ServerState
from tests.stopping import stop_process

MIB = 1 << 20
START_S = 60.0
REPOSITORY = Path(__file__).resolve().parents[2]

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.kvpool.server_process", "tests.kvpool.client_case"])


@dataclass(slots=True)
class ServerProcess:
    """A running child with its announcement at the start. It ends when `pipe` is closed."""

    process: multiprocessing.process.BaseProcess
    pipe: Connection
    pid: int
    record: ServerRecord

    @property
    def running(self) -> bool:
        """Whether it was neither killed nor ended; frozen counts as running."""
        return self.process.is_alive()

    def kill(self) -> None:
        """Kill it like a crash: no goodbye, no cleanup."""
        self.process.kill()
        self.process.join()

    def freeze(self) -> None:
        """Stop it with SIGSTOP: its sockets stay open without responses."""
        stop_process(self.pid)

    def resume(self) -> None:
        """Continue it."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it in an orderly way: connections closed, segment removed. It may have been killed before."""
        self.pipe.close()
        self.process.join(START_S)
        if self.running:
            self.kill()


def forked(target: Callable[..., None], *arguments: object) -> multiprocessing.process.BaseProcess:
    """A process that runs a function of a module, with this process's environment."""
    process = _FORKS.Process(target=_run, args=(dict(os.environ), target, arguments), daemon=True)
    process.start()
    return process


def _run(environment: dict[str, str], target: Callable[..., None], arguments: tuple[object, ...]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    target(*arguments)


@contextlib.contextmanager
def segment_folder() -> Iterator[Path]:
    """A folder of shared memory, empty except for the segments of killed servers, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="kvpool_test_", dir="/dev/shm") as folder:
        yield Path(folder)


def settings_in(segments: Path, **changes: Any) -> ServerSettings:
    """Settings of a server: its segment's folder, 4 MiB, and a test's own fields."""
    usual: dict[str, Any] = {"node": NodeId("n0"), "secret": "secret", "capacity_bytes": 4 * MIB}
    return ServerSettings(**{**usual, "segment_folder": segments, "segment_prefix": "kv_", **changes})


def start_server(segments: Path, **settings: Any) -> ServerProcess:
    """Start a server of 16 MiB.

    Args:
        segments: folder for its segment.
        settings: fields of `ServerSettings`; node, secret, capacity and prefix have defaults.
    """
    pipe, theirs = multiprocessing.Pipe()
    process = forked(_serve, theirs, segments, {"capacity_bytes": 16 * MIB, **settings})
    theirs.close()
    try:
        assert pipe.poll(START_S), "a memory server does not start"
        record = msgspec.json.decode(pipe.recv_bytes(), type=ServerRecord)
    except BaseException:
        process.kill()
        process.join()
        pipe.close()
        raise
    assert process.pid is not None
    return ServerProcess(process, pipe, process.pid, record)


@contextlib.contextmanager
def running_server(segments: Path, **settings: Any) -> Iterator[ServerProcess]:
    """A server for the duration of a `with`; arguments as for `start_server`. It may be killed or stopped inside."""
    server = start_server(segments, **settings)
    try:
        yield server
    finally:
        if server.running:
            with contextlib.suppress(ProcessLookupError):
                server.resume()
        server.stop()


def _serve(pipe: Connection, segments: Path, settings: dict[str, Any]) -> None:
    """Serve in the child until the other end of the pipe is closed."""
    server = MemoryServer(settings_in(segments, **settings))
    server.start()
    pipe.send_bytes(msgspec.json.encode(server.record(ServerState.ACTIVE)))
    with contextlib.suppress(EOFError):
        pipe.recv_bytes()
    server.stop()
