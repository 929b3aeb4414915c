"""Times of instances' deaths, and which instances died together.

A host takes down all its instances, and the kernel kills one after the other when memory runs out: an instance that
dies within a second of another was not necessarily killed by its own work.
"""

from collections import deque

from serving.ids import ReplicaId

TOGETHER_S = 1.0
"""Deaths within this time of each other are one event."""
REMEMBERED_S = 60.0
"""Time for which a death is remembered."""
MAX_DEATHS = 1024
"""Deaths remembered; more instances may die within that time."""


class Deaths:
    """The latest deaths of instances, as observed by one gateway."""

    def __init__(self) -> None:
        self._deaths: deque[tuple[float, ReplicaId, bool]] = deque(maxlen=MAX_DEATHS)

    def note(self, replica: ReplicaId, now: float, *, shared: bool = False) -> None:
        """Note an instance's death, `shared` by several sequences. Effects: drops expired deaths."""
        while self._deaths and now - self._deaths[0][0] > REMEMBERED_S:
            self._deaths.popleft()
        self._deaths.append((now, replica, shared))

    def settled(self, now: float) -> bool:
        """Whether the last instance of a common death must be dead by now."""
        return not self._deaths or now - self._deaths[-1][0] > TOGETHER_S

    def together(self, replica: ReplicaId, now: float) -> bool:
        """Whether another instance died just before."""
        return any(who != replica and now - at <= TOGETHER_S for at, who, _ in self._deaths)

    def alone(self, replica: ReplicaId) -> bool:
        """Whether it had one sequence and no other instance died with it; only valid once `settled`."""
        own = next(((at, shared) for at, who, shared in reversed(self._deaths) if who == replica), None)
        if own is None:
            return False  # too long ago to be remembered
        when, shared = own
        return not shared and not any(who != replica and abs(at - when) <= TOGETHER_S for at, who, _ in self._deaths)
