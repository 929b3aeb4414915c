"""Targets that wait for a node which Ray may add: for how long, and when the wait is over or in vain. Pure."""

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Literal

KEPT = 8
"""Waits of which `usual_s` is made."""


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
        self._came: deque[float] = deque(maxlen=KEPT)

    @property
    def usual_s(self) -> float:
        """How long a node takes to come, from the target that needs it on; 0 = none has come yet."""
        return median(self._came) if self._came else 0.0

    def waited_s(self, pool: str, now: float) -> float | None:
        """How long a pool has waited; None = it does not."""
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
        self._came.append(now - since)
        return NodeWait("came", now - since)

    def begin(self, pool: str, now: float) -> None:
        """A pool was given a target without room: it waits from now on, unless it does already."""
        self._since.setdefault(pool, now)

    def forget(self, pool: str) -> None:
        """The pool's target was made smaller on purpose: nothing is waited for, and nothing came."""
        self._since.pop(pool, None)
