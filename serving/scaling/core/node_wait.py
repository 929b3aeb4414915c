"""Targets that wait for a node which Ray may add: for how long, and when the wait is over or in vain. Pure."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class NodeWait:
    """A wait that has ended: `came` after so many seconds, or `vain`."""

    how: Literal["came", "vain"]
    after_s: float


class NodeWaits:
    """Waits by pool. Time is passed in.

    Args:
        limit_s: a wait that is longer is in vain.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since: dict[str, float] = {}

    def waited_s(self, pool: str, now: float) -> float | None:
        """How long a pool has waited; None = it does not. Effects: none."""
        since = self._since.get(pool)
        return now - since if since is not None else None

    def observe(self, pool: str, target: int, room: int, now: float) -> NodeWait | None:
        """A look at a pool: its target, and how many replicas have room. Returns: the end of a wait, once.

        Effects: begins, or ends, the pool's wait.
        """
        since = self._since.get(pool)
        if target > room:
            waited = now - self._since.setdefault(pool, now)
            if waited < self._limit_s:
                return None
            del self._since[pool]
            return NodeWait("vain", waited)
        if since is None:
            return None
        del self._since[pool]
        return NodeWait("came", now - since)

    def forget(self, pool: str) -> None:
        """The pool's target was made smaller on purpose: nothing is waited for, and nothing came."""
        self._since.pop(pool, None)
