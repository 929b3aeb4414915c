"""The KV-cache pool over HTTP: look at it, delete a tenant's cache, prove that it is sound."""

from dataclasses import replace

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from hardware.units import MIB
from serving.errors import InvalidRequestError, PermissionDeniedError, UnavailableError
from serving.gateway.api.admin.pool_admin import PoolAdmin
from serving.gateway.api.admin.pool_summary import audit_summary, holdings, pool_summary
from serving.gateway.api.answers import Answer, Count
from serving.gateway.api.body import parse_body
from serving.gateway.api.http.errors import RouteError
from serving.gateway.api.http.tenant import tenant_of
from serving.gateway.api.openapi import BODY_ERRORS, answers
from serving.gateway.api.routes import json_response, request_body
from serving.gateway.api.schema import PoolAuditRequest, PoolNamespaceRequest
from serving.telemetry.metrics import GatewayMetrics
from serving.values.pool_view import NamespaceRecord, is_namespace_name

# The KV-cache pool over HTTP: show it, delete a tenant's cache, audit it.
#
#     GET    /pool                      any key: the caller's own namespace; administrators see servers and all of them
#     DELETE /pool/namespaces/{name}    the namespace's own keys, or an administrator
#     POST   /pool/namespaces/{name}    administrators; `{"quota_mib": 100, "weight": 2}`, or one of them
#     POST   /pool/audit                administrators; `{"repair": true}` also removes invalid entries
#
# On a server without keys every client is an administrator. Requests about another tenant's namespace get 403, whether
# it exists or not.

MAX_BODY_BYTES = 4096


def pool_router(pool: PoolAdmin | None, metrics: GatewayMetrics, configured: frozenset[str]) -> APIRouter:
    """The routes; without a pool each of them responds 404.

    Args:
        metrics: has the instances' pool statistics, and counts audits.
        configured: namespaces of the configuration.
    """
    router = APIRouter(prefix="/pool", tags=["KV-cache pool"])

    @router.get("", responses=answers(Pool, 404))
    async def show(request: Request) -> Response:
        """Ring, servers with their usage and hits, and namespaces with their usage."""
        there, tenant = _there(pool), tenant_of(request)
        usage = await there.usage()
        await metrics.ask()
        metrics.refresh()
        clients = [one.pool_use for one in metrics.instances.snapshots() if one.pool_use is not None]
        return json_response(pool_summary(there.view(), usage, clients, tenant, configured))

    @router.delete("/namespaces/{name:path}", responses=answers(PoolDeleted, 403, 404, 503))
    async def forget(request: Request, name: str) -> Response:
        """Delete all blocks of a namespace on the pool's servers.

        Blocks in the instances' own memory age out. A server that is down keeps its SSD folder: repeat the request when
        it is back. A namespace that is no longer configured is also removed from the list.
        """
        there, tenant = _there(pool), tenant_of(request)
        if not tenant.may_manage(name):
            raise PermissionDeniedError(f"this API key may not delete the cache of namespace '{name[:200]}'")
        if name != tenant.namespace:
            await _require_namespace(there, name, configured)
        result = await there.forget(name)
        if result.silent:
            names = ", ".join(result.silent)
            raise UnavailableError(f"{names} did not delete all: no response, or files remain on disk; try again")
        if not result.by_server:
            raise UnavailableError("nothing was deleted: no memory server is available; try again")
        deleted = {key: sum(answer[key] for answer in result.by_server.values()) for key in ("bytes", "entries")}
        if name not in configured:
            await there.drop_namespace(name)
        return json_response({"namespace": name, **deleted, "servers": result.by_server})

    _add_change(router, pool, configured)

    @router.post(
        "/audit", openapi_extra=request_body("PoolAuditRequest"), responses=answers(PoolAudit, 403, 404, *BODY_ERRORS)
    )
    async def audit(request: Request) -> Response:
        """Compare ledger, memory and SSD folder on every server."""
        there = _there(pool)
        if not tenant_of(request).admin:
            raise PermissionDeniedError("audits are for administrators only; use one of `[gateway] admin_keys`")
        # A JSON body, not a query: a browser page cannot send one to a server that did not allow its origin.
        body = await parse_body(request, PoolAuditRequest, MAX_BODY_BYTES)
        result = audit_summary(await there.audit(repair=body.repair))
        metrics.audited(sound=result["ok"])
        return json_response(result)

    return router


