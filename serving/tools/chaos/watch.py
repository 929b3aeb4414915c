"""Polls the system twice a second: replicas, replacements, and the time line."""

import asyncio
import time
from collections import Counter
from typing import Any

from serving.client.http_client import ask_gateway
from serving.errors import UnavailableError
from serving.faults.schedule import GRAVE
from serving.tools.chaos.chaos_result import ChaosRun, Down, Event, Sample
from serving.tools.chaos.machines import Machines
from serving.tools.chaos.steady_load import ChaosLoad
from serving.tools.chaos.targets import Target, ranks_by_kind, rows_of, sizes, there
from serving.values.instances import whole_replicas

PERIOD_S = 0.5


class Watch:
    """Current view of the system.

    Args:
        run: its `samples` are filled, its `events` get their outcomes.
        machines: locates the system's processes.
        parts: whether to find processes outside the pools, too.
    """

    def __init__(
        self,
        run: ChaosRun,
        url: str,
        api_key: str | None,
        load: ChaosLoad,
        machines: Machines,
        *,
        parts: bool = False,
    ) -> None:
        self._run = run
        self._machines = machines
        self._url = url
        self._api_key = api_key
        self._load = load
        self._looks_for_parts = parts
        self._parts: dict[str, int] = {}
        """Processes of each part before any fault."""
        self._targets: dict[tuple[str, int], Target] = {}
        self.faulted: dict[tuple[str, int], Target] = {}
        """Replicas that were killed, or are frozen, by process."""
        self.status: dict[str, Any] = {}

    def healthy(self) -> dict[str, list[str]]:
        """Names of listed replicas without an injected fault, by pool; ranks by their kind as well."""
        pools: dict[str, list[str]] = {}
        kinds = ranks_by_kind(self.status)
        for target in self._targets.values():
            if not self._is_hurt(target) and self._machines.alive(target):
                pools.setdefault(target.pool, []).append(target.name)
                if (kind := kinds.get(target.name)) is not None:
                    pools.setdefault(kind, []).append(target.name)
        return pools

    def target(self, pool: str, name: str) -> Target | None:
        """A listed replica without an injected fault, by its pool or its kind of rank."""
        kind = ranks_by_kind(self.status).get(name)
        found = (one for one in self._targets.values() if one.name == name and pool in (one.pool, kind))
        return next((one for one in found if not self._is_hurt(one)), None)

    def listed(self, target: Target) -> bool:
        """Whether the gateway still lists this exact process."""
        return target.process in self._targets and self._machines.alive(target)

    async def look_forever(self) -> None:
        """Poll until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(PERIOD_S)

    async def look(self) -> None:
        """Poll once. Effects: the time line grows; events may get their outcome."""
        try:
            self.status = await asyncio.to_thread(ask_gateway, self._url, "/cluster", self._api_key)
            found = await asyncio.to_thread(self._machines.look, self.status)
            parts = await asyncio.to_thread(self._machines.parts) if self._looks_for_parts else []
            self._parts = self._parts or dict(Counter(part.pool for part in parts))
            self._targets = {target.process: target for target in [*found, *parts]}
            seen = bool(rows_of(self.status))
        except UnavailableError:
            seen = False  # one failed poll makes no replica disappear: the last listing still counts
        now = time.monotonic()
        counts = there(self.status) if seen else {}
        self._run.samples.append(Sample(now - self._run.begun_s, self._load.in_flight, self._load.tokens, counts))
        for event in self._run.events:
            if event.fate == "under way" and event.kind in GRAVE and seen:
                self._judge(event, now)

    def _is_hurt(self, target: Target) -> bool:
        return self.faulted.get(target.process) == target

    def _judge(self, event: Event, now: float) -> None:
        """Whether an injured replica has been replaced."""
        here = [one for one in self._targets.values() if one.pool == event.pool and self._machines.alive(one)]
        wanted = {**self._parts, **sizes(self.status)}
        whole = self._replicas([one for one in here if not self._is_hurt(one)], event.pool) >= wanted[event.pool]
        # By name and process: a memory server's replacement has its name, and process numbers come again.
        if whole and (event.target, event.host, event.pid) not in {(one.name, *one.process) for one in here}:
            event.fate, event.replaced_s = "replaced", now - event.at_clock_s

    def _replicas(self, targets: list[Target], pool: str) -> int:
        """Number of replicas that these make: a group counts if all ranks are among them."""
        rows = next((one["replicas"] for one in self.status["pools"] if one["name"] == pool), None)
        known = {(one.name, one.pid) for one in targets}
        of_these = (row for row in rows or () if (row["replica"], row["pid"]) in known)
        return len(targets) if rows is None else whole_replicas(of_these)


# Times at which the system would not have served a request, from `/ready`, polled four times a second.

DOWNTIME_PERIOD_S = 0.25
DEADLINE_S = 2.0
"""An answer that takes longer is none."""


class Downtime:
    """Fills `run.downs`."""

    def __init__(self, run: ChaosRun, url: str, api_key: str | None) -> None:
        self._run = run
        self._url = url
        self._api_key = api_key
        self._ready_s = time.monotonic()
        """Time of the last ready poll: a downtime starts at it."""
        self._down: Down | None = None

    async def ask_forever(self) -> None:
        """Poll until cancelled."""
        self._ready_s = time.monotonic()
        while True:
            await self.ask()
            await asyncio.sleep(DOWNTIME_PERIOD_S)

    async def ask(self) -> None:
        """Poll once. Effects: a downtime starts, is extended or ends."""
        ready = await asyncio.to_thread(self._is_ready)
        now = time.monotonic()
        if not ready and self._down is None:
            self._down = Down(self._ready_s, now)
            self._run.downs.append(self._down)
        if self._down is not None:
            self._down.ended_s = now
        if ready:
            self._ready_s, self._down = now, None

    def _is_ready(self) -> bool:
        try:
            ask_gateway(self._url, "/ready", self._api_key, deadline_s=DEADLINE_S)
        except UnavailableError:
            return False
        return True
