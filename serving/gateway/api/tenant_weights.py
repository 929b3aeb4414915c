"""Weights of tenants that were changed while the system runs, from the pool's view."""

from dataclasses import replace

from serving.gateway.api.pool_admin import PoolAdmin
from serving.gateway.api.tenant import Tenant
from serving.values.pool_view import EMPTY_VIEW


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
