"""Calls of a shell to its ranks, and the port that carries them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from serving.group.core.rank_names import RankName
from serving.values.expert_moves import ExpertOrder, RankEvent
from serving.values.group import RankLease, RankReport, RegroupOrder
from serving.values.operator_order import OrderAnswer


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
        room: by group, largest possible number of ranks: placed ones, and free room on its node.
    """

    ranks: tuple[RankName, ...]
    places: frozenset[str]
    shells: frozenset[str]
    added: frozenset[tuple[str, int]] = frozenset()
    room: Mapping[str, int] = field(default_factory=dict)


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
