"""The Serve replica of a pool whose instances have several ranks: a shell, not on the path of a token or of a step.

Serve runs one shell for each group; gateways connect to the ranks.
"""

import asyncio
from functools import partial
from typing import Any

from ray import serve

from hardware.units import MIB
from serving.cluster.logs import log_beside_serve
from serving.cluster.serve_replicas import keep_on_loopback
from serving.config.serve import ServeConfig
from serving.group.core.group_experts import ExpertRules
from serving.group.live.group_places import rank_kinds
from serving.group.live.ray_group import RayGroup
from serving.group.live.shell import RENEW_PERIOD_S, SPREAD_PERIOD_S, GroupShell


class ShellDeployment:
    """One group as a Ray Serve replica.

    Args:
        pool: section of the configuration, and name of the pool at gateways.
        secret: shared by gateways and instances of this application.
        session: name of this start of the system.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: ServeConfig, pool: str, secret: str, session: str
    ) -> None:
        log_beside_serve(config.cluster.log_format)
        keep_on_loopback()
        self._drain_s = config.engine.drain_s
        self._leaving = False
        self._shell = GroupShell(
            session,
            pool,
            [kind.sizes for kind in rank_kinds(config.pools[pool], config.experts)],
            serve.get_replica_context().replica_id.unique_id,
            partial(RayGroup, session, config, pool, secret),
            config.health.replaced_after_s,
            config.engine.drain_s,
            ExpertRules(
                config.experts.policy,
                config.experts.window_s,
                config.experts.slices,
                config.experts.min_gain,
                config.experts.move_mib_per_s * MIB,
                config.experts.straggler,
                config.experts.on_loss == "mask",
            ),
            period_s=SPREAD_PERIOD_S if config.experts.across_nodes else RENEW_PERIOD_S,
        )
        self._living = asyncio.create_task(self._shell.live())
        formed = asyncio.create_task(self._shell.formed.wait())
        await asyncio.wait({self._living, formed}, return_when=asyncio.FIRST_COMPLETED)
        formed.cancel()
        if self._living.done():
            self._living.result()  # raises what went wrong

    async def reconfigure(self, live: dict[str, Any]) -> None:
        """Apply keys that need no restart, see `upgrade_rules`. Called by Serve, also at the start."""
        self._drain_s = live.get("engine.drain_s", self._drain_s)

    async def close_log(self) -> None:
        """End the decision logs of the ranks, if any, before the system stops."""
        await self._shell.close_logs()

    def check_health(self) -> None:
        """Called by Serve every `[health] shell_period_s`. The shell itself checks its ranks.

        Raises: RuntimeError when the shell has ended; Serve then replaces it, and the next shell takes the group over.
        """
        if self._living.done() and not self._leaving:
            error = None if self._living.cancelled() else self._living.exception()
            raise RuntimeError(f"the shell of {self._shell.group} has ended: {error or 'another one holds the group'}")

    async def __del__(self) -> None:
        """Drain the ranks, end them and remove their placements.

        Serve calls this on a graceful shutdown, possibly while the group is forming, and kills the process after
        `graceful_shutdown_timeout_s`; the ranks then end with their lease.
        """
        if hasattr(self, "_living"):
            self._leaving = True
            await self._shell.close(self._drain_s, self._living)
