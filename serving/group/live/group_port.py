"""Calls of a shell to its ranks, and the port by which it reaches them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from serving.group.core.rank_names import RankName
from serving.values.expert_moves import ExpertOrder, RankEvent
from serving.values.group import RankLease, RankReport, RegroupOrder
from serving.values.operator_order import OrderAnswer


@dataclass(frozen=True, slots=True)
class Follow:
    """Compute with other members from an epoch on; at first, serve."""

    order: RegroupOrder


@dataclass(frozen=True, slots=True)
class Begin:
    """The epoch of an order begins: all of its members follow it."""

    order: RegroupOrder


@dataclass(frozen=True, slots=True)
class Leave:
    """Drain."""

    drain_s: float


@dataclass(frozen=True, slots=True)
class QuitGroup:
    """Compute no more: once this is answered, nothing of the rank touches its peers' windows."""


@dataclass(frozen=True, slots=True)
class CloseLog:
    """End the decision log."""


@dataclass(frozen=True, slots=True)
class EndRank:
    """Give back everything."""


@dataclass(frozen=True, slots=True)
class ShowFacts:
    """Announce facts of the whole group, JSON-ready."""

    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class MoveExperts:
    """Do what this shell asks about experts; answered with what came of it when all is done.

    Args:
        lease: of the shell, which must hold the rank.
    """

    lease: RankLease
    orders: tuple[ExpertOrder, ...]


@dataclass(frozen=True, slots=True)
class AnswerOperator:
    """Tell an operator, who waits at the rank."""

    order: str
    answer: OrderAnswer


RankCall = Follow | Begin | Leave | QuitGroup | CloseLog | EndRank | MoveExperts | ShowFacts | AnswerOperator


class RankDeadError(Exception):
    """The rank's process has ended."""


class RankSilentError(Exception):
    """No answer in time, or Ray does not answer."""


@dataclass(frozen=True, slots=True)
class FoundRanks:
    """Everything of a pool that there is now.

    Args:
        ranks: of all groups, starting ones included.
        places: names of groups that have a place.
        shells: Serve's unique names of the pool's replicas.
        added: group and number of ranks that have a place of their own, since they were added to a group.
        room: by group, how many ranks it could have: those that have a place, and what is free on its node.
    """

    ranks: tuple[RankName, ...]
    places: frozenset[str]
    shells: frozenset[str]
    added: frozenset[tuple[str, int]] = frozenset()
    room: Mapping[str, int] = field(default_factory=dict)


class GroupPort(Protocol):
    """The way to ranks. Every call has a deadline; each raises RankSilentError."""

    async def found(self) -> FoundRanks:
        """Look for what there is."""
        ...

    async def make(self, name: RankName, founder: RankLease, *, gently: bool) -> None:
        """Start a rank's process in its place in the group, and make that place if there is none.

        Args:
            founder: says how many ranks the group is to have.
            gently: build it behind those that compute, at low priority.
        """
        ...

    async def hold(self, name: RankName, lease: RankLease, limit_s: float) -> RankReport:
        """Renew, take over or ask. Raises: RankDeadError."""
        ...

    async def tell(self, name: RankName, call: RankCall, limit_s: float) -> tuple[RankEvent, ...]:
        """Have a rank do something. Returns: answers to `MoveExperts`. Raises: RankDeadError."""
        ...

    async def kill(self, name: RankName, report: RankReport | None) -> None:
        """End a rank's process, whatever it does. Returns when it has ended.

        Args:
            report: its last one, if there was one.
        """
        ...

    async def remove(self, group: str, rank: int | None = None) -> None:
        """Give back the places of a group, or that of one rank which was added to it. Effects: ends who is there."""
        ...
