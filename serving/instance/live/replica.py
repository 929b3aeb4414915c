"""The Serve replica around one instance: each engine pool is a deployment of this class.

Ray assigns it NPUs and a node, checks its health and replaces it; requests arrive over links, not through Serve.
"""

import asyncio
import os
import time
import uuid
from collections.abc import Callable
from typing import Any

import ray
from ray import serve

from hardware.ray_resources import allocated_npu_ids
from serving.cluster.first_import import IMPORTING_SINCE
from serving.cluster.identity import SocketKeeper
from serving.cluster.logs import log_beside_serve
from serving.cluster.membership import Announcer, Member
from serving.cluster.model_parcels import with_model_here
from serving.cluster.node_numbers import disk_marks, own_number
from serving.cluster.nodes import link_host, new_segment_path, own_npu_share, sweep_forever
from serving.cluster.serve_replicas import keep_on_loopback
from serving.cluster.start_clock import StartClock
from serving.config.serve import ServeConfig
from serving.deadline import within
from serving.ids import NodeId, ReplicaId
from serving.instance.live.collector import collector_off
from serving.instance.live.instance import Instance, InstancePlace
from serving.kvpool.live.pool_control import PoolViewFollower
from serving.values.pool_view import PoolView

STOP_DEADLINE_S = 10.0
_IMPORTED_AT = time.monotonic()


class InstanceDeployment:
    """One instance as a Ray Serve replica.

    Args:
        pool: the section of the configuration that applies, and the pool's name for gateways.
        secret: shared by gateways and instances of this application.
        session: identifies this start of the system; part of the paths of UB segments.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: ServeConfig, pool: str, secret: str, session: str
    ) -> None:
        clock = StartClock(IMPORTING_SINCE, _IMPORTED_AT)
        log_beside_serve(config.cluster.log_format)
        keep_on_loopback()
        config = await asyncio.to_thread(with_model_here, config)
        context = serve.get_replica_context()
        self._stall_timeout_s = config.engine.stall_timeout_s
        self._drain_s = config.engine.drain_s
        self._incarnation = uuid.uuid4().hex
        node = NodeId(ray.get_runtime_context().get_node_id())
        self._keeper = SocketKeeper(secret)
        await self._keeper.refresh()
        first_host = await asyncio.to_thread(own_number, disk_marks(config.kvcache.ssd_path))
        self._place = InstancePlace(
            replica=ReplicaId(f"{pool}#{context.replica_id.unique_id}"),
            pool=pool,
            node=node,
            npus=tuple(allocated_npu_ids(first_host)),
            segment_path=new_segment_path(session, node, f"{pool}-{context.replica_id.unique_id}"),
            link_host=link_host(),
            threads=config.threads_per_instance(os.cpu_count() or 1, await asyncio.to_thread(own_npu_share)),
        )
        self._pool = PoolViewFollower() if config.kvcache.replicas else None
        view = await self._find_pool(config) if self._pool is not None else None
        with collector_off():
            self._instance = await asyncio.to_thread(Instance, config, self._place, self._keeper.secrets, view)
            await self._instance.start()
        self._start = clock.serves()
        self._keeper.start(self._instance.move)
        self._announcer = Announcer()
        self._announcer.start(self._describe)
        self._tasks = [asyncio.create_task(sweep_forever(session)), *self._relays(config)]
        self._stopped = False

    def _relays(self, config: ServeConfig) -> list[asyncio.Task[None]]:
        if not config.cluster.ray_metrics:
            return []
        from serving.cluster.ray_metrics import relay_instance, serve_place

        return [relay_instance(self._describe, config.model.served_name, serve_place())]

    async def reconfigure(self, live: dict[str, Any]) -> None:
        """Apply the keys that need no restart, see `upgrade_rules`. Called by Serve, also at the start."""
        self._drain_s = live.get("engine.drain_s", self._drain_s)

    async def _find_pool(self, config: ServeConfig) -> Callable[[], PoolView]:
        """Start following the KV-cache pool. Returns: a function that gives the latest view."""
        assert self._pool is not None
        follower = self._pool
        follower.start()
        await follower.wait_for_servers(self._place.node, config.kvcache.replicas)
        return lambda: follower.view

    def _describe(self) -> Member:
        host, port = self._instance.address
        return Member(
            replica=self._place.replica,
            pool=self._place.pool,
            node=self._place.node,
            host=host,
            port=port,
            incarnation=self._incarnation,
            facts={"pid": os.getpid(), "start_s": self._start, **self._instance.facts()},
        )

    async def facts(self) -> dict[str, Any]:
        """The instance's numbers, for tests and scripts with a Serve handle."""
        return self._instance.facts()

    async def close_log(self) -> None:
        """Close the decision log, if any; called when the system stops."""
        await asyncio.to_thread(self._instance.close_log)

    def check_health(self) -> None:
        """Check progress, not only existence. Called by Serve every `[health] shell_period_s`.

        Raises: RuntimeError when the engine has had work for longer than `stall_timeout_s` without a step, or died;
            Serve then replaces the replica.
        """
        if self._instance.stalled(self._stall_timeout_s):
            age = self._instance.loop.progress_age_s()
            raise RuntimeError(f"{self._place.replica} has had work for {age:.1f} s without making a step")

    async def __del__(self) -> None:
        """Drain: finish or hand off all sequences, then stop.

        Serve calls this on a graceful shutdown and kills the process after `graceful_shutdown_timeout_s`.
        """
        if getattr(self, "_stopped", True):
            return
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        self._keeper.stop()
        await self._instance.server.leave(self._drain_s)  # listed as draining until then
        await self._announcer.stop()
        if self._pool is not None:
            await self._pool.stop()
        await within(self._instance.stop(), STOP_DEADLINE_S)
