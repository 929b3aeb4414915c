"""Process of an expert rank: routed experts in native code, without an engine, KV blocks or links."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from serving.config.serve import ServeConfig
from serving.group.compute.expert_rank import ExpertRank, ExpertWeights
from serving.group.core.rank_life import check_offers
from serving.instance.live.compute import GroupMember
from serving.instance.live.gentle import run_gently
from serving.instance.live.pool_access import PoolAccess
from serving.sockets.secrets import ClusterSecrets
from serving.values.group import RankOffer, RegroupOrder
from serving.values.instances import CRASHED_AGE_S, InstancePlace
from serving.values.pool_view import PoolView

SEQUENCES = ("running", "waiting", "held", "pulling", "fetching", "queued_tokens")
"""Facts of an instance about its sequences, which an expert rank does not have."""


class ExpertRuntime:
    """The runtime of one expert rank; a `RankRuntime`.

    Args:
        secret: shared by gateways, instances and memory servers.
        pool_view: returns the latest view of the KV-cache pool, which may have an image of the weights; None = no pool.
        gently: build it at low priority.
    Raises: as `ExpertRank`.
    """

    def __init__(
        self,
        config: ServeConfig,
        place: InstancePlace,
        secret: ClusterSecrets,
        pool_view: Callable[[], PoolView] | None,
        *,
        gently: bool = False,
    ) -> None:
        assert place.rank is not None
        self._place, self._most = place, place.rank.most
        access = PoolAccess(pool_view, secret, config.kvcache) if pool_view is not None else None
        make = partial(_make, config, place, access)
        self._experts = run_gently(make) if gently else make()
        if config.experts.across_nodes:
            self._experts.listen(place.link_host, secret, config.cluster.ports)

    @property
    def member(self) -> GroupMember:
        """Implements `RankRuntime.member`."""
        return self._experts

    def offer(self) -> RankOffer:
        """Implements `RankRuntime.offer`."""
        return self._experts.offer(self._experts.layout)

    def follow(self, order: RegroupOrder) -> None:
        """Implements `RankRuntime.follow`."""
        check_offers(self.offer(), self._most, order.offers)
        self._experts.follow(order)

    async def start(self) -> None:
        """Implements `RankRuntime.start`."""
        self._experts.start()

    def move(self, host: str) -> None:
        """Implements `RankRuntime.move`: it does not listen."""

    def hold(self, share: float, stall_timeout_s: float) -> tuple[float, int | None]:
        """Implements `RankRuntime.hold`: it has no sequences, and waits for no rank."""
        return (CRASHED_AGE_S if self._experts.failed() else 0.0), None

    async def leave(self, drain_s: float) -> None:
        """Implements `RankRuntime.leave`: it has no sequences."""

    def quit(self) -> None:
        """Implements `RankRuntime.quit`."""
        self._experts.leave()
        self._experts.stop()

    def close_log(self) -> None:
        """Implements `RankRuntime.close_log`: it has none."""

    async def stop(self) -> None:
        """Implements `RankRuntime.stop`."""
        await asyncio.to_thread(self.quit)
        self._experts.close()

    def facts(self) -> dict[str, Any]:
        """Implements `RankRuntime.facts`."""
        experts = self._experts.facts()
        return {
            "told_s": time.monotonic(),
            "npus": [str(npu) for npu in self._place.npus],
            "draining": False,
            **dict.fromkeys(SEQUENCES, 0),
            "experts": None if experts is None else msgspec.to_builtins(experts),
        }


def _make(config: ServeConfig, place: InstancePlace, access: PoolAccess | None) -> ExpertRank:
    images = access.model_cache(place.replica, place.node) if access is not None else None
    try:
        return ExpertRank(config.experts, place, ExpertWeights.of(config), images)
    finally:
        if images is not None:
            images.close()  # the process keeps the mapping
