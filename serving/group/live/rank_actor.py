"""The Ray actor of one rank: detached, so that it outlives its shell, and named, so that the next shell finds it."""

import asyncio
import logging
import os
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray

from hardware.ray_resources import allocated_npu_ids
from serving.cluster.identity import SocketKeeper
from serving.cluster.logs import log_to_stderr
from serving.cluster.membership import NO_ADDRESS, Announcer, Member
from serving.cluster.model_parcels import with_model_here
from serving.cluster.node_numbers import disk_marks, own_number
from serving.cluster.nodes import link_host, new_segment_path, own_npu_share, sweep_forever
from serving.config.serve import ServeConfig
from serving.deadline import within
from serving.group.core.group_sides import rank_place
from serving.group.core.rank_life import LEASE_S, RankName
from serving.group.live.group_places import rank_kinds, remove_placement
from serving.group.live.rank import Rank, RankRuntime
from serving.ids import NodeId
from serving.kvpool.live.pool_control import PoolViewFollower
from serving.values.expert_map import ExpertOrder, RankEvent
from serving.values.group import OrderAnswer, PostedOrder, RankLease, RankReport, RegroupOrder
from serving.values.instances import InstancePlace
from serving.values.pool_view import PoolView

logger = logging.getLogger(__name__)

LEASE_CHECK_S = 1.0
STOP_DEADLINE_S = 8.0
LAST_WORDS_S = 5.0
"""How long a rank that ends itself waits for Ray to end it [s]."""


@dataclass(frozen=True, slots=True)
class RankOrder:
    """Constructor arguments of a rank's actor.

    Args:
        secret: shared by gateways, instances and memory servers.
        gently: build it at low priority, because its peers are computing.
    """

    config: ServeConfig
    name: RankName
    founder: RankLease
    secret: str
    gently: bool = False


