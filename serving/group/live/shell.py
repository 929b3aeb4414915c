"""The shell's loop: makes or takes over a group, renews the leases of its ranks, and keeps the group complete.

`serving.group.core.group_course` decides; a port calls the ranks.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from serving.errors import GroupError
from serving.group.core.group_course import (
    BeginDrain,
    Dismiss,
    Kill,
    Make,
    Regroup,
    mend_sides,
)
from serving.group.core.group_experts import ExpertRules
from serving.group.core.group_growth import MOST_TRIES, GroupGrowth, given_up, grown, resized, shut, unbuildable
from serving.group.core.group_sides import (
    GroupSide,
    GroupSizes,
    first_lease,
    waiting_spares,
    wanted_ranks,
    whole_sides,
)
from serving.group.core.group_takeover import next_lease, orphan
from serving.group.core.rank_life import RankName, outranks
from serving.group.live.group_moves import GroupMoves
from serving.group.live.group_port import (
    Begin,
    CloseLog,
    EndRank,
    Follow,
    GroupPort,
    GroupSearch,
    KnownRank,
    Leave,
    RankSilentError,
)
from serving.group.live.group_ranks import END_DEADLINE_S, GroupRanks
from serving.group.live.size_orders import SizeOrders
from serving.values.group import RankLease, RankPhase, RegroupOrder

logger = logging.getLogger(__name__)

RENEW_PERIOD_S = 0.5
SPREAD_PERIOD_S = 0.25
"""The same for ranks on several nodes [s]: their reports are the first news of a lost node."""
CALL_DEADLINE_S = 3.0
FOLLOW_DEADLINE_S = 30.0
SWEEP_PERIOD_S = 30.0


class GroupShell:
    """One shell. Belongs to one event loop.

    Args:
        session: name of the start of the system. pool: of the group.
        sizes: that the group may have, one for each role of its ranks.
        shell: Serve's unique name of this replica.
        port_of: makes the port, which reports each rank that dies.
        silence_s: a rank that does not respond for longer is frozen.
        drain_s: how long streams may continue at a draining rank, in case they end soon.
        rules: of moves of experts.
    """

    def __init__(
        self,
        session: str,
        pool: str,
        sizes: Sequence[GroupSizes],
        shell: str,
        port_of: Callable[[Callable[[RankName], None]], GroupPort],
        silence_s: float,
        drain_s: float,
        rules: ExpertRules | None = None,
        clock: Callable[[], float] = time.monotonic,
        period_s: float = RENEW_PERIOD_S,
    ) -> None:
        self._period_s = period_s
        self._session, self._pool, self._sizes = session, pool, sizes
        self._silence_s, self._drain_s = silence_s, drain_s
        self._clock = clock
        self.ranks = GroupRanks(port_of, clock)
        self._port = self.ranks.port
        self._births: dict[int, int] = {}
        self._closing = False
        self._search = GroupSearch(self._port, session, pool)
        self._orders = SizeOrders(self._port, sizes, self)
        self._growth = GroupGrowth()
        self.lease: RankLease = first_lease(shell, os.getpid(), 0, sizes)
        self._moves = GroupMoves(self._port, rules or ExpertRules(), lambda: self.lease, clock)
        self.group = ""
        """Its name, once there is one; contains the name of the shell that founded the group."""
        self.adopted = False
        self.lost = False
        """Whether another shell holds the group, because it considered this one dead."""
        self.formed = asyncio.Event()

    async def live(self) -> None:
        """Form a group and keep it complete until `close` is called, or another shell holds it.

        Raises: as `form`.
        """
        await self.form()
        swept_at = self._clock()
        while not self.lost and not self._closing:
            await self.ranks.wait(self._period_s)
            await self.round()
            if self._clock() - swept_at > SWEEP_PERIOD_S:
                swept_at = self._clock()
                with contextlib.suppress(RankSilentError):
                    found = await self._port.found()
                    await self._search.sweep(found, self.group, self.ranks.known, wanted_ranks(self.sides))
        if self.lost:
            self._moves.close()
            logger.error("another shell holds %s; this one exits", self.group)

    async def form(self) -> None:
        """Take over a group without a shell, or make one. Returns when all of its ranks serve, or after `close`.

        Effects: sets `formed`.
        Raises: GroupError if a rank of a new group cannot be built; the group has been removed then.
        """
        while not self._closing:
            await self._find()
            for _, known in sorted(self.ranks.known.items())[:MOST_TRIES]:
                await self._hold(known)  # if several shells try to take it over, one gets this rank
                if known.report is not None:
                    break
            while not self.lost and not self._closing:
                await self.round()
                if whole_sides(self.ranks.snapshots(), self.sides):
                    logger.info("%s serves with %d ranks, processes %s", self.group, self.lease.ranks, self.ranks.pids)
                    return self.formed.set()
                await self.ranks.wait(self._period_s)
            if self.lost:  # another shell was faster
                self.lost = False
                self.ranks.known.clear()
        return None

    async def round(self) -> None:
        """Request reports of all ranks, then carry out what completes the group.

        Raises: GroupError if the group is new and a rank cannot be built.
        """
        await self._hold_all()
        if self.lost or self._closing:
            return
        if not self.formed.is_set() and not self.adopted:
            problem = unbuildable(self.ranks.snapshots(), self._births, self.sides, MOST_TRIES)
            if problem:
                await self._remove()
                raise GroupError(problem)
        await self._orders.obey(self.ranks.known, self.ranks.snapshots(), self._moves.experts.pace.to_drain())
        await self._give_up_growing()
        due = partial(mend_sides, self.ranks.snapshots(), self.sides, self._silence_s)
        orders = due()
        self._moves.experts.journal.set_spares(waiting_spares(self.ranks.snapshots(), self.sides))
        if not orders and self._moves.stuck(self.ranks.known, self._numbers):
            orders = due(anew=True)
        fenced = True
        for order in orders:
            match order:
                case Make(rank, gently):
                    await self._make(rank, gently)
                case Kill():
                    fenced &= await self._kill(order)
                case BeginDrain(rank):
                    await self.ranks.tell(self.ranks.known[rank], Leave(self._drain_s), CALL_DEADLINE_S)
                case Dismiss(rank):
                    await self._end(rank)
                case Regroup() if fenced:
                    await self._regroup(order)

    async def close(self, drain_s: float, living: "asyncio.Task[None]") -> None:
        """Drain all ranks, end them, and remove their placements.

        Args:
            living: the task of `live`, which ends first.
        """
        self._closing = True
        self.ranks.wake()
        await asyncio.wait({living})
        self._moves.close()
        if self.lost or not self.group:
            return
        await self.resize(shut(self.lease))
        await self.ranks.tell_all(Leave(drain_s), CALL_DEADLINE_S)
        while any(not known.dead and known.serves for known in self.ranks.known.values()):
            await self.ranks.wait(self._period_s)
            await asyncio.gather(*(self._hold(known) for known in self.ranks.known.values()))
        await self.ranks.end_all()
        await self._remove()

    @property
    def sides(self) -> list[GroupSide]:
        """Implements `SizedGroup.sides`."""
        return [one.side(self.lease) for one in self._sizes]

    @property
    def _numbers(self) -> int:
        """Number behind the highest rank of the group's size."""
        return self.sides[-1].full

    async def resize(self, lease: RankLease) -> None:
        """Implements `SizedGroup.resize`."""
        self.lease = lease
        self._growth = GroupGrowth(self.sides, self._births)
        await self._hold_all()
        self.ranks.wake()

    async def drain(self, rank: int) -> bool:
        """Implements `SizedGroup.drain`."""
        return await self.ranks.tell(self.ranks.known[rank], Leave(self._drain_s), CALL_DEADLINE_S)

    async def close_logs(self) -> None:
        """Have all decision logs ended."""
        await self.ranks.tell_all(CloseLog(), END_DEADLINE_S)

    # ---- inside ------------------------------------------------------------------------------------------------------

    async def _find(self) -> None:
        """Choose a group without a shell, or a new one. Effects: sets its name, lease and known ranks."""
        while True:
            try:
                found = await self._port.found()
                await self._search.sweep(found, self.group, self.ranks.known, wanted_ranks(self.sides))
                groups = await self._search.groups(found, RankLease(self.lease.shell, self.lease.pid, 0))
            except RankSilentError:
                logger.exception("cannot look for groups; trying again")
                if self._closing:
                    return
                await self.ranks.wait(self._period_s)
            else:
                break
        taken = orphan(groups, found.shells - {self.lease.shell})  # its own group, if another shell has it in part
        self.adopted = taken is not None
        self.group = taken.name if taken is not None else f"{self._pool}#{self.lease.shell}"
        self.lease = next_lease(taken, self.lease, self._sizes)
        for name in sorted(found.ranks):
            if name.group == self.group:
                if name.rank in self.ranks.known:  # it is ending
                    await self.ranks.end_process(self.ranks.known[name.rank])
                self.ranks.known[name.rank] = KnownRank(name, self._clock())
                self._births[name.rank] = name.birth
        self._growth = GroupGrowth(self.sides, self._births)

    async def _hold_all(self) -> None:
        await asyncio.gather(*(self._hold(known) for known in list(self.ranks.known.values()) if not known.dead))

    async def _hold(self, known: KnownRank) -> None:
        report = await self.ranks.hold(known, self._moves.lease_of(known.name.rank))
        self.lost |= report is not None and outranks(report.lease, self.lease)

    async def _make(self, rank: int, gently: bool) -> None:
        birth = self._births[rank] = self._births.get(rank, 0) + 1
        name = RankName(self._session, self.group, rank, birth)
        if await self.ranks.did(self._port.make(name, self.lease, gently=gently), f"make {name.actor}"):
            self.ranks.known[rank] = KnownRank(name, self._clock())

    async def _kill(self, lost: Kill) -> bool:
        """Returns: False if its end must be confirmed and is not: it could write into its peers' windows."""
        known = self.ranks.known[lost.rank]
        logger.warning("%s %s; replacing it", known.name.replica, lost.reason)
        if lost.fenced and not known.dead:
            self.ranks.end_later(known)
        elif not known.dead and not await self.ranks.end_process(known):
            return False
        self._moves.experts.journal.lost(lost.kind.value)
        await self._forget(lost.rank)
        return True

    async def _end(self, rank: int) -> None:
        """End a rank that is not a member, and remove its placement if it was added."""
        known = self.ranks.known[rank]
        if known.report is not None and known.report.phase is RankPhase.LEFT:
            await self.ranks.tell(known, EndRank(), END_DEADLINE_S)
        if await self.ranks.end_process(known):
            logger.info("%s has left", known.name.replica)
            await self._forget(rank)

    async def _forget(self, rank: int) -> None:
        """Drop a rank whose process has ended."""
        del self.ranks.known[rank]
        if rank not in wanted_ranks(self.sides):
            await self.ranks.did(self._port.remove(self.group, rank), f"remove the place of rank {rank}")
        self.ranks.wake()  # the next round comes at once, and makes another

    async def _give_up_growing(self) -> None:
        """Return to the former size if a new rank cannot be built."""
        lease = grown(self.lease, self.ranks.snapshots(), self.sides)
        if lease != self.lease:
            self.lease = lease
            self._growth = GroupGrowth(self.sides, self._births)
        side = self._growth.hopeless(self._births)
        if side is not None:
            self._moves.experts.journal.not_grown()
            logger.error("%s", given_up(self.group, side))
            await self.resize(resized(self.lease, side.role, side.former))

    async def _regroup(self, due: Regroup) -> None:
        """Have all members follow, then start the epoch. If a member does not follow, a later round regroups again.

        The epoch starts at newcomers first, so that serving ranks continue in the old one while a new process warms up.
        """
        known = [self.ranks.known[offer.rank] for offer in due.members]
        new_map = await self._moves.regroup(due, known, self._numbers)
        if new_map is None:
            return
        order = RegroupOrder(due.epoch, new_map, tuple(msgspec.structs.replace(one, held=()) for one in due.members))
        logger.info("%s: epoch %d with ranks %s", self.group, order.epoch, list(order.members))
        left = [self.ranks.known[rank] for rank in due.left]
        if not all(await asyncio.gather(*(self.ranks.tell(one, Follow(order), FOLLOW_DEADLINE_S) for one in known))):
            return
        if due.keeps_epoch:
            self._moves.admit(order, known)
        if all(await asyncio.gather(*(self.ranks.quit(one) for one in left))):
            new = [one for one in known if one.report is not None and one.report.phase is RankPhase.OFFERED]
            for some in (new, [one for one in known if one not in new]):
                await asyncio.gather(*(self.ranks.tell(one, Begin(order), CALL_DEADLINE_S) for one in some))
            await asyncio.gather(*(self._end(one.name.rank) for one in left))

    async def _remove(self) -> None:
        for known in self.ranks.known.values():
            await self.ranks.end_process(known)
        await self.ranks.did(self._port.remove(self.group), f"remove {self.group}")
