"""The Serve replica around one memory server: deployment `kvcache`, the pool that prefill and decode share.

    view of the pool ──► quotas of this server, settler ──► entries move to their owners
    record, every second ──► controller                      health = the server's ticker makes progress

Ray only accounts for `UB_MEMORY`; this replica enforces it: a server takes no more than Ray assigned to it.
"""

import asyncio
import gc
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from hardware.ray_resources import UB_MEMORY
from hardware.units import MIB
from serving.cluster.identity import SocketKeeper
from serving.cluster.logs import log_beside_serve
from serving.cluster.model_parcels import with_model_here
from serving.cluster.node_numbers import SERVER_NAME, disk_marks, own_number
from serving.cluster.nodes import SEGMENT_PREFIX, SHARED_MEMORY, link_host, sweep_forever
from serving.cluster.serve_replicas import keep_on_loopback
from serving.config.kvcache import KvCacheConfig
from serving.config.serve import ServeConfig
from serving.config.simulated_cost import LEAST_BYTES, AccountedKv, accounted_kv
from serving.errors import ConfigError
from serving.faults.injected import FaultReader, faults_path
from serving.ids import NodeId
from serving.kvpool.core.server_settings import PoolEvents, ServerSettings
from serving.kvpool.live.migration import CommitWorker
from serving.kvpool.live.pool_client import PoolClient
from serving.kvpool.live.pool_control import CALL_DEADLINE_S, VIEW_PERIOD_S, PoolAnnouncer, control_settings
from serving.kvpool.live.server import MemoryServer
from serving.kvpool.live.ssd_files import SsdSlot
from serving.values.pool_view import (
    NamespaceClaims,
    NamespaceRecord,
    PoolView,
    ServerRecord,
    ServerState,
    server_quotas,
)

logger = logging.getLogger(__name__)

STALL_S = 10.0
"""A memory server whose ticker made no round for so long is stuck, and is replaced."""
FAULTS_PERIOD_S = 0.1
"""How often a server checks for injected faults, if `[chaos]` is enabled."""
_SEATS = 64
"""Numbers of servers of one node."""
LEAVE_S = 10.0
"""Time to leave in addition to the hand-over: one announcement, the last views, joining threads."""