@ray.remote(num_cpus=0, max_restarts=0)
class RankActor:
    """The Ray actor of a `Rank`. Its methods share one event loop and need no locks."""

    def __init__(self, order: RankOrder) -> None:
        log_to_stderr(order.config.cluster.log_format)
        self._order = order = replace(order, config=with_model_here(order.config))
        config, name = order.config, order.name
        node = NodeId(ray.get_runtime_context().get_node_id())
        first_host = own_number(disk_marks(config.kvcache.ssd_path))
        self._place = InstancePlace(
            replica=name.replica,
            pool=name.pool,
            node=node,
            npus=tuple(allocated_npu_ids(first_host)),
            segment_path=new_segment_path(name.session, node, f"{name.replica.replace('#', '-')}-{name.birth}"),
            link_host=link_host(),
            threads=config.threads_per_instance(os.cpu_count() or 1, own_npu_share()),
            rank=rank_place(
                name.group,
                name.rank,
                order.founder,
                [kind.sizes for kind in rank_kinds(config.pools[name.pool], config.experts)],
            ),
        )
        self._incarnation = uuid.uuid4().hex
        self._pool: PoolViewFollower | None = None
        self._view: Callable[[], PoolView] | None = None
        self._announcer = Announcer()
        self._keeper = SocketKeeper(order.secret)
        self._rank = Rank(self._place, order.founder, self._make, config.engine.stall_timeout_s)
        self._tasks: list[asyncio.Task[None]] = []
        self._unasked = threading.Timer(LEASE_S, self._end_unasked)
        self._unasked.daemon = True
        self._unasked.start()

    async def hold(self, lease: RankLease) -> RankReport:
        """See `Rank.hold`. Effects: the first call starts to build the rank."""
        if not self._tasks:
            self._unasked.cancel()
            self._tasks = [asyncio.create_task(task) for task in (self._build(), self._watch_lease())]
        return self._rank.hold(lease)

    async def begin(self, epoch: int, members: Sequence[int]) -> None:
        """See `Rank.begin`."""
        self._rank.begin(epoch, members)

    async def follow(self, order: RegroupOrder) -> None:
        """See `Rank.follow`. Effects: the first call announces the rank to gateways."""
        if await self._rank.follow(order):
            self._announcer.start(self._describe)
            self._tasks.append(asyncio.create_task(sweep_forever(self._order.name.session)))
            if self._rank.address is None:
                return
            self._keeper.start(self._rank.listen_at)
            if (config := self._order.config).cluster.ray_metrics:
                from serving.cluster.ray_metrics import rank_place, relay_instance

                place = rank_place(self._place.pool, self._place.replica)
                self._tasks.append(relay_instance(self._describe, config.model.served_name, place))

    async def move(self, lease: RankLease, orders: Sequence[ExpertOrder]) -> tuple[RankEvent, ...]:
        """See `Rank.move`."""
        return await self._rank.move(lease, orders)

    async def post_order(self, posted: PostedOrder, limit_s: float) -> OrderAnswer:
        """Post an operator's command for the shell of the group, see `Mailbox`. Returns: the shell's response."""
        return await self._rank.mailbox.post(posted, limit_s)

    async def answer_operator(self, order: str, answer: OrderAnswer) -> None:
        """Deliver the shell's response to an operator's command."""
        self._rank.mailbox.answer(order, answer)

    async def show(self, facts: dict[str, Any]) -> None:
        """Announce facts of the whole group together with those of this rank."""
        self._rank.shown = facts

    async def leave(self, drain_s: float) -> None:
        """Start to drain."""
        self._rank.leave(drain_s)

    async def quit(self) -> None:
        """Stop computing with the group."""
        await self._rank.quit()

    async def close_log(self) -> None:
        """End the decision log, if there is one."""
        await asyncio.to_thread(self._rank.close_log)

    async def end(self) -> None:
        """Release everything except the process."""
        for task in self._tasks:
            task.cancel()
        self._keeper.stop()
        await self._announcer.stop()
        if self._pool is not None:
            await self._pool.stop()
        await within(self._rank.stop(), STOP_DEADLINE_S)

    async def until_death(self) -> None:
        """Never returns: Ray ends the call of a waiting shell when the process ends."""
        await asyncio.Event().wait()

    def _make(self) -> RankRuntime:
        order = self._order
        if not self._has_attention:
            from serving.group.live.expert_runtime import ExpertRuntime

            return ExpertRuntime(order.config, self._place, self._keeper.secrets, self._view, gently=order.gently)
        from serving.instance.live.instance import Instance  # not needed in the process of an expert rank

        return Instance(order.config, self._place, self._keeper.secrets, self._view, gently=order.gently)

    @property
    def _has_attention(self) -> bool:
        return self._place.rank is not None and self._place.rank.role.has_attention

    async def _build(self) -> None:
        config = self._order.config
        await self._keeper.refresh()
        if config.kvcache.replicas:
            self._pool = follower = PoolViewFollower()
            follower.start()
            await follower.wait_for_servers(self._place.node, config.kvcache.replicas)
            self._view = lambda: follower.view
        await self._rank.build()

    async def _watch_lease(self) -> None:
        """End this process and remove the group's placement when the lease has lapsed."""
        while not self._rank.lapsed():  # noqa: ASYNC110 - time is the event
            await asyncio.sleep(LEASE_CHECK_S)
        logger.error("%s has had no shell for too long and exits", self._place.replica)
        self._tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        try:
            await self.end()
            await asyncio.to_thread(remove_placement, self._order.name.session, self._order.name.group)
            await asyncio.sleep(LAST_WORDS_S)
        finally:
            os._exit(0)

    def _end_unasked(self) -> None:
        """End this process if no shell has called it within the lease, as after a wait for a placement. On a thread."""
        logger.error("%s has never had a shell and exits", self._place.replica)
        try:
            remove_placement(self._order.name.session, self._order.name.group)
        finally:
            os._exit(0)

    def _describe(self) -> Member:
        host, port = self._rank.address or NO_ADDRESS
        return Member(
            replica=self._place.replica,
            pool=self._place.pool,
            node=self._place.node,
            host=host,
            port=port,
            incarnation=self._incarnation,
            facts={**self._rank.facts(), "actor": self._order.name.actor},
        )
