"""Sharing NPUs out between the pools: everyone's wish if there is room, else in the proportion of the wishes.

A system serves as much as its scarcer pool: the best use of too few NPUs gives each pool the same part of what it
wants. Two things stand above the proportion: the least of each pool, and a pool that lost something and must keep what
it has (decode: its replicas carry streams).
"""

from collections.abc import Sequence

from msgspec import Struct

BETTER = 1.1
"""A new split must serve this much more than the one there is: otherwise nobody moves."""


class Wish(Struct, frozen=True, gc=False):
    """Wish of one pool.

    Args:
        before: its target until now; `want`: the one it would have with NPUs for all.
        least: it gives nothing below this; `keep`: not before all others are down at theirs.
        npus: of one instance.
    """

    before: int
    want: int
    least: int
    keep: int
    npus: int


def share_out(wishes: Sequence[Wish], npus: int) -> list[int]:
    """Targets for pools in the order of a request's life; the later a pool, the more a request has invested there.

    Args:
        npus: that all of them may have.
    Returns: no more than wanted, no more than there is; below `least` only if there are not even NPUs for that.
    """
    if sum(wish.want * wish.npus for wish in wishes) <= npus:
        return [wish.want for wish in wishes]
    targets = [0] * len(wishes)
    for floor in ("least", "keep"):
        for place in reversed(range(len(wishes))):
            wish = wishes[place]
            room = (npus - _taken(targets, wishes)) // wish.npus
            targets[place] += max(0, min(min(getattr(wish, floor), wish.want) - targets[place], room))
    _fill(targets, wishes, npus)
    now = [min(wish.before, wish.want) for wish in wishes]
    stands = all(min(w.least, w.want) <= n and min(w.keep, w.want) <= n for w, n in zip(wishes, now, strict=True))
    if stands and _taken(now, wishes) <= npus and _served(targets, wishes) < BETTER * _served(now, wishes):
        _fill(now, wishes, npus)
        return now
    return targets


def _taken(targets: Sequence[int], wishes: Sequence[Wish]) -> int:
    return sum(target * wish.npus for target, wish in zip(targets, wishes, strict=True))


def _served(targets: Sequence[int], wishes: Sequence[Wish]) -> float:
    return min((target / wish.want for target, wish in zip(targets, wishes, strict=True) if wish.want), default=1.0)


def _fill(targets: list[int], wishes: Sequence[Wish], npus: int) -> None:
    """Give what is left, always to the pool that has the smallest part of its wish. Effects: `targets` grow."""
    while True:
        left = npus - _taken(targets, wishes)
        open_ = [p for p, wish in enumerate(wishes) if targets[p] < wish.want and wish.npus <= left]
        if not open_:
            return
        targets[min(open_, key=lambda p: (targets[p] / wishes[p].want, -p))] += 1
