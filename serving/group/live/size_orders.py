"""Operators' orders about the size of a group: found in the reports of ranks, checked, passed on, answered.

Decides nothing, see `resize_refusal` and `drain_refusal` in `serving.group.core.group_course`.
"""

import logging
from collections.abc import Collection, Mapping
from typing import Protocol

from serving.group.core.group_course import GroupSizes, RankSnapshot, drain_refusal, resize_refusal
from serving.group.live.group_port import AnswerOperator, GroupPort, KnownRank, RankDeadError, RankSilentError
from serving.values.group import DrainRank, OrderAnswer, PostedOrder, ResizeGroup

logger = logging.getLogger(__name__)

ANSWER_DEADLINE_S = 3.0
MOST_SEEN = 100


class SizedGroup(Protocol):
    """A shell as orders change it."""

    group: str

    @property
    def size(self) -> int:
        """Ranks that the group is to have."""
        ...

    async def resize(self, size: int) -> None:
        """From now on it is to have so many, and its ranks know."""
        ...

    async def drain(self, rank: int) -> bool:
        """Have a rank hand on its streams and leave. Returns: whether it was told."""
        ...


class SizeOrders:
    """Orders of one group. Belongs to the event loop of its shell."""

    def __init__(self, port: GroupPort, sizes: GroupSizes, of: SizedGroup) -> None:
        self._port, self._sizes, self._of = port, sizes, of
        self._seen: dict[str, None] = {}

    async def obey(
        self, known: Mapping[int, KnownRank], sights: Mapping[int, RankSnapshot], slow: Collection[int] = ()
    ) -> None:
        """Carry out what waits at ranks, each order once.

        Args:
            slow: ranks that are to be drained without an order, as soon as that can be.
        """
        for rank in slow:
            if not drain_refusal(sights, self._of.size, rank):
                logger.warning("%s: rank %d is slow: it drains, another process replaces it", self._of.group, rank)
                await self._of.drain(rank)
        for one in known.values():
            for posted in one.report.orders if one.report is not None else ():
                if isinstance(posted.order, ResizeGroup | DrainRank) and posted.id not in self._seen:
                    await self._obey(one, posted, sights)

    async def _obey(self, one: KnownRank, posted: PostedOrder, sights: Mapping[int, RankSnapshot]) -> None:
        self._seen[posted.id] = None
        if len(self._seen) > MOST_SEEN:
            del self._seen[next(iter(self._seen))]
        match posted.order:
            case ResizeGroup(ranks):
                answer = await self._resize(ranks, sights)
            case DrainRank(rank):
                answer = await self._drain(rank, sights)
            case _:
                return
        logger.info("%s: operator: %s: %s", self._of.group, posted.order, answer.reason)
        try:
            await self._port.tell(one.name, AnswerOperator(posted.id, answer), ANSWER_DEADLINE_S)
        except (RankDeadError, RankSilentError) as error:
            logger.warning("%s cannot report to the operator: %s", one.name.replica, error)

    async def _resize(self, size: int, sights: Mapping[int, RankSnapshot]) -> OrderAnswer:
        before = self._of.size
        offers = [sight.report.offer for sight in sights.values() if sight.report and sight.report.offer]
        experts = max((offer.experts for offer in offers), default=size)
        refusal = resize_refusal(size, self._sizes, experts)
        if refusal:
            return OrderAnswer(False, refusal, detail={"kind": "invalid"})
        if size > before:
            try:
                room = (await self._port.found()).room.get(self._of.group, before)
            except RankSilentError as error:
                return OrderAnswer(False, f"{error}; try again", detail={"kind": "unavailable"})
            if size > room:
                reason = f"{size} ranks of {self._of.group} do not fit on its node, {max(room, before)} would"
                return OrderAnswer(False, reason, detail={"kind": "no_room", "fits": max(room, before)})
        if size != before:
            await self._of.resize(size)
        return OrderAnswer(
            True, f"{self._of.group}: {before} -> {size} ranks", detail={"before": before, "ranks": size}
        )

    async def _drain(self, rank: int, sights: Mapping[int, RankSnapshot]) -> OrderAnswer:
        spares = self._sizes.spares_of(self._of.size)
        refusal = drain_refusal(sights, self._of.size, rank, spares)
        if refusal:
            return OrderAnswer(False, refusal, unknown=not 0 <= rank < self._of.size + spares)
        if not await self._of.drain(rank):
            return OrderAnswer(False, f"rank {rank} does not answer; try again", detail={"kind": "unavailable"})
        return OrderAnswer(True, f"{self._of.group}: rank {rank} drains, another process takes its place")
