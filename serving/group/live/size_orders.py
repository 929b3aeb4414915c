"""Operators' orders about the size of a group: found in the reports of ranks, checked, passed on, answered.

Decides nothing, see `resize_refusal` and `drain_refusal` in `serving.group.core.group_sides`.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from serving.group.core.group_growth import change_shown, resize_plan, switched
from serving.group.core.group_sides import (
    GroupSide,
    GroupSizes,
    RankSnapshot,
    drain_refusal,
    experts_of,
    resize_refusal,
    switch_refusal,
    wanted_ranks,
)
from serving.group.live.group_port import AnswerOperator, GroupPort, KnownRank, RankDeadError, RankSilentError
from serving.values.group import DrainRank, OrderAnswer, PostedOrder, RankLease, ResizeGroup, SizeOrder, SwitchRole

logger = logging.getLogger(__name__)

ANSWER_DEADLINE_S = 3.0
MOST_SEEN = 100


class SizedGroup(Protocol):
    """A shell as commands change it."""

    group: str
    lease: RankLease

    @property
    def sides(self) -> Sequence[GroupSide]:
        """Sides of the group as the lease requests them."""
        ...

    async def resize(self, lease: RankLease) -> None:
        """Use a lease with other sizes from now on, and send it to all ranks."""
        ...

    async def drain(self, rank: int) -> bool:
        """Have a rank hand on its streams and leave. Returns: whether it was told."""
        ...


class SizeOrders:
    """Orders of one group. Belongs to the event loop of its shell.

    Args:
        sizes: of each side.
    """

    def __init__(self, port: GroupPort, sizes: Sequence[GroupSizes], of: SizedGroup) -> None:
        self._port, self._sizes, self._of = port, {one.role: one for one in sizes}, of
        self._seen: dict[str, None] = {}

    async def obey(
        self, known: Mapping[int, KnownRank], sights: Mapping[int, RankSnapshot], slow: Collection[int] = ()
    ) -> None:
        """Carry out what waits at ranks, each order once.

        Args:
            slow: ranks that are to be drained without an order, as soon as that can be.
        """
        for rank in slow:
            if not drain_refusal(sights, self._of.sides, rank):
                logger.warning("%s: rank %d is slow: it drains, another process replaces it", self._of.group, rank)
                await self._of.drain(rank)
        for one in known.values():
            for posted in one.report.orders if one.report is not None else ():
                if isinstance(posted.order, SizeOrder) and posted.id not in self._seen:
                    await self._obey(one, posted, sights)

    async def _obey(self, one: KnownRank, posted: PostedOrder, sights: Mapping[int, RankSnapshot]) -> None:
        self._seen[posted.id] = None
        if len(self._seen) > MOST_SEEN:
            del self._seen[next(iter(self._seen))]
        match posted.order:
            case ResizeGroup():
                answer = await self._resize(posted.order, sights)
            case SwitchRole():
                answer = await self._switch(posted.order, sights)
            case DrainRank(rank):
                answer = await self._drain(rank, sights)
            case _:
                return
        logger.info("%s: operator: %s: %s", self._of.group, posted.order, answer.reason)
        try:
            await self._port.tell(one.name, AnswerOperator(posted.id, answer), ANSWER_DEADLINE_S)
        except (RankDeadError, RankSilentError) as error:
            logger.warning("%s cannot report to the operator: %s", one.name.replica, error)

    async def _resize(self, order: ResizeGroup, sights: Mapping[int, RankSnapshot]) -> OrderAnswer:
        lease, refusal = resize_plan(self._of.lease, self._sizes.values(), order, experts_of(sights))
        return OrderAnswer(False, refusal, detail={"kind": "invalid"}) if refusal else await self._change(lease)

    async def _switch(self, order: SwitchRole, sights: Mapping[int, RankSnapshot]) -> OrderAnswer:
        refusal = switch_refusal(sights, self._of.sides, order.rank, order.role)
        if refusal:
            known = any(side.has(order.rank) for side in self._of.sides) and order.rank in sights
            return OrderAnswer(False, refusal, unknown=not known)
        lease = switched(self._of.lease, order.role)
        refusal = resize_refusal(lease.of(order.role)[0], self._sizes[order.role], experts_of(sights))
        return OrderAnswer(False, refusal, detail={"kind": "invalid"}) if refusal else await self._change(lease)

    async def _change(self, lease: RankLease) -> OrderAnswer:
        """Use another lease, if its ranks fit."""
        before = self._of.lease
        for role in self._sizes:
            (was, _), (size, _) = before.of(role), lease.of(role)
            if size <= was:
                continue
            try:
                room = max(was, (await self._port.found()).room.get((self._of.group, role), was))
            except RankSilentError as error:
                return OrderAnswer(False, f"{error}; try again", detail={"kind": "unavailable"})
            if size > room:
                reason = f"{size} ranks of {self._of.group} do not fit on its node, {room} would"
                return OrderAnswer(False, reason, detail={"kind": "no_room", "fits": room})
        if lease != before:
            await self._of.resize(lease)
        detail = {"before": before.ranks, "ranks": lease.ranks, "sizes": [lease.of(role)[0] for role in self._sizes]}
        return OrderAnswer(True, f"{self._of.group}: {change_shown(before, lease, self._sizes)}", detail=detail)

    async def _drain(self, rank: int, sights: Mapping[int, RankSnapshot]) -> OrderAnswer:
        refusal = drain_refusal(sights, self._of.sides, rank)
        if refusal:
            return OrderAnswer(False, refusal, unknown=rank not in wanted_ranks(self._of.sides))
        if not await self._of.drain(rank):
            return OrderAnswer(False, f"rank {rank} does not answer; try again", detail={"kind": "unavailable"})
        return OrderAnswer(True, f"{self._of.group}: rank {rank} drains, another process takes its place")