def _add_change(router: APIRouter, pool: PoolAdmin | None, configured: frozenset[str]) -> None:
    @router.post(
        "/namespaces/{name:path}",
        openapi_extra=request_body("PoolNamespaceRequest"),
        responses=answers(NamespaceChanged, 403, 404, 503, *BODY_ERRORS),
    )
    async def change(request: Request, name: str) -> Response:
        """Change a namespace's quota and weight while the system runs.

        The pool's directory stores them; they override the configuration file until the file changes them.
        """
        there = _there(pool)
        if not tenant_of(request).admin:
            raise PermissionDeniedError("quotas are for administrators only; use one of `[gateway] admin_keys`")
        body = await parse_body(request, PoolNamespaceRequest, MAX_BODY_BYTES)
        if body.quota_mib is None and body.weight is None:
            raise InvalidRequestError("give 'quota_mib', 'weight' or both", param="quota_mib", code="invalid_value")
        await _require_namespace(there, name, configured)
        record = next((one for one in there.view().namespaces if one.name == name), NamespaceRecord(name))
        if body.quota_mib is not None:
            record = replace(record, quota_bytes=body.quota_mib * MIB)
        if body.weight is not None:
            record = replace(record, weight=body.weight)
        await there.set_namespace(record)
        return json_response({"namespace": name, "quota_bytes": record.quota_bytes, "weight": record.weight})


def _there(pool: PoolAdmin | None) -> PoolAdmin:
    if pool is None:
        raise RouteError(404, "this server runs without a KV-cache pool; `[kvcache] replicas` gives it one")
    return pool


async def _require_namespace(pool: PoolAdmin, name: str, configured: frozenset[str]) -> None:
    """Require an existing namespace: a typo must not look like success, and no client may delete model weights.

    Raises: RouteError.
    """
    known = {*configured, *(record.name for record in pool.view().namespaces)}
    if not is_namespace_name(name) or (name not in known and name not in holdings(await pool.usage())):
        raise RouteError(404, f"there is no namespace '{name[:200]}' in the pool")


# Wire models of responses about the KV-cache pool, used only for `/openapi.json`, as in `answers`.


class Tier(Answer):
    """One memory tier of a server."""

    used_bytes: Count
    capacity_bytes: Count


class PoolServer(Answer):
    """A memory server: its place in the ring, usage, hits and misses."""

    name: str
    node: str
    pid: int | None
    state: str
    weight: float
    share: float
    uptime_s: float
    models: list[str]
    dram: Tier
    ssd: Tier
    entries: Count
    hits: dict[str, Count]
    misses: Count
    evictions: dict[str, Count]
    refused: dict[str, Count]
    damaged: dict[str, Count]
    in_use: dict[str, Count]


class PoolNamespace(Answer):
    """Holdings of a namespace in the whole pool."""

    name: str
    dram_bytes: Count
    ssd_bytes: Count
    entries: Count
    quota_bytes: Count
    weight: float
    changed: bool
    configured: bool


class Pool(Answer):
    """GET /pool. Only administrators get `servers`, `blocks` and `silent`.

    `blocks`: number of blocks that instances looked up, by where they were found (`dram`, `ssd`) or why they were not
    (`absent`, `lost`). `silent`: the servers that did not respond, with the reason. `complete`: every server responded.
    """

    servers: list[PoolServer]
    blocks: dict[str, Count]
    namespaces: list[PoolNamespace]
    silent: dict[str, str]
    complete: bool


class Deleted(Answer):
    """Result of a deletion."""

    bytes: Count
    entries: Count


class PoolDeleted(Deleted):
    """DELETE /pool/namespaces/{name}."""

    namespace: str
    servers: dict[str, Deleted]


class NamespaceChanged(Answer):
    """POST /pool/namespaces/{name}."""

    namespace: str
    quota_bytes: Count
    weight: float


class ServerAudit(BaseModel):
    """Result of one server's audit of itself."""

    ok: bool


class PoolAudit(Answer):
    """POST /pool/audit."""

    ok: bool
    servers: dict[str, ServerAudit]
    silent: dict[str, str]
