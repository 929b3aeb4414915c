"""Several memory servers in separate processes and their view, as the controller would publish it.

with PoolCluster(servers=2, ssd_folder=tmp_path, ssd_bytes=...) as pool:
    client = pool.client()
    pool.kill(0); pool.replace(0); pool.add()
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from serving.ids import NodeId
from serving.kvpool.live.pool_client import PoolClient
from serving.values.pool_view import NamespaceRecord, PoolView, ServerState, ViewServer
from tests.kvpool.server_process import ServerProcess, start_server


class PoolCluster:
    """Memory servers that a test starts, kills and replaces; all have ended at the end.

    Args:
        servers: initial number.
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
        self._clients: list[PoolClient] = []
        self.draining: set[int] = set()
        self.unlisted: set[int] = set()

    def __enter__(self) -> Self:
        for _ in range(self._first):
            self.add()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for client in self._clients:
            client.close()
        for number in range(len(self.servers)):
            self.stop(number)
        self._folder.cleanup()

    @property
    def segments(self) -> Path:
        """Folder of the segments."""
        return Path(self._folder.name)

    def view(self) -> PoolView:
        """Current view: every server that was not taken off the list, including dead ones."""
        return self._view

    def client(
        self, node: str = "n0", secret: str = "secret", view: Callable[[], PoolView] | None = None, **settings: Any
    ) -> PoolClient:
        """A client in this process, closed at the end. `view`: if it differs from this pool's."""
        self._clients.append(PoolClient("test", NodeId(node), secret, view or self.view, **settings))
        return self._clients[-1]

    def add(self, **changes: Any) -> int:
        """Add a server, optionally with other settings. Returns: its number."""
        self.servers.append(self._start(len(self.servers), **changes))
        self.change()
        return len(self.servers) - 1

    def kill(self, number: int, *, listed: bool = False) -> None:
        """Kill a server, as in a crash. `listed` = the view does not know yet."""
        server = self.servers[number]
        assert server is not None
        server.kill()
        server.stop()
        if not listed:
            self.servers[number] = None
            self.change()

    def replace(self, number: int) -> None:
        """Start a new process with the dead one's place and name, as Ray does after a crash."""
        self.servers[number] = self._start(number)
        self.change()

    def stop(self, number: int) -> None:
        """End a server in an orderly way."""
        server, self.servers[number] = self.servers[number], None
        if server is not None:
            if server.running:
                server.resume()
            server.stop()
        self.change()

    def drain(self, number: int) -> None:
        """Mark a server as draining in the view."""
        self.draining.add(number)
        self.change()

    def alive(self) -> list[int]:
        """Numbers of the running servers."""
        return [number for number, server in enumerate(self.servers) if server is not None]

    def process(self, number: int) -> ServerProcess:
        """Process of one running server."""
        server = self.servers[number]
        assert server is not None, f"server {number} does not run"
        return server

    def _start(self, number: int, **changes: Any) -> ServerProcess:
        return start_server(self.segments, **{"name": f"kv-{number}", **self._settings, **changes})

    def change(self) -> None:
        """Publish a new view of the current servers."""
        self._changes += 1
        listed = []
        for number, server in enumerate(self.servers):
            if server is None or number in self.unlisted:
                continue
            drains = number in self.draining
            state = ServerState.DRAINING if drains else ServerState.ACTIVE
            listed.append(ViewServer(replace(server.record, state=state), 0.0 if drains else 1.0))
        self._view = PoolView(str(self._changes), tuple(listed), self.namespaces)
