"""Time lines of one gateway, for requests over HTTP."""

from collections.abc import Sequence

from serving.gateway.core.timeline import ChoiceLine, Choose, RequestTimes, TimelineShelf, TimePart


class KeptTimelines:
    """Implements `Timelines`.

    Args:
        requests: id, namespace and time of each, one a second; an id is also found with a leading `x`.
        latest: at most so many are listed as the newest.
    """

    def __init__(self, *requests: tuple[str, str, float], latest: int = 1000) -> None:
        self._latest = latest
        self._shelf = TimelineShelf(8)
        parts = (TimePart("prefill", 0.0, 1.5, "prefill#a", "n0", tokens=7),)
        line = ChoiceLine(0, parts, 3, 0, 1.0)
        for arrived, (name, namespace, total_s) in enumerate(requests):
            names = (name, f"x {name}")
            self._shelf.add(
                RequestTimes(name, namespace, arrived, total_s, "stop", 7, (line,), 3, 0, "why", names=names)
            )

    async def find(self, request_id: str, namespace: str | None) -> RequestTimes | None:
        """Implements `Timelines.find`."""
        return self._shelf.find(request_id, namespace)

    async def choose(self, which: Choose, limit: int, namespace: str | None) -> Sequence[RequestTimes]:
        """Implements `Timelines.choose`."""
        return self._shelf.choose(which, min(limit, self._latest) if which == "newest" else limit, namespace)
