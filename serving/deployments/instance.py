"""The Serve replica around one instance: `prefill`, `decode` and `aggregated` are deployments of this class.

Ray gives it NPUs and a node, watches its health and replaces it; requests reach it over links, not through Serve.
"""

import asyncio
import logging
import os
import uuid
from pathlib import Path
from typing import Any

import ray
from ray import serve

from hardware.ray_resources import allocated_npu_ids
from serving.config.serve import ServeConfig
from serving.deployments.logs import log_beside_serve
from serving.deployments.membership import Announcer, Member
from serving.deployments.nodes import link_host, node_segment_mib
from serving.deployments.remote_read import read_remote
from serving.ids import NodeId, ReplicaId
from serving.runtime.instance import Instance, InstancePlace

logger = logging.getLogger(__name__)

STOP_DEADLINE_S = 10.0


class InstanceDeployment:
    """One instance as a Ray Serve replica.

    Args:
        pool: which section of the configuration applies, and what gateways know it as.
        secret: shared by gateways and instances of this application.
        session: names this start of the system; part of the UB segment's path.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: ServeConfig, pool: str, secret: str, session: str, threads: int
    ) -> None:
        log_beside_serve()
        context = serve.get_replica_context()
        self._stall_timeout_s = config.engine.stall_timeout_s
        self._incarnation = uuid.uuid4().hex
        node = NodeId(ray.get_runtime_context().get_node_id())
        self._place = InstancePlace(
            replica=ReplicaId(f"{pool}#{context.replica_id.unique_id}"),
            pool=pool,
            node=node,
            npus=tuple(allocated_npu_ids()),
            segment_path=segment_path(session, node),
            segment_mib=node_segment_mib(node),
            segment_owner_pid=os.getppid(),
            link_host=link_host(),
            threads=threads,
        )
        self._instance = await asyncio.to_thread(Instance, config, self._place, secret, read_remote)
        self._address = await self._instance.start()
        self._announcer = Announcer()
        self._announcer.start(self._describe)
        self._stopped = False

    def _describe(self) -> Member:
        host, port = self._address
        return Member(
            replica=self._place.replica,
            pool=self._place.pool,
            node=self._place.node,
            host=host,
            port=port,
            incarnation=self._incarnation,
            facts={"pid": os.getpid(), **self._instance.facts()},
        )

    async def facts(self) -> dict[str, Any]:
        """The instance's numbers, for tests and scripts that hold a Serve handle."""
        return self._instance.facts()

    def check_health(self) -> None:
        """Called by Serve every second. Progress, not existence, is health.

        Raises: RuntimeError when the engine has had work for longer than `stall_timeout_s` without a step, or died;
            Serve then replaces the replica.
        """
        age = self._instance.loop.progress_age_s()
        if age > self._stall_timeout_s:
            raise RuntimeError(f"{self._place.replica} has had work for {age:.1f} s without making a step")

    async def __del__(self) -> None:
        """Drain, then leave. Serve calls this on a graceful shutdown and kills after `graceful_shutdown_timeout_s`."""
        if getattr(self, "_stopped", True):
            return
        self._stopped = True
        self._instance.server.set_draining()
        await self._announcer.stop()
        await self._instance.server.drained()
        await asyncio.wait_for(self._instance.stop(), STOP_DEADLINE_S)


def segment_path(session: str, node: NodeId) -> Path:
    """Path of a node's UB segment."""
    return Path("/dev/shm") / f"{SEGMENT_PREFIX}{session}-{node[:12]}"


SEGMENT_PREFIX = "cloudmatrix-ub-"
