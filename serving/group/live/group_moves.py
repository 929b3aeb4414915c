"""Driver of `GroupExperts` in a shell: sends its commands to ranks, and returns their events to it.

It makes no decisions, never blocks the shell, and is not on the path of a token or of a step.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from serving.group.core.group_course import Regroup
from serving.group.core.group_experts import ExpertRules, GroupExperts
from serving.group.core.operator_plan import load_answer
from serving.group.live.group_port import (
    AnswerOperator,
    GroupPort,
    KnownRank,
    MoveExperts,
    RankDeadError,
    RankSilentError,
    ShowFacts,
)
from serving.values.expert_map import (
    CountRows,
    ExpertMap,
    ExpertOrder,
    FetchExpert,
    LoadExpert,
    MoveOrder,
    MovesEnded,
    SwitchMap,
)
from serving.values.group import (
    MoveOneExpert,
    OrderAnswer,
    PlannedOrder,
    RankLease,
    ReadLoad,
    RebalanceExperts,
    RegroupOrder,
)

logger = logging.getLogger(__name__)

STOP_DEADLINE_S = 3.0
"""A rank responds after the next piece of a running copy [s]."""
MOVE_DEADLINE_S = 600.0
"""Longer than any rebalance, which has its own deadline; the death of a rank ends the wait [s]."""
COUNT_DEADLINE_S = 2.0
SHOW_DEADLINE_S = 2.0
MOST_SEEN = 100


class GroupMoves:
    """Experts of one group. Belongs to the event loop of its shell.

    Args:
        lease: returns the present lease of this shell.
    """

    def __init__(
        self, port: GroupPort, rules: ExpertRules, lease: Callable[[], RankLease], clock: Callable[[], float]
    ) -> None:
        self._port, self._lease, self._clock = port, lease, clock
        self.experts = GroupExperts(rules, time.time() - time.monotonic())
        self._members: dict[int, KnownRank] = {}
        """Members under the latest map."""
        self._tasks = _Background()
        self._planning = False
        self._timer: asyncio.TimerHandle | None = None
        self._seen: dict[str, None] = {}
        """Operators' commands that were read."""

    async def regroup(self, due: Regroup, members: Sequence[KnownRank], ranks: int) -> ExpertMap | None:
        """The map of a regrouping. Effects: abandons running moves, unless the epoch stays: then so does the map.

        Args:
            members: those that `due` names.
            ranks: of the group, including missing ones.
        Returns: None if a member has not reported its slots; a later round tries again.
        """
        if due.keeps_epoch:
            if self.experts.newest is None:
                await self._adopt([one for one in members if one.serves], ranks)
            return self.experts.newest
        self._take(self.experts.abandon("the group's members have changed", self._clock()))
        if not await self._know(members):
            return None
        self._members = {one.name.rank: one for one in members}
        found = self.experts.regroup(due.members, ranks, due.version, self._clock(), lacks_rank=due.lacks_rank)
        if found.masked_count:
            logger.warning("%d experts are masked until a rank has them: tokens may differ", found.masked_count)
        elif self.experts.mask_refused:
            logger.warning("no expert is masked, reserves are used: %s", self.experts.mask_refused)
        return found

    def admit(self, order: RegroupOrder, members: Sequence[KnownRank]) -> None:
        """Follow members that have received an order of the present epoch."""
        joined = [one for one in members if one.name.rank not in self._members or not one.serves]
        self._members = {one.name.rank: one for one in members}
        self._take(self.experts.admit(order.offers, order.version, self._clock()))
        newest = self.experts.newest
        if newest is not None and newest.version > order.version:
            for one in joined:
                self._tasks.start(self._ask(one, (SwitchMap(newest),), MOVE_DEADLINE_S))

    def stuck(self, known: Mapping[int, KnownRank], ranks: int) -> bool:
        """Start whatever is due in a computing group. Never blocks.

        Args:
            known: all ranks with a process.
            ranks: of the group.
        Returns: whether the group must be regrouped, because moves or a new map are stuck.
        """
        members = [one for _, one in sorted(known.items()) if one.serves]
        if not members:  # all ranks wait for their places
            return False
        now = self._clock()
        reports = {one.name.rank: one.report for one in members if one.report is not None}
        if self.experts.ledger is None:
            self._once(partial(self._adopt, members, ranks))
            return False
        trouble = self.experts.confirm({rank: report.using for rank, report in reports.items()}, now)
        for one in members:
            for posted in one.report.orders if one.report is not None else ():
                order = posted.order
                if posted.id in self._seen:
                    continue
                if isinstance(order, ReadLoad):
                    self._see(posted.id)
                    answer = load_answer(self.experts.load, order.after, now, self.experts.epoch_s)
                    self._tasks.start(self._answer(one, posted.id, answer))
                elif isinstance(order, RebalanceExperts | MoveOneExpert):
                    self._once(partial(self._obey, one, posted.id, order))
        if not self._planning and self.experts.count_due(now):
            self._once(self._rebalance)
        if self.experts.journal.changed:
            facts = self.experts.journal.shown(now)
            for one in members:
                self._tasks.start(self._tell(one, facts))
        if trouble is not None:
            logger.error("%s; the group starts another epoch", trouble)
        return trouble is not None

    def lease_of(self, rank: int) -> RankLease:
        """Lease of this shell for one rank, with its share of sequences."""
        return msgspec.structs.replace(self._lease(), share=self.experts.pace.share(rank))

    def close(self) -> None:
        """Cancel the shell's tasks; ranks finish running commands."""
        if self._timer is not None:
            self._timer.cancel()
        self._tasks.cancel()

    # ---- calls to ranks -----------------------------------------------------------------------------------------

    async def _know(self, members: Sequence[KnownRank]) -> bool:
        """Request the contents of serving members' slots where unknown. Returns: whether all are known."""
        unknown = [one for one in members if one.serves and not self._is_known(one)]
        if unknown:
            over: tuple[ExpertOrder, ...] = (MovesEnded("another shell has taken over"),)
            await asyncio.gather(*(self._ask(one, over, STOP_DEADLINE_S) for one in unknown))
        return all(self._is_known(one) for one in unknown)

    async def _adopt(self, members: Sequence[KnownRank], ranks: int) -> None:
        """Give a group that was taken over a map known to this shell."""
        if await self._know(members) and self.experts.ledger is None:
            reports = [one.report for one in members if one.report is not None]
            offers = [one.offer for one in reports if one.offer is not None]
            self._members = {one.name.rank: one for one in members}
            version = 1 + max(one.version for one in reports)
            self._take(self.experts.adopt(offers, ranks, version, self._clock()))

    async def _rebalance(self) -> None:
        """Count rows, and move experts if that gains enough."""
        await asyncio.gather(*(self._ask(one, (CountRows(),), COUNT_DEADLINE_S) for one in self._members.values()))
        ledger = self.experts.ledger
        if ledger is None or ledger.busy:
            return
        version, now = ledger.map.version, self._clock()
        plan = await asyncio.to_thread(self.experts.plan, now)
        if plan is not None:
            self._take(self.experts.begin(plan, version, "load", self.experts.rules.policy, self._clock()))

    async def _obey(self, one: KnownRank, posted: str, order: PlannedOrder) -> None:
        """Carry out an operator's command, and respond at the rank where it was posted."""
        self._see(posted)
        ledger = self.experts.ledger
        version = ledger.map.version if ledger is not None else 0
        plan = await asyncio.to_thread(self.experts.plan_order, order, self._clock())
        answer, effects = self.experts.begin_order(order, plan, version, self._clock())
        logger.info("operator: %s: %s", order, answer.reason)
        self._take(effects)
        await self._answer(one, posted, answer)

    async def _answer(self, one: KnownRank, posted: str, answer: OrderAnswer) -> None:
        try:
            await self._port.tell(one.name, AnswerOperator(posted, answer), SHOW_DEADLINE_S)
        except (RankDeadError, RankSilentError) as error:
            logger.warning("%s cannot report to the operator: %s", one.name.replica, error)

    async def _tell(self, one: KnownRank, facts: dict[str, Any]) -> None:
        try:
            await self._port.tell(one.name, ShowFacts(facts), SHOW_DEADLINE_S)
        except (RankDeadError, RankSilentError):
            self.experts.journal.changed = True  # try again at the next round

    async def _ask(self, one: KnownRank, orders: tuple[ExpertOrder, ...], limit_s: float) -> None:
        """Send commands about experts to a rank, and take its events. A silent rank gets no second call."""
        assert one.report is not None
        rank, pid = one.name.rank, one.report.pid
        try:
            events = await self._port.tell(one.name, MoveExperts(self._lease(), orders), limit_s)
        except (RankDeadError, RankSilentError) as error:
            logger.warning("%s does not respond about experts: %s", one.name.replica, error)
            return
        for event in events:
            self._take(self.experts.on(rank, pid, event, self._clock()))

    def _see(self, posted: str) -> None:
        self._seen[posted] = None
        if len(self._seen) > MOST_SEEN:
            del self._seen[next(iter(self._seen))]

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _take(self, effects: Sequence[MoveOrder]) -> None:
        """Send commands: those about one slot to its rank, others to all members."""
        for effect in effects:
            match effect:
                case FetchExpert(move) | LoadExpert(move):
                    to = [self._members[move.to.rank]] if move.to.rank in self._members else []
                case SwitchMap() | MovesEnded():
                    to = list(self._members.values())
            if isinstance(effect, MovesEnded):
                logger.info("experts have moved: %s", effect.reason or "all that was to be")
            for one in to:
                self._tasks.start(self._ask(one, (effect,), MOVE_DEADLINE_S))
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wake = self.experts.next_wake()
        delay_s = max(0.0, wake - self._clock()) if wake is not None else None
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(delay_s, self._tick) if delay_s is not None else None

    def _tick(self) -> None:
        self._take(self.experts.tick(self._clock()))

    def _is_known(self, one: KnownRank) -> bool:
        return one.report is not None and self.experts.is_known(one.name.rank, one.report.pid)

    def _once(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run work that makes plans, unless such work is running."""
        if not self._planning:
            self._planning = True
            self._tasks.start(self._planned(work()))

    async def _planned(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self._planning = False


class _Background:
    """Tasks whose results are not awaited."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the loop of the caller, and log its exception if it raises one."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Cancel all of them."""
        for task in self._tasks:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("moves of experts: %s", task.exception(), exc_info=task.exception())
