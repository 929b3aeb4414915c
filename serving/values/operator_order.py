"""Orders of an operator to the shell of a group, and the shell's answers."""

from typing import Any

from msgspec import Struct, field


class RebalanceExperts(Struct, frozen=True, tag="rebalance"):
    """Place experts anew, now.

    Args:
        policy: other than the configured one; None = that.
        dry_run: only say what would move.
    """

    policy: str | None = None
    dry_run: bool = False


class MoveOneExpert(Struct, frozen=True, tag="move"):
    """Bring an expert to a rank: a copy, in a slot that can be spared."""

    layer: int
    expert: int
    rank: int


class ResizeGroup(Struct, frozen=True, tag="resize"):
    """Give the group another number of ranks, while it serves."""

    ranks: int


class DrainRank(Struct, frozen=True, tag="drain"):
    """Have a rank hand on its streams and end; another process takes its place."""

    rank: int


class ReadLoad(Struct, frozen=True, tag="load"):
    """Say how many rows chose each expert, by source rank, in each slice of time that is over.

    Args:
        after: number of the last slice that is not wanted any more; None = say only which one was the last.
    """

    after: int | None = None


PlannedOrder = RebalanceExperts | MoveOneExpert
"""Experts are to move."""
OperatorOrder = PlannedOrder | ReadLoad
"""About experts."""
SizeOrder = ResizeGroup | DrainRank
"""About ranks."""


class PostedOrder(Struct, frozen=True):
    """An order that waits at a rank.

    Args:
        id: unique; a shell that has seen it does not carry it out again.
    """

    id: str
    order: OperatorOrder | SizeOrder


class OrderAnswer(Struct, frozen=True):
    """A shell's answer.

    Args:
        accepted: False = nothing was done.
        reason: why not, or what is done now.
        unknown: whether it was refused since there is no such thing.
        detail: more of it, JSON-ready.
    """

    accepted: bool
    reason: str = ""
    unknown: bool = False
    detail: dict[str, Any] = field(default_factory=dict)
