"""Requests that are running in this gateway, by their ids, so that another request can cancel them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from serving.errors import RequestError


class RequestCancelledError(RequestError):
    """Another request of the same tenant cancelled this one. Clients do not retry after a 400."""

    status = 400
    code = "request_cancelled"


class RunningRequests:
    """Used from the gateway's event loop."""

    def __init__(self) -> None:
        self._running: dict[str, list[tuple[str, Callable[[], None]]]] = {}
        """Namespace of each request with an id, and what cancels it; clients may use an id more than once."""

    @contextmanager
    def entered(self, namespace: str, ids: Sequence[str], cancel: Callable[[], None]) -> Iterator[None]:
        """Within the context, the request can be cancelled by each of its ids."""
        one = namespace, cancel
        for name in dict.fromkeys(ids):
            self._running.setdefault(name, []).append(one)
        try:
            yield
        finally:
            for name in dict.fromkeys(ids):
                left = [other for other in self._running[name] if other is not one]
                if left:
                    self._running[name] = left
                else:
                    del self._running[name]

    def cancel(self, ids: Sequence[str], namespace: str | None) -> tuple[str, ...]:
        """Cancel requests.

        Args:
            ids: of their responses, or those that clients set.
            namespace: whose requests; None = everybody's.
        Returns: the ids of which a request was running.
        """
        found = []
        for name in dict.fromkeys(ids):
            own = [cancel for owner, cancel in self._running.get(name, ()) if namespace in (None, owner)]
            for cancel in own:
                cancel()
            found += [name] * bool(own)
        return tuple(found)
