"""The shell's loop: it makes a group or takes one over, renews its ranks' leases, and keeps it whole.

Decides nothing, see `serving.group.core.group_course`; knows no Ray, a port reaches the ranks.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from serving.deadline import within
from serving.errors import GroupError
from serving.group.core.group_course import (
    BeginDrain,
    Dismiss,
    GroupSizes,
    Kill,
    Make,
    RankSnapshot,
    Regroup,
    mend,
    orphan,
    waiting_spares,
    whole,
)
from serving.group.core.group_experts import ExpertRules
from serving.group.core.group_growth import MOST_TRIES, GroupGrowth, former_size
from serving.group.core.rank_names import RankName
from serving.group.live.group_moves import GroupMoves
from serving.group.live.group_port import (
    Begin,
    CloseLog,
    EndRank,
    Follow,
    GroupPort,
    Leave,
    QuitGroup,
    RankCall,
    RankDeadError,
    RankSilentError,
)
from serving.group.live.group_search import GroupSearch
from serving.group.live.known_rank import KnownRank
from serving.group.live.size_orders import SizeOrders
from serving.values.group import RankLease, RankPhase, RegroupOrder

logger = logging.getLogger(__name__)

RENEW_PERIOD_S = 0.5
CALL_DEADLINE_S = 3.0
HOLD_DEADLINE_S = 0.5
"""A rank that answers later is heard in a later round: a frozen one must not hold up what the others say of it."""
FOLLOW_DEADLINE_S = 30.0
SWEEP_PERIOD_S = 30.0
END_DEADLINE_S = 10.0
"""A rank needs a few seconds at most to give back what it has; then it is killed."""


class GroupShell:
    """One shell. Belongs to one event loop.

    Args:
        session: the start of the system. pool: of the group.
        sizes: that the group may have.
        shell: Serve's unique name of the replica that this is.
        port_of: makes the port, which tells of each rank that dies.
        silence_s: a rank that does not answer for longer is frozen.
        drain_s: how long streams of a rank that leaves may go on there, in case they end soon.
        rules: of moves of experts.
    """

    def __init__(
        self,
        session: str,
        pool: str,
        sizes: GroupSizes,
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
        self._known: dict[int, KnownRank] = {}
        self._births: dict[int, int] = {}
        self._news = asyncio.Event()
        self._closing = False
        self._port = port_of(self._died)
        self._search = GroupSearch(self._port, session, pool)
        self._orders = SizeOrders(self._port, sizes, self)
        self._growth = GroupGrowth()
        self.lease: RankLease = RankLease(shell, os.getpid(), 0, sizes.first)
        self._moves = GroupMoves(self._port, rules or ExpertRules(), lambda: self.lease, clock)
        self.group = ""
        """Its name, once there is one; that of a group that was taken over tells who made it."""
        self.adopted = False
        self.lost = False
        """Whether another shell holds the group: this one was taken for dead."""
        self.formed = asyncio.Event()

    async def live(self) -> None:
        """Form a group and keep it whole until `close` is called, or another shell holds it.

        Raises: as `form`.
        """
        await self.form()
        swept_at = self._clock()
        while not self.lost and not self._closing:
            await self._wait()
            await self.round()
            if self._clock() - swept_at > SWEEP_PERIOD_S:
                swept_at = self._clock()
                with contextlib.suppress(RankSilentError):
                    await self._search.sweep(
                        await self._port.found(), self.group, self._known, self._sizes.room_of(self.size)
                    )
        if self.lost:
            self._moves.close()
            logger.error("another shell holds %s; this one ends", self.group)

    async def form(self) -> None:
        """Take over a group that lacks a shell, or make one. Returns when all its ranks serve, or it is to be closed.

        Effects: sets `formed`.
        Raises: GroupError if a rank of a new group cannot be built; nothing of it is left then.
        """
        while not self._closing:
            await self._find()
            await self._claim()
            while not self.lost and not self._closing:
                await self.round()
                if whole(self._sights(), self.size, self._spares):
                    logger.info("%s serves, of %d ranks, processes %s", self.group, self.size, self.pids)
                    return self.formed.set()
                await self._wait()
            self.lost, self._known = False, {} if self.lost else self._known  # another shell was faster
        return None

    async def round(self) -> None:
        """Ask all ranks, then do what makes the group whole, or keeps it so.

        Raises: GroupError if it never was, and a rank cannot be built.
        """
        await self._hold_all()
        if self.lost or self._closing:
            return
        if not self.formed.is_set() and not self.adopted:
            await self._give_up_if_one_failed()
        await self._orders.obey(self._known, self._sights(), self._moves.experts.pace.to_drain())
        await self._give_up_growing()
        due = partial(mend, self._sights(), self.size, self._silence_s, former=self._growth.former, spares=self._spares)
        orders = due()
        self._moves.experts.journal.set_spares(waiting_spares(self._sights(), self.size, self._spares))
        if not orders and self._moves.stuck(self._known, self.size):
            orders = due(anew=True)
        fenced = True
        for order in orders:
            match order:
                case Make(rank, gently):
                    await self._make(rank, gently)
                case Kill():
                    fenced &= await self._kill(order)
                case BeginDrain(rank):
                    await self._tell(self._known[rank], Leave(self._drain_s), CALL_DEADLINE_S)
                case Dismiss(rank):
                    await self._end(rank)
                case Regroup() if fenced:
                    await self._regroup(order)

    async def close(self, drain_s: float, living: "asyncio.Task[None]") -> None:
        """Drain all ranks, end them, and give their places back. Nothing is left.

        Args:
            living: runs `live`; it ends first.
        """
        self._closing = True
        self._news.set()
        await asyncio.wait({living})
        self._moves.close()
        if self.lost or not self.group:
            return
        await self.resize(0)
        await self._tell_all(Leave(drain_s), CALL_DEADLINE_S)
        while any(not known.dead and known.serves for known in self._known.values()):
            await self._wait()
            await asyncio.gather(*(self._hold(known) for known in self._known.values()))
        await self._tell_all(EndRank(), END_DEADLINE_S)
        await self._remove()

    @property
    def _spares(self) -> int:
        return self._sizes.spares_of(self.size)

    @property
    def size(self) -> int:
        """Implements `SizedGroup.size`."""
        return self.lease.size

    async def resize(self, size: int) -> None:
        """Implements `SizedGroup.resize`; 0 = it is to end."""
        lease = self.lease
        former = former_size(lease.size, lease.former, size)
        self._growth = GroupGrowth(former, self._births)
        self.lease = RankLease(lease.shell, lease.pid, lease.term + 1, size, former)
        await self._hold_all()
        self._news.set()

    async def drain(self, rank: int) -> bool:
        """Implements `SizedGroup.drain`."""
        return await self._tell(self._known[rank], Leave(self._drain_s), CALL_DEADLINE_S)

    async def close_logs(self) -> None:
        """Have all decision logs ended."""
        await self._tell_all(CloseLog(), END_DEADLINE_S)

    @property
    def pids(self) -> list[int]:
        """Processes of the ranks that have answered."""
        return [known.report.pid for _, known in sorted(self._known.items()) if known.report is not None]

    # ---- inside ------------------------------------------------------------------------------------------------------

    async def _find(self) -> None:
        """Choose a group: one that lacks a shell, or a new one. Effects: sets name, term and what is known of ranks."""
        while True:
            try:
                found = await self._port.found()
                await self._search.sweep(found, self.group, self._known, self._sizes.room_of(self.size))
                groups = await self._search.groups(found, RankLease(self.lease.shell, self.lease.pid, 0))
            except RankSilentError:
                logger.exception("cannot look for groups; trying again")
                if self._closing:
                    return
                await self._wait()
            else:
                break
        taken = orphan(groups, found.shells - {self.lease.shell})  # one that is its own it has half lost to another
        self.adopted = taken is not None
        self.group = taken.name if taken is not None else f"{self._pool}#{self.lease.shell}"
        term = taken.term + 1 if taken is not None else 1
        size = taken.size if taken is not None and taken.size is not None else self._sizes.first
        self.lease = RankLease(self.lease.shell, self.lease.pid, term, size, taken.former if taken is not None else 0)
        for name in sorted(found.ranks):
            if name.group == self.group:
                if name.rank in self._known:  # its end is under way
                    await self._end_process(self._known[name.rank])
                self._known[name.rank] = KnownRank(name, self._clock())
                self._births[name.rank] = name.birth
        self._growth = GroupGrowth(self.lease.former, self._births)

    async def _claim(self) -> None:
        """Take a group over by its first rank that answers: of several shells that try at once one gets that one."""
        for _, known in sorted(self._known.items())[:MOST_TRIES]:
            await self._hold(known)
            if known.report is not None:
                return

    async def _hold_all(self) -> None:
        await asyncio.gather(*(self._hold(known) for known in list(self._known.values()) if not known.dead))

    async def _hold(self, known: KnownRank) -> None:
        try:
            known.report = report = await self._port.hold(
                known.name, self._moves.lease_of(known.name.rank), HOLD_DEADLINE_S
            )
        except RankDeadError:
            known.dead = True
        except RankSilentError as error:
            logger.debug("%s: %s", known.name.replica, error)
        else:
            known.heard_at = self._clock()
            holder, own = report.lease, self.lease  # one of a lower term answers what was asked before
            self.lost |= holder.term > own.term or (holder.term == own.term and holder.shell != own.shell)

    async def _give_up_if_one_failed(self) -> None:
        for rank, known in sorted(self._known.items()):
            failed = known.report is not None and known.report.phase is RankPhase.FAILED
            if failed or known.name.birth > MOST_TRIES:
                await self._remove()
                why = known.report.problem if failed and known.report else f"its process ended {MOST_TRIES} times"
                raise GroupError(f"rank {rank} of {self.size}: {why}")

    async def _make(self, rank: int, gently: bool) -> None:
        birth = self._births[rank] = self._births.get(rank, 0) + 1
        name = RankName(self._session, self.group, rank, birth)
        if await self._did(self._port.make(name, self.lease, gently=gently), f"make {name.actor}"):
            self._known[rank] = KnownRank(name, self._clock())

    async def _kill(self, lost: Kill) -> bool:
        """Returns: whether it is dead for certain: alive it could still write into its peers' windows."""
        known = self._known[lost.rank]
        logger.warning("%s %s; replacing it", known.name.replica, lost.reason)
        if not known.dead and not await self._end_process(known):
            return False
        self._moves.experts.journal.lost(lost.kind.value)
        await self._forget(lost.rank)
        return True

    async def _end(self, rank: int) -> None:
        """End a rank that computes with nobody, and give its place back if it was added."""
        known = self._known[rank]
        if known.report is not None and known.report.phase is RankPhase.LEFT:
            await self._tell(known, EndRank(), END_DEADLINE_S)
        if await self._end_process(known):
            logger.info("%s has left", known.name.replica)
            await self._forget(rank)

    async def _forget(self, rank: int) -> None:
        """A rank's process has ended."""
        del self._known[rank]
        if rank >= self._sizes.room_of(self.size):
            await self._did(self._port.remove(self.group, rank), f"remove the place of rank {rank}")
        self._news.set()  # the next round comes at once, and makes another

    async def _quit(self, known: KnownRank) -> bool:
        """Returns: whether nothing of a rank that has left touches its peers' windows any more."""
        return await self._tell(known, QuitGroup(), END_DEADLINE_S) or await self._end_process(known)

    async def _give_up_growing(self) -> None:
        """Let a group be as large as it was, if a new rank cannot be built."""
        growth = self._growth
        if growth and whole(self._sights(), self.size, self._spares):
            self._growth, self.lease = GroupGrowth(), msgspec.structs.replace(self.lease, former=0)
        elif growth and growth.hopeless(self._births):
            self._moves.experts.journal.not_grown()
            logger.error("%s", growth.given_up(self.group, self.size))
            await self.resize(growth.former)

    async def _regroup(self, due: Regroup) -> None:
        """Have all members follow, then let the epoch begin. If one does not follow, a later round asks for another.

        It begins for newcomers first: those that serve go on in the epoch before while a new process finds its feet.
        """
        known = [self._known[offer.rank] for offer in due.members]
        new_map = await self._moves.regroup(due, known, self.size)
        if new_map is None:
            return
        order = RegroupOrder(due.epoch, new_map, tuple(msgspec.structs.replace(one, held=()) for one in due.members))
        logger.info("%s: epoch %d with ranks %s", self.group, order.epoch, list(order.members))
        left = [self._known[rank] for rank in due.left]
        if not all(await asyncio.gather(*(self._tell(one, Follow(order), FOLLOW_DEADLINE_S) for one in known))):
            return
        if all(await asyncio.gather(*(self._quit(one) for one in left))):
            new = [one for one in known if one.report is not None and one.report.phase is RankPhase.OFFERED]
            for some in (new, [one for one in known if one not in new]):
                await asyncio.gather(*(self._tell(one, Begin(order), CALL_DEADLINE_S) for one in some))
            await asyncio.gather(*(self._end(one.name.rank) for one in left))

    async def _remove(self) -> None:
        for known in self._known.values():
            await self._end_process(known)
        await self._did(self._port.remove(self.group), f"remove {self.group}")

    async def _tell_all(self, call: RankCall, limit_s: float) -> None:
        await asyncio.gather(
            *(self._tell(known, call, limit_s) for known in self._known.values() if known.report and not known.dead)
        )

    async def _tell(self, known: KnownRank, call: RankCall, limit_s: float) -> bool:
        return await self._did(
            self._port.tell(known.name, call, limit_s), f"tell {known.name.actor} to {type(call).__name__}"
        )

    async def _end_process(self, known: KnownRank) -> bool:
        return await self._did(self._port.kill(known.name, known.report), f"kill {known.name.actor}")

    async def _did(self, call: Awaitable[object], what: str) -> bool:
        """Do something that a later round does again if it fails. Returns: whether it was done."""
        try:
            await call
        except (RankDeadError, RankSilentError) as error:
            logger.warning("could not %s: %s", what, error)
            return False
        return True

    async def _wait(self) -> None:
        """Until it is time for another round: soon, or at once if a rank has died."""
        with contextlib.suppress(TimeoutError):
            await within(self._news.wait(), self._period_s)
        self._news.clear()

    def _died(self, name: RankName) -> None:
        known = self._known.get(name.rank)
        if known is not None and known.name == name:
            known.dead = True
            self._news.set()

    def _sights(self) -> dict[int, RankSnapshot]:
        return {rank: known.sight(self._clock()) for rank, known in self._known.items()}