class KvCacheDeployment:
    """One memory server as a Ray Serve replica.

    Args:
        secret: that clients of the pool must prove.
        session: names this start of the system; part of the UB segment's path.
        folder: of this start, for the servers' names and, without `ssd_path`, their SSD tier; each node has its own.
    Raises: ConfigError if Ray assigned less UB memory than the configuration requires.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: ServeConfig, secret: str, session: str, folder: Path
    ) -> None:
        log_beside_serve(config.cluster.log_format)
        keep_on_loopback()
        require_ub_memory(config.kvcache.ub_memory_mib)
        if config.engine.executor == "simulated":  # its blocks are accounted by the model's shape
            config = await asyncio.to_thread(with_model_here, config)
        self._config = config.kvcache
        self._node = NodeId(ray.get_runtime_context().get_node_id())
        self._state = ServerState.ACTIVE
        self._version = ""
        self._keeper = SocketKeeper(secret)
        await self._keeper.refresh()
        number = await asyncio.to_thread(own_number, disk_marks(config.kvcache.ssd_path))
        place = await asyncio.to_thread(_Place.take, config.kvcache, folder, number)
        self._place = place
        settings = ServerSettings.of(
            config.kvcache,
            node=self._node,
            secret=self._keeper.secrets,
            segment_folder=SHARED_MEMORY,
            segment_prefix=f"{SEGMENT_PREFIX}{session}-{self._node[:12]}-kvcache-",
            host=link_host(),
            name=place.name,
        )
        # A folder under the server's own name: two servers of a pool never look for a free slot in the same one.
        ssd = place.ssd_folder if config.kvcache.ssd_mib else None
        ssd_bytes, reserve = config.kvcache.ssd_mib * MIB, config.hardware.reserve_memory
        settings = replace(settings, ports=config.cluster.ports, ssd_folder=ssd, ssd_bytes=ssd_bytes, reserve=reserve)
        if config.kv_events.enabled:
            model, tokens = config.model.served_name, config.engine.block_tokens
            settings = replace(settings, events=PoolEvents(config.kv_events, model, tokens, place.rank))
        faults = FaultReader(faults_path(SHARED_MEMORY, session), place.name) if config.chaos.enabled else None
        if faults is not None:
            settings = replace(settings, disk_full=lambda: faults.active("full_disk") is not None)
        self._accounted = accounted_kv(config)
        if self._accounted is not None:  # blocks of a few bytes each, as many as the accounted memory holds
            real = self._accounted.real(settings.capacity_bytes)
            settings = replace(settings, capacity_bytes=real, quantum=LEAST_BYTES)
        self._server = await asyncio.to_thread(MemoryServer, settings)
        self._server.start()
        gc.freeze()  # what was restored from disk is not walked through again and again while clients wait
        self._announcer = PoolAnnouncer(control_settings(config, session), self._describe)
        client = PoolClient(
            f"settler-{place.name}",
            self._node,
            self._keeper.secrets,
            lambda: self._announcer.view,
            config.kvcache.scope,
        )
        only = self._node if config.kvcache.scope == "node" else None
        self._commit_worker = CommitWorker(client, place.name, lambda: self._announcer.view, only)
        self._commit_worker.start()
        self._announcer.start()
        self._keeper.start(self._server.move)
        self._follower = asyncio.create_task(self._follow_view())
        self._sweeper = asyncio.create_task(sweep_forever(session))
        self._bit_flips = asyncio.create_task(self._turn_bits(faults)) if faults is not None else None
        self._stopped = False

    async def reconfigure(self, live: dict[str, Any]) -> None:
        """Take the keys that need no restart, see `upgrade_rules`. Called by Serve, at the start too."""
        self._config = replace(self._config, drain_s=live.get("kvcache.drain_s", self._config.drain_s))

    async def facts(self) -> dict[str, Any]:
        """The server's numbers, for tests and scripts that hold a Serve handle."""
        return (await asyncio.to_thread(self._describe)).facts

    def check_health(self) -> None:
        """Called by Serve every `[health] shell_period_s`. Progress, not existence, is health.

        Raises: RuntimeError when the server is stuck, or another one has its name; Serve then replaces the replica.
        """
        if self._stopped:
            return  # leaving takes its time
        self._announcer.check()
        age = self._server.progress_age_s()
        if age > STALL_S:
            raise RuntimeError(f"memory server {self._place.name} has made no progress for {age:.1f} s")
        if self._follower.done() or not self._commit_worker.alive:
            raise RuntimeError(f"memory server {self._place.name} no longer follows the pool")

    async def __del__(self) -> None:
        """Hand all entries over, then leave. Serve calls this on a graceful shutdown and kills after its timeout."""
        if getattr(self, "_stopped", True):
            return
        self._stopped = True
        self._follower.cancel()
        self._sweeper.cancel()
        self._keeper.stop()
        if self._bit_flips is not None:
            self._bit_flips.cancel()
        self._state = ServerState.DRAINING
        deadline = time.monotonic() + self._config.drain_s
        # At once, so that nobody writes here any more; if it fails, the next announcement tells.
        with suppress(ray.exceptions.RayError, TimeoutError, ValueError):
            await self._announcer.announce()
        left = await asyncio.to_thread(self._commit_worker.drain, deadline)
        logger.info(
            "%s leaves; %s", self._place.name, "nobody takes over" if left is None else f"{left} entries stayed behind"
        )
        await self._announcer.leave()
        if len(self._announcer.view.servers) > 1:
            await asyncio.sleep(2 * VIEW_PERIOD_S)  # until nobody looks for anything here any more
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        self._commit_worker.stop()
        self._server.stop()
        self._place.give_back()

    def _describe(self) -> ServerRecord:
        record = self._server.record(self._state)
        moved = self._commit_worker.moved
        facts = {
            "pid": os.getpid(),
            "moved_entries": moved.moved,
            "moved_bytes": moved.nbytes,
            "misplaced_entries": moved.left,
        }
        facts = {**record.facts, **facts}
        return replace(record, facts=facts if self._accounted is None else self._accounted.accounted_facts(facts))

    async def _turn_bits(self, faults: FaultReader) -> None:
        """Corrupt stored blocks when `cloudmatrix chaos` requests it."""
        while True:
            fault = faults.take("bit_flip")
            if fault is not None:
                turned = await asyncio.to_thread(self._server.turn_bit, fault.draw)
                logger.warning("chaos: %s", "one bit was flipped" if turned else "no block to flip a bit of")
            await asyncio.sleep(FAULTS_PERIOD_S)

    async def _follow_view(self) -> None:
        while True:
            view = await self._announcer.next_view()
            if view.version != self._version:
                self._version = view.version
                shares = shares_of(view, self._place.name, self._accounted)
                await asyncio.to_thread(self._server.set_namespaces, shares)
                self._commit_worker.view_changed()


