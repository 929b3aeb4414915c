"""Orders of an operator to the shell of a group, and the shell's answers."""

from typing import Any

from msgspec import Struct, field


class RebalanceExperts(Struct, frozen=True, tag="rebalance"):
    """Recompute the expert placement now.

    Args:
        policy: None = the configured one.
        dry_run: only report the moves.
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
    """Report how many rows chose each expert, by source rank, in each finished time slice.

    Args:
        after: number of the slice after which to start; None = only report the number of the last one.
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
    """A shell's response to an operator's command.

    Args:
        accepted: False = the command had no effect.
        reason: why it was refused, or what is done now.
        unknown: whether it was refused because its object does not exist.
        detail: further facts, JSON-ready.
    """

    accepted: bool
    reason: str = ""
    unknown: bool = False
    detail: dict[str, Any] = field(default_factory=dict)
