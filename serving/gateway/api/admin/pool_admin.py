"""Port between the HTTP routes and the KV-cache pool's memory servers: list, usage, deletion and audit.

Routes check permissions; an implementation only sends the requests. A server that misses its deadline is reported with
the responses of the others, which do not wait for it.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from serving.gateway.api.http.tenant import Tenant
from serving.values.pool_view import EMPTY_VIEW, NamespaceRecord, PoolView


@dataclass(frozen=True, slots=True)
class ServerAnswers:
    """The pool servers' responses to one request.

    Args:
        by_server: each server's response, by its name in the ring.
        silent: by server, why it did not respond.
    """

    by_server: dict[str, dict[str, Any]] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)


class PoolAdmin(Protocol):
    """The pool as a gateway's client. Requests to servers never raise: unreachable servers are in `silent`."""

    def view(self) -> PoolView:
        """The latest view of the pool, with the facts that each server announces."""
        ...

    async def usage(self) -> ServerAnswers:
        """Holdings of each namespace on each server: {namespace: {"dram_bytes", "ssd_bytes", "entries"}}."""
        ...

    async def forget(self, namespace: str) -> ServerAnswers:
        """Delete all entries of a namespace in the pool: {"bytes", "entries"} that each server deleted."""
        ...

    async def audit(self, *, repair: bool) -> ServerAnswers:
        """Check on each server that its ledger, memory and SSD folder agree; `repair` removes invalid entries."""
        ...

    async def set_namespace(self, record: NamespaceRecord) -> None:
        """Set a namespace's quota and weight, effective within two seconds.

        Raises: UnavailableError if the pool's controller does not respond.
        """
        ...

    async def drop_namespace(self, name: str) -> None:
        """Remove a namespace from the list.

        Raises: UnavailableError if the pool's controller does not respond.
        """
        ...


# Weights of tenants that were changed while the system runs, from the pool's view.


class TenantWeights:
    """Latest weight of each tenant. Without a pool the configured weights apply.

    Args:
        pool: None if there is none.
    """

    def __init__(self, pool: PoolAdmin | None) -> None:
        self._pool = pool
        self._view = EMPTY_VIEW
        self._weights: dict[str, float] = {}

    def apply(self, tenant: Tenant) -> Tenant:
        """The tenant with its present weight."""
        if self._pool is None:
            return tenant
        view = self._pool.view()
        if view is not self._view:
            self._view = view
            self._weights = {one.name: one.weight for one in view.namespaces}
        weight = self._weights.get(tenant.namespace)
        return tenant if weight is None else replace(tenant, weight=weight)