class _Place:
    """Place of a server on its node: a name that its replacement will have too, and a folder on disk under that name.

    The name is held by a file lock, so that the kernel gives it back whenever and however the process ends.
    """

    def __init__(self, name: str, ssd_folder: Path, seat: SsdSlot, rank: int) -> None:
        self.name = name
        self.rank = rank
        """Number among all servers that publish events; its replacement's too."""
        self.ssd_folder = ssd_folder
        self._seat = seat

    @classmethod
    def take(cls, config: KvCacheConfig, folder: Path, node: int) -> "_Place":
        """Take the first free name of the node.

        Args:
            node: its number.
        Raises: SsdError if this start's folder cannot be used.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # on another host than the start's
        seat = SsdSlot.take(folder / "names" / str(node))
        name = f"{SERVER_NAME}{node}-{seat.index}"
        root = Path(config.ssd_path) if config.ssd_path else folder / "ssd"
        return cls(name, root / name, seat, node * _SEATS + seat.index)

    def give_back(self) -> None:
        """Free the name for the next server."""
        self._seat.give_back()


def require_ub_memory(wanted_mib: int) -> None:
    """Raises: ConfigError if Ray assigned less UB memory to this process than it is going to take."""
    given = ray.get_runtime_context().get_assigned_resources().get(UB_MEMORY, 0)
    if given < wanted_mib:
        raise ConfigError(
            f"a memory server of {wanted_mib} MiB was given {given:g} MiB of {UB_MEMORY} by Ray: request as much for "
            f"its deployment as [kvcache] ub_memory_mib"
        )


def shares_of(view: PoolView, server: str, accounted: AccountedKv | None = None) -> list[NamespaceRecord]:
    """The view's namespaces, each with the quota and the claims that fall on this server, in real bytes."""

    def share(limit: Callable[[NamespaceRecord], int]) -> dict[str, int]:
        records = [NamespaceRecord(record.name, limit(record)) for record in view.namespaces]
        shares = server_quotas(records, view).get(server, {})
        if accounted is not None:  # 0 would be no limit at all
            shares = {name: nbytes and max(1, accounted.real(nbytes)) for name, nbytes in shares.items()}
        return shares

    quotas = share(lambda record: record.quota_bytes)
    retains, pins = share(lambda record: record.claims.retain_bytes), share(lambda record: record.claims.pin_bytes)
    return [
        NamespaceRecord(
            name,
            quotas.get(name, 0),
            claims=NamespaceClaims(retains.get(name, 0), pins.get(name, 0), record.claims.max_ttl_s),
        )
        for record in view.namespaces
        for name in (record.name,)
    ]


assert CALL_DEADLINE_S + 2 * VIEW_PERIOD_S < LEAVE_S, "leaving must fit into the time that is left for it"
