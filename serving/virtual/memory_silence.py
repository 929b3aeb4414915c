"""How clients of the pool notice frozen memory servers, in virtual time.

A frozen server does not respond. A client waits until the server resumes, at most until the deadline of the lookup or
the store; after that `ServerBackoff`, as in a live link, decides when the client uses the server again. Until the
controller drops the server from the view its blocks are misses; when it is back, each client finds them again after its
own pause.
"""

from collections.abc import Collection, Iterable

from serving.kvpool.core.server_backoff import ServerBackoff
from serving.values.pool_outcome import MissReason

Client = tuple[int, bool]
"""Number of an instance, and whether its client stores: each has connections of its own."""


class _Link:
    """One client's link to a server that is or was frozen."""

    __slots__ = ("backoff", "connected", "failed_at")

    def __init__(self, failed_at: float) -> None:
        self.backoff = ServerBackoff()
        self.failed_at = failed_at
        self.connected = False
        self.fail(failed_at)

    def fail(self, now: float) -> None:
        self.backoff.on_failure(now)
        self.connected = False


class SilentServers:
    """Frozen servers, and clients that have not used a server again since it was frozen. False if there are none.

    Attributes:
        frozen: when each of them resumes; infinite = never.
    """

    def __init__(self) -> None:
        self.frozen: dict[str, float] = {}
        self._links: dict[tuple[Client, str], _Link] = {}

    def __bool__(self) -> bool:
        return bool(self.frozen or self._links)

    def forget(self, listed: Collection[str]) -> None:
        """Drop the links to servers that left the view: a server that joins again gets new ones."""
        self._links = {key: link for key, link in self._links.items() if key[1] in listed}

    def ask(
        self, client: Client, servers: Iterable[str], now: float, until: float
    ) -> tuple[dict[str, MissReason], float]:
        """Servers that do not respond to a request of this client, and when all others have responded.

        Args:
            servers: those that get the request.
            until: deadline of the request; a server that resumes earlier responds then.
        """
        silent: dict[str, MissReason] = {}
        end = now
        for name in servers:
            reason = self._reason(client, name, now, until)
            if reason is not None:
                silent[name] = reason
            if reason is MissReason.TIMEOUT:
                end = until
            elif reason is None:
                end = max(end, self.frozen.get(name, now))
        return silent, end

    def _reason(self, client: Client, name: str, now: float, until: float) -> MissReason | None:
        link, thaws = self._links.get((client, name)), self.frozen.get(name)
        if link is None or now < link.failed_at:  # another request of the client is still waiting
            if thaws is None or thaws <= until:
                return None
            self._links.setdefault((client, name), _Link(until))
            return MissReason.TIMEOUT
        if link.connected and thaws is None:
            del self._links[client, name]
            return None
        if not link.connected and not link.backoff.skips(now):
            link.connected = True
            link.backoff.on_connected(now)
        elif link.connected and link.backoff.waits_for_greeting(now):
            link.fail(now)
        return MissReason.UNREACHABLE
