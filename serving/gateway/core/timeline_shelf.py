"""Timelines of past requests: a bounded number, of which the slowest, failed and resumed are kept longest.

The capacity is divided into shelves for the latest, the slowest, the failed and the resumed requests. A request is kept
on each shelf that it qualifies for, and is dropped when it is on none.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal

from serving.gateway.core.timeline import RequestTimes

Choose = Literal["newest", "slowest", "failed", "resumed"]


class TimelineShelf:
    """Keeps at most `room` timelines.

    Args:
        room: total capacity: a quarter each for the slowest, the failed and the resumed, the rest for the latest; 0 =
            none.
    """

    def __init__(self, room: int) -> None:
        part = room // 4
        self.room = room
        self._newest: deque[RequestTimes] = deque(maxlen=room - 3 * part)
        self._failed: deque[RequestTimes] = deque(maxlen=part)
        self._resumed: deque[RequestTimes] = deque(maxlen=part)
        self._slowest: list[RequestTimes] = []
        self._most_slow = part

    def add(self, times: RequestTimes) -> None:
        """Keep a timeline. Effects: may drop others."""
        self._newest.append(times)
        if times.failed:
            self._failed.append(times)
        if times.resumed:
            self._resumed.append(times)
        self._keep_slow(times)

    def _keep_slow(self, times: RequestTimes) -> None:
        slowest = self._slowest
        if len(slowest) < self._most_slow:
            slowest.append(times)
        elif slowest and times.total_s > slowest[-1].total_s:
            slowest[-1] = times
        else:
            return
        slowest.sort(key=lambda one: -one.total_s)

    def __iter__(self) -> Iterator[RequestTimes]:
        seen: set[int] = set()
        for shelf in (self._newest, self._slowest, self._failed, self._resumed):
            for times in shelf:
                if id(times) not in seen:
                    seen.add(id(times))
                    yield times

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def find(self, request_id: str, namespace: str | None) -> RequestTimes | None:
        """The latest request of that id, or None.

        Args:
            namespace: of the requesting tenant; None = all tenants.
        """
        found = [times for times in self if request_id in times.names and namespace in (None, times.namespace)]
        return max(found, key=lambda times: times.arrived, default=None)

    def choose(self, which: Choose, limit: int, namespace: str | None) -> list[RequestTimes]:
        """Requests by a criterion: latest or slowest first, or only the failed or the resumed, latest first."""
        return chosen((times for times in self if namespace in (None, times.namespace)), which, limit)


def chosen(found: Iterable[RequestTimes], which: Choose, limit: int) -> list[RequestTimes]:
    """The first `limit` requests by a criterion, see `TimelineShelf.choose`."""
    if which == "slowest":
        return sorted(found, key=lambda times: -times.total_s)[:limit]
    wanted = [
        times
        for times in found
        if which == "newest" or (which == "failed" and times.failed) or (which == "resumed" and times.resumed)
    ]
    return sorted(wanted, key=lambda times: -times.arrived)[:limit]
