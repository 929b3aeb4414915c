"""What the board answers to a wish."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScaleAnswer:
    """What became of a wish.

    Args:
        before, target: replicas asked for until now, and from now on.
        fits: the most replicas that would fit now.
        hold_left_s: how long the policy leaves the pool alone from now on [s]; 0 = it may act at once.
        message: the same in words, one line.
    """

    pool: str
    before: int
    target: int
    fits: int
    hold_left_s: float
    message: str


@dataclass(frozen=True, slots=True)
class ScaleRefusal:
    """Why nothing was done; what the board answers instead of raising, since errors lose their fields on the way.

    Args:
        kind: `unknown_pool`, `invalid`, `no_room` or `unavailable`.
        fits: the most replicas that would fit; None where that is not the question.
    """

    kind: str
    message: str
    fits: int | None = None
