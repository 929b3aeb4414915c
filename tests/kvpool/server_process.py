"""A memory server in a process of its own, to be talked to, stopped, continued and killed.

    with running_server(tmp_path, secret="s") as server:
        server.record.port ...
        server.kill()

Run as a program it takes its settings as JSON and prints its record as JSON when it serves; it ends with its standard
input, so that it never outlives a test that was killed.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from serving.ids import NodeId
from serving.kvpool.live.server import MemoryServer
from serving.kvpool.live.server_settings import ServerSettings
from serving.values.pool_view import ServerRecord, ServerState
from tests.stopping import stop_process

MIB = 1 << 20
START_S = 60.0
REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class ServerProcess:
    """A running child with what it announced at its start."""

    process: "subprocess.Popen[bytes]"
    record: ServerRecord

    @property
    def pid(self) -> int:
        """Of the child."""
        return self.process.pid

    def kill(self) -> None:
        """As a crash: no goodbye, nothing removed."""
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """Stops it: its sockets stay open and nobody answers."""
        stop_process(self.process.pid)

    def resume(self) -> None:
        """Continues it."""
        os.kill(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Ends it as it should end: connections closed, segment removed."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(START_S)
        except subprocess.TimeoutExpired:
            self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def segment_folder() -> Iterator[Path]:
    """A folder of shared memory, which is empty but for what killed servers left, and goes at the end."""
    with tempfile.TemporaryDirectory(prefix="kvpool_test_", dir="/dev/shm") as folder:
        yield Path(folder)


def start_server(segments: Path, **settings: Any) -> ServerProcess:
    """Starts one.

    Args:
        segments: folder for its segment.
        settings: fields of `ServerSettings`; node, secret, capacity (16 MiB) and prefix have defaults.
    """
    values: dict[str, Any] = {
        "node": "n0",
        "secret": "secret",
        "capacity_bytes": 16 * MIB,
        "segment_folder": str(segments),
        "segment_prefix": "kv_",
        **settings,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.kvpool.server_process", json.dumps(values, default=str)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    watchdog = threading.Timer(START_S, process.kill)
    watchdog.start()
    try:
        line = process.stdout.readline()
        record = msgspec.json.decode(line, type=ServerRecord)
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        watchdog.cancel()
    return ServerProcess(process, record)


@contextlib.contextmanager
def running_server(segments: Path, **settings: Any) -> Iterator[ServerProcess]:
    """A server for the time of a `with`; arguments as for `start_server`. It may be killed or stopped inside."""
    server = start_server(segments, **settings)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                server.resume()
        server.stop()


def settings_of(values: dict[str, Any]) -> ServerSettings:
    """Settings from JSON values."""
    folder = values.pop("ssd_folder", None)
    return ServerSettings(
        node=NodeId(values.pop("node")),
        segment_folder=Path(values.pop("segment_folder")),
        ssd_folder=None if folder is None else Path(folder),
        **values,
    )


def main() -> None:
    """The child: serve until standard input ends."""
    server = MemoryServer(settings_of(json.loads(sys.argv[1])))
    server.start()
    sys.stdout.buffer.write(msgspec.json.encode(server.record(ServerState.ACTIVE)) + b"\n")
    sys.stdout.buffer.flush()
    sys.stdin.buffer.read()
    server.stop()


if __name__ == "__main__":
    main()
