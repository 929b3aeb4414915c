"""Several memory servers in processes of their own and the view of them, as the controller would give it.

with PoolCluster(servers=2, ssd_folder=tmp_path, ssd_bytes=...) as pool:
    client = PoolClient(..., view=pool.view)
    pool.kill(0); pool.replace(0); pool.add()
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from serving.values.pool_view import NamespaceRecord, PoolView, ServerState, ViewServer
from tests.kvpool.server_process import ServerProcess, start_server


class PoolCluster:
    """Memory servers that a test starts, kills and replaces; all of them are gone at the end.

    Args:
        servers: to begin with.
        settings: of every server, see `start_server`.
    """

    def __init__(self, servers: int = 1, **settings: Any) -> None:
        self._first = servers
        self._settings = settings
        self._folder = tempfile.TemporaryDirectory(prefix="kvpool_test_", dir="/dev/shm")
        self._changes = 0
        self._view = PoolView("0")
        self.namespaces: tuple[NamespaceRecord, ...] = ()
        self.servers: list[ServerProcess | None] = []
        """By number; None = dead or stopped."""
        self.draining: set[int] = set()
        self.unlisted: set[int] = set()

    def __enter__(self) -> Self:
        for _ in range(self._first):
            self.add()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number in range(len(self.servers)):
            self.stop(number)
        self._folder.cleanup()

    @property
    def segments(self) -> Path:
        """Where the segments lie."""
        return Path(self._folder.name)

    def view(self) -> PoolView:
        """The pool now: every server that was not taken off the list, dead ones included until then."""
        return self._view

    def add(self) -> int:
        """One more server. Returns: its number."""
        self.servers.append(self._start(len(self.servers)))
        self._change()
        return len(self.servers) - 1

    def kill(self, number: int, *, listed: bool = False) -> None:
        """As a crash. `listed` = the view does not know yet."""
        server = self.servers[number]
        assert server is not None
        server.kill()
        self._close(server)
        if not listed:
            self.servers[number] = None
            self._change()

    def replace(self, number: int) -> None:
        """What Ray does after a crash: a new process takes the dead one's place and name."""
        self.servers[number] = self._start(number)
        self._change()

    def stop(self, number: int) -> None:
        """End a server as it should end."""
        server, self.servers[number] = self.servers[number], None
        if server is not None:
            if server.process.poll() is None:
                server.resume()
            server.stop()
        self._change()

    def drain(self, number: int) -> None:
        """The view says that it leaves."""
        self.draining.add(number)
        self._change()

    def alive(self) -> list[int]:
        """Numbers of the servers that run."""
        return [number for number, server in enumerate(self.servers) if server is not None]

    def process(self, number: int) -> ServerProcess:
        """One running server."""
        server = self.servers[number]
        assert server is not None, f"server {number} does not run"
        return server

    def _start(self, number: int) -> ServerProcess:
        return start_server(self.segments, **{"name": f"kv-{number}", **self._settings})

    @staticmethod
    def _close(server: ServerProcess) -> None:
        for pipe in (server.process.stdin, server.process.stdout):
            if pipe is not None:
                pipe.close()

    def _change(self) -> None:
        self._changes += 1
        listed = []
        for number, server in enumerate(self.servers):
            if server is None or number in self.unlisted:
                continue
            drains = number in self.draining
            state = ServerState.DRAINING if drains else ServerState.ACTIVE
            listed.append(ViewServer(replace(server.record, state=state), 0.0 if drains else 1.0))
        self._view = PoolView(str(self._changes), tuple(listed), self.namespaces)
