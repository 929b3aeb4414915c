"""Commands of an operator to the shell of a group, and the shell's responses."""

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
    """Copy an expert to a rank, into a slot that is free or can be freed."""

    layer: int
    expert: int
    rank: int


class ResizeGroup(Struct, frozen=True, tag="resize"):
    """Change the number of the group's ranks, while it serves."""

    ranks: int


class DrainRank(Struct, frozen=True, tag="drain"):
    """Move a rank's streams to others and stop it; a new process replaces it."""

    rank: int


class ReadLoad(Struct, frozen=True, tag="load"):
    """Report how many rows chose each expert, by source rank, in each finished time slice.

    Args:
        after: number of the slice after which to start; None = only report the number of the last one.
    """

    after: int | None = None


PlannedOrder = RebalanceExperts | MoveOneExpert
"""Commands that move experts."""
OperatorOrder = PlannedOrder | ReadLoad
"""Commands about experts."""
SizeOrder = ResizeGroup | DrainRank
"""Commands about ranks."""


class PostedOrder(Struct, frozen=True):
    """A command queued at a rank.

    Args:
        id: unique; a shell carries out each id once.
    """

    id: str
    order: OperatorOrder | SizeOrder


class OrderAnswer(Struct, frozen=True):
    """A shell's response to an operator's command.

    Args:
        accepted: False = the command had no effect.
        reason: why it was refused, or the action that is taken.
        unknown: whether it was refused because its object does not exist.
        detail: further facts, JSON-ready.
    """

    accepted: bool
    reason: str = ""
    unknown: bool = False
    detail: dict[str, Any] = field(default_factory=dict)
