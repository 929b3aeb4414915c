"""Time lines of one gateway, for requests over HTTP."""

from collections.abc import Sequence

from serving.gateway.core.timeline import ChoiceLine, Choose, RequestTimes, TimelineShelf, TimePart


class KeptTimelines:
    """Implements `Timelines`.

    Args:
        requests: id, namespace and time of each; an id is also found with a leading `x`.
    """

    def __init__(self, *requests: tuple[str, str, float]) -> None:
        self._shelf = TimelineShelf(8)
        parts = (TimePart("prefill", 0.0, 1.5, "prefill#a", "n0", tokens=7),)
        line = ChoiceLine(0, parts, 3, 0, 1.0)
        for name, namespace, total_s in requests:
            names = (name, f"x {name}")
            self._shelf.add(RequestTimes(name, namespace, 0.0, total_s, "stop", 7, (line,), 3, 0, "why", names=names))

    async def find(self, request_id: str, namespace: str | None) -> RequestTimes | None:
        """Implements `Timelines.find`."""
        return self._shelf.find(request_id, namespace)

    async def choose(self, which: Choose, limit: int, namespace: str | None) -> Sequence[RequestTimes]:
        """Implements `Timelines.choose`."""
        return self._shelf.choose(which, limit, namespace)
