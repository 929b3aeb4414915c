"""A server whose pools are scaled by the dashboard and by command."""

import json
import os
import random
import signal
import subprocess
import sys
from typing import Any

from msgspec.structs import replace

from tests.e2e.server import Server, wait_for
from tests.live.workload import GREEDY, Ask, tokens


class Scaled(Server):
    """A server whose pools are scaled by the dashboard."""

    @property
    def dashboard(self) -> dict[str, Any]:
        """Address of the dashboard, and its token."""
        return {"url": self.printed("Ray dashboard"), "headers": {"Authorization": f"Bearer {self.token}"}}

    @property
    def token(self) -> str:
        """Token of the dashboard."""
        return self.printed("dashboard token")

    def state(self) -> dict[str, Any]:
        """State of all pools, as on the page."""
        found: dict[str, Any] = json.loads(self.get("/api/pools", **self.dashboard))
        return found

    def pool(self, name: str) -> dict[str, Any]:
        """State of one pool."""
        found: dict[str, Any] = next(row for row in self.state()["pools"] if row["pool"] == name)
        return found

    def kinds(self, pool: str) -> list[tuple[str, str]]:
        """Kind and author of the pool's decisions, the latest first."""
        path = f"/api/pools/decisions?pool={pool}"
        return [(d["kind"], d["by"]) for d in json.loads(self.get(path, **self.dashboard))["decisions"]]

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run `cloudmatrix ...` on the same machine, where it finds the system itself."""
        command = [sys.executable, "-m", "serving.cli", *arguments]
        environment = {**os.environ, "TMPDIR": str(self.folder)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)

    def kill(self, title: str) -> int:
        """Send SIGKILL to the one process with that title. Returns: its id."""
        found: list[int] = []

        def is_there() -> bool:  # while it works, a Ray process bears the name of what it does
            found[:] = [pid for pid, shown in self.processes().items() if shown == title]
            return len(found) == 1

        wait_for(is_there, f"one {title}")
        (pid,) = found
        os.kill(pid, signal.SIGKILL)
        return pid


def settled(server: Scaled, pool: str, replicas: int) -> None:
    """Wait until this many replicas serve, and none starts or drains."""

    def there() -> bool:
        row = server.pool(pool)
        return (row["target"], row["running"], row["starting"], row["draining"]) == (replicas, replicas, 0, 0)

    wait_for(there, f"{pool} has {replicas} replicas", state=server.state)


def asks(seed: int, count: int, length: int) -> list[Ask]:
    rng = random.Random(seed)
    return [Ask(tokens(rng, 30), replace(GREEDY, max_tokens=length)) for _ in range(count)]
