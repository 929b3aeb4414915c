"""Calls of a shell to its ranks, and the port that carries them."""

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from serving.group.core.group_sides import RankSnapshot
from serving.group.core.group_takeover import SeenGroup, abandoned, spare_places
from serving.group.core.rank_life import RankName
from serving.values.expert_map import ExpertOrder, RankEvent
from serving.values.group import OrderAnswer, RankLease, RankPhase, RankReport, RankRole, RegroupOrder


@dataclass(frozen=True, slots=True)
class Follow:
    """Compute with these members from an epoch on; the first call makes the rank serve."""

    order: RegroupOrder


@dataclass(frozen=True, slots=True)
class Begin:
    """Start the epoch of an order, which all of its members follow."""

    order: RegroupOrder


@dataclass(frozen=True, slots=True)
class Leave:
    """Drain."""

    drain_s: float


@dataclass(frozen=True, slots=True)
class QuitGroup:
    """Stop computing: after the response the rank does not access its peers' windows."""


@dataclass(frozen=True, slots=True)
class CloseLog:
    """End the decision log."""


@dataclass(frozen=True, slots=True)
class EndRank:
    """Release everything."""


@dataclass(frozen=True, slots=True)
class ShowFacts:
    """Announce facts of the whole group, JSON-ready."""

    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class MoveExperts:
    """Carry out commands about experts; the response has the events of all of them.

    Args:
        lease: of the shell, which must hold the rank.
    """

    lease: RankLease
    orders: tuple[ExpertOrder, ...]


@dataclass(frozen=True, slots=True)
class AnswerOperator:
    """Deliver a response to an operator's command, which waits at the rank."""

    order: str
    answer: OrderAnswer


RankCall = Follow | Begin | Leave | QuitGroup | CloseLog | EndRank | MoveExperts | ShowFacts | AnswerOperator


class RankDeadError(Exception):
    """The rank's process has ended."""


class RankSilentError(Exception):
    """The rank or Ray has not responded in time."""


@dataclass(frozen=True, slots=True)
class FoundRanks:
    """Ranks, placements and shells of a pool.

    Args:
        ranks: of all groups, starting ones included.
        places: names of groups with a placement.
        shells: Serve's unique names of the pool's replicas.
        added: group and number of ranks with a placement of their own, because they were added to a group.
        room: by group and role, largest possible number of ranks: placed ones, and free room on its node.
    """

    ranks: tuple[RankName, ...]
    places: frozenset[str]
    shells: frozenset[str]
    added: frozenset[tuple[str, int]] = frozenset()
    room: Mapping[tuple[str, RankRole], int] = field(default_factory=dict)


class GroupPort(Protocol):
    """Access to ranks. Every call has a deadline and may raise RankSilentError."""

    async def found(self) -> FoundRanks:
        """List ranks, placements and shells."""
        ...

    async def make(self, name: RankName, founder: RankLease, *, gently: bool) -> None:
        """Start a rank's process in its placement, which is made if there is none.

        Args:
            founder: has the target size of the group.
            gently: build it at low priority, so that computing ranks keep the CPU.
        """
        ...

    async def hold(self, name: RankName, lease: RankLease, limit_s: float) -> RankReport:
        """Renew a lease, take a rank over, or request its report. Raises: RankDeadError."""
        ...

    async def tell(self, name: RankName, call: RankCall, limit_s: float) -> tuple[RankEvent, ...]:
        """Call a rank. Returns: events of `MoveExperts`, else none. Raises: RankDeadError."""
        ...

    async def kill(self, name: RankName, report: RankReport | None) -> None:
        """Kill a rank's process and wait for its end.

        Args:
            report: its last one, if any.
        """
        ...

    async def remove(self, group: str, rank: int | None = None) -> None:
        """Remove the placements of a group, or that of one added rank. Effects: ends the processes in them."""
        ...


# State that a shell keeps of a rank.


@dataclass(slots=True)
class KnownRank:
    """One rank of a group, with its last report and the time of it."""

    name: RankName
    heard_at: float = 0.0
    dead: bool = False
    report: RankReport | None = None

    @property
    def serves(self) -> bool:
        """Whether its last report is from a computing phase."""
        return self.report is not None and self.report.phase in (RankPhase.SERVING, RankPhase.LEAVING)

    def sight(self, now: float) -> RankSnapshot:
        """Snapshot; a rank that has never responded is not silent, as it may wait for its placement."""
        return RankSnapshot(self.dead, now - self.heard_at if self.report is not None else 0.0, self.report)


# Search for groups that a new shell may take over, and for abandoned placements in Ray.

logger = logging.getLogger(__name__)

ASK_DEADLINE_S = 3.0


class GroupSearch:
    """Groups of one pool in one start of the system."""

    def __init__(self, port: GroupPort, session: str, pool: str) -> None:
        self._port, self._session, self._pool = port, session, pool

    async def groups(self, found: FoundRanks, asker: RankLease) -> list[SeenGroup]:
        """The pool's groups, with the latest shell that their ranks report.

        Args:
            asker: a lease of term 0, which changes nothing at the ranks.
        """
        names = [name for name in found.ranks if name.pool == self._pool and name.session == self._session]
        reports = await asyncio.gather(*(self._ask(name, asker) for name in names))
        groups = []
        for group in sorted({name.group for name in names}):
            told = [one for name, one in zip(names, reports, strict=True) if name.group == group and one is not None]
            newest = max((one.lease for one in told), key=lambda lease: lease.term, default=None)
            groups.append(SeenGroup(group, newest.shell if newest is not None else group.partition("#")[2], newest))
        return groups

    async def sweep(self, found: FoundRanks, own: str, ranks: Collection[int], wanted: Collection[int]) -> None:
        """Remove abandoned placements.

        Args:
            own: name of the caller's group. ranks: those of its ranks with a process. wanted: those it is to have.
        """
        groups = {name.group for name in found.ranks} | {own}
        for group in abandoned(found.places, groups, found.shells):
            logger.warning("%s has a placement group but no ranks; releasing it", group)
            await self._remove(group, None)
        for rank in spare_places([rank for group, rank in found.added if group == own], ranks, wanted):
            logger.warning("rank %d of %s has a placement group but no process; releasing it", rank, own)
            await self._remove(own, rank)

    async def _remove(self, group: str, rank: int | None) -> None:
        try:
            await self._port.remove(group, rank)
        except RankSilentError as error:
            logger.warning("could not release the placement group of %s: %s", group, error)

    async def _ask(self, name: RankName, lease: RankLease) -> RankReport | None:
        try:
            return await self._port.hold(name, lease, ASK_DEADLINE_S)
        except (RankDeadError, RankSilentError):
            return None
