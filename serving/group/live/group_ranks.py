"""The ranks of one group as known to its shell, and calls to them: a failed one is logged, a later round repeats it."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from serving.deadline import within
from serving.group.core.group_course import UNHEARD_S
from serving.group.core.group_sides import RankSnapshot
from serving.group.core.rank_life import RankName
from serving.group.live.group_port import (
    EndRank,
    GroupPort,
    KnownRank,
    QuitGroup,
    RankCall,
    RankDeadError,
    RankSilentError,
)
from serving.values.group import RankLease, RankReport

logger = logging.getLogger(__name__)

HOLD_DEADLINE_S = 0.5
"""A slower response counts in a later round [s]: a frozen rank must not delay the reports of its peers about it."""
UNHEARD_DEADLINE_S = 0.01
"""The same for a rank that has not answered in former rounds [s]."""
MOST_KILLS = 5
"""Tries to end a process that cannot be reached: about as long as it would stay without a lease."""
END_DEADLINE_S = 10.0
"""A rank needs a few seconds at most to release everything; then it is killed [s]."""


class GroupRanks:
    """Ranks and calls of one shell. Belongs to its event loop.

    Args:
        port_of: makes the port, which reports each rank that dies.
    Attributes:
        known: ranks with a process, by number.
    """

    def __init__(self, port_of: Callable[[Callable[[RankName], None]], GroupPort], clock: Callable[[], float]) -> None:
        self.known: dict[int, KnownRank] = {}
        self._clock = clock
        self._news = asyncio.Event()
        self._ending: set[asyncio.Task[None]] = set()
        self.port = port_of(self._died)

    @property
    def pids(self) -> list[int]:
        """Processes of the ranks that have responded."""
        return [known.report.pid for _, known in sorted(self.known.items()) if known.report is not None]

    def snapshots(self) -> dict[int, RankSnapshot]:
        """All ranks at this moment."""
        return {rank: known.sight(self._clock()) for rank, known in self.known.items()}

    def wake(self) -> None:
        """End `wait`, the present one or the next."""
        self._news.set()

    async def wait(self, period_s: float) -> None:
        """Wait for a period, or until a rank has died."""
        with contextlib.suppress(TimeoutError):
            await within(self._news.wait(), period_s)
        self._news.clear()

    async def hold(self, known: KnownRank, lease: RankLease) -> RankReport | None:
        """Renew a rank's lease, or take it over. Returns: its report, which is kept, too; None = no response."""
        unheard = self._clock() - known.heard_at >= UNHEARD_S
        try:
            known.report = await self.port.hold(known.name, lease, UNHEARD_DEADLINE_S if unheard else HOLD_DEADLINE_S)
        except RankDeadError:
            known.dead = True
        except RankSilentError as error:
            logger.debug("%s: %s", known.name.replica, error)
        else:
            known.heard_at = self._clock()
            return known.report
        return None

    async def tell(self, known: KnownRank, call: RankCall, limit_s: float) -> bool:
        """Call a rank. Returns: whether it has responded."""
        return await self.did(
            self.port.tell(known.name, call, limit_s), f"tell {known.name.actor} to {type(call).__name__}"
        )

    async def tell_all(self, call: RankCall, limit_s: float) -> None:
        """Call all ranks that have ever responded."""
        await asyncio.gather(
            *(self.tell(known, call, limit_s) for known in self.known.values() if known.report and not known.dead)
        )

    async def quit(self, known: KnownRank) -> bool:
        """Stop or kill a rank that has left. Returns: whether it cannot access its peers' windows any more."""
        return await self.tell(known, QuitGroup(), END_DEADLINE_S) or await self.end_process(known)

    async def end_process(self, known: KnownRank) -> bool:
        """Kill a rank. Returns: whether its process has ended."""
        return await self.did(self.port.kill(known.name, known.report), f"kill {known.name.actor}")

    def end_later(self, known: KnownRank) -> None:
        """Kill a rank in the background. Effects: starts a task."""
        task = asyncio.create_task(self._end_unreachable(known))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end_unreachable(self, known: KnownRank) -> None:
        for _ in range(MOST_KILLS):
            if await self.end_process(known):
                return
            await asyncio.sleep(END_DEADLINE_S / 2)
        logger.warning("%s cannot be reached; it ends itself when its lease has lapsed", known.name.replica)

    async def end_all(self) -> None:
        """Have all ranks release everything and end."""
        await self.tell_all(EndRank(), END_DEADLINE_S)

    async def did(self, call: Awaitable[object], what: str) -> bool:
        """Await a call that a later round repeats if it fails. Returns: whether it succeeded."""
        try:
            await call
        except (RankDeadError, RankSilentError) as error:
            logger.warning("could not %s: %s", what, error)
            return False
        return True

    def _died(self, name: RankName) -> None:
        known = self.known.get(name.rank)
        if known is not None and known.name == name:
            known.dead = True
            self.wake()
