"""Order of waiting requests by job: turns of sessions that began earlier start first, by a bounded head start.

An agent's job is a session of many turns; every turn that waits behind the first turns of new sessions delays the whole
job, while KV of the session occupies the pool. So a turn counts as arrived when its session began, but at most
`HEAD_START_S` before it did arrive. A request is thus overtaken only by those that arrive within that time after it,
and among the requests of one API key only: keys share as they do without this order.
"""

from collections import OrderedDict

HEAD_START_S = 120.0
"""Most turns of agents arrive within minutes of the one before, so jobs of any length keep the whole head start."""
MAX_SESSIONS = 10_000
"""Sessions remembered of each key; the one that was silent for longest is forgotten first."""
IDLE_S = 3600.0
"""A session without requests for longer than this starts again."""


class JobOrder:
    """When the sessions of each key began."""

    def __init__(self) -> None:
        self._of: dict[str, OrderedDict[str, tuple[float, float]]] = {}
        """Key -> session -> when it began, and its last request; the latest last."""

    def due(self, key: str, session: str, now: float) -> float:
        """When an arriving request counts as arrived. Effects: remembers its session.

        Args:
            session: empty = the request is a job of its own.
        """
        if not session:
            return now
        known = self._of.setdefault(key, OrderedDict())
        begun, last = known.pop(session, (now, now))
        if now - last > IDLE_S:
            begun = now
        known[session] = begun, now
        if len(known) > MAX_SESSIONS or next(iter(known.values()))[1] < now - IDLE_S:
            known.popitem(last=False)
        return max(begun, now - HEAD_START_S)

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))
