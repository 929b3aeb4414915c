"""When instances died, and which of them died together.

A host takes all its instances along, and the kernel, when memory runs out, one after the other: what dies within a
second of something else need not have died of what it was doing.
"""

from collections import deque

from serving.ids import ReplicaId

TOGETHER_S = 1.0
"""Deaths that are no further apart are one event."""
REMEMBERED_S = 60.0
"""How long a death is known."""
MAX_DEATHS = 1024
"""That are remembered: more than die within that time."""


class Deaths:
    """The last deaths of instances, as one gateway saw them."""

    def __init__(self) -> None:
        self._deaths: deque[tuple[float, ReplicaId, bool]] = deque(maxlen=MAX_DEATHS)

    def note(self, replica: ReplicaId, now: float, *, shared: bool = False) -> None:
        """An instance died, `shared` by several sequences. Effects: forgets what is too old to matter."""
        while self._deaths and now - self._deaths[0][0] > REMEMBERED_S:
            self._deaths.popleft()
        self._deaths.append((now, replica, shared))

    def settled(self, now: float) -> bool:
        """Whether the last of those that die together is dead."""
        return not self._deaths or now - self._deaths[-1][0] > TOGETHER_S

    def together(self, replica: ReplicaId, now: float) -> bool:
        """Whether something else died just before."""
        return any(who != replica and now - at <= TOGETHER_S for at, who, _ in self._deaths)

    def alone(self, replica: ReplicaId) -> bool:
        """Whether it had one sequence and nothing else died with it; ask when that is `settled`."""
        own = next(((at, shared) for at, who, shared in reversed(self._deaths) if who == replica), None)
        if own is None:
            return False  # too long ago to be known
        when, shared = own
        return not shared and not any(who != replica and abs(at - when) <= TOGETHER_S for at, who, _ in self._deaths)
