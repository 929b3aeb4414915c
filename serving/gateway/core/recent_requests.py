"""Recent requests of each tenant, so that a client can renew what one of them claimed."""

from collections.abc import Iterable

from serving.gateway.core.kv_hints import SessionName


class RecentRequests:
    """Sessions of the latest requests with claims, by the ids that clients know. Bounded for each tenant and in all."""

    def __init__(self, most: int = 2000, tenants: int = 256) -> None:
        self._most = most
        self._tenants = tenants
        self._known: dict[str, dict[str, SessionName]] = {}

    def note(self, namespace: str, ids: Iterable[str], named: SessionName) -> None:
        """Remember one request by each of its ids; forgets the oldest ones of the same tenant."""
        own = self._known.pop(namespace, {})
        self._known[namespace] = own  # the tenants that ask are the last
        for name in dict.fromkeys(ids):
            own.pop(name, None)
            own[name] = named
        while len(own) > self._most:
            del own[next(iter(own))]
        while len(self._known) > self._tenants:
            del self._known[next(iter(self._known))]

    def find(self, namespace: str, request_id: str) -> SessionName | None:
        """The session of a tenant's own request; None if there is no record."""
        return self._known.get(namespace, {}).get(request_id)
