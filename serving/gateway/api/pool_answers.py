"""Wire models of responses about the KV-cache pool, used only for `/openapi.json`, as in `answers`."""

from pydantic import BaseModel

from serving.gateway.api.answers import Answer, Count


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
    """GET /pool. `silent`: why a server did not respond. Only administrators get `silent`, servers and blocks."""

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
