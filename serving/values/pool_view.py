"""The pool's members, for its clients: one immutable value from the controller."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import Any

from serving.ids import NodeId


class ServerState(Enum):
    """State of a memory server."""

    ACTIVE = "active"
    DRAINING = "draining"
    """The server moves its entries to the others: read from it, do not write to it."""


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """Announcement of a memory server, about once a second.

    Args:
        name: its position in the ring; a server that replaces a dead one takes over its name and SSD directory.
        incarnation: distinguishes a restarted server from its predecessor.
        node: on which its UB segment can be mapped.
        host, port: where it listens for clients.
        segment: path of its UB segment.
        generation: of its region of that segment.
        uptime_s: since it started to serve; a young one takes over its share of the keys gradually.
        models: versions of models whose weights it holds (`model@version`).
        facts: counters and gauges for status pages and metrics; plain numbers, texts, lists and dicts.
    """

    name: str
    incarnation: str
    node: NodeId
    host: str
    port: int
    segment: str
    generation: int
    capacity_bytes: int
    state: ServerState
    uptime_s: float
    models: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NamespaceClaims:
    """Limits of what a tenant's sessions may claim; 0 = none beside those of the servers.

    Args:
        retain_bytes, pin_bytes: over the whole pool.
        max_ttl_s: longest time from a claim to its end.
    """

    retain_bytes: int = 0
    pin_bytes: int = 0
    max_ttl_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """One tenant of the pool.

    Args:
        quota_bytes: limit over the whole pool; 0 = no limit.
        weight: of each of its keys in gateways' queues.
        over: configured quota and weight when an operator changed them; None = unchanged.
        claims: always those of the configuration.
    """

    name: str
    quota_bytes: int = 0
    weight: float = 1.0
    over: tuple[int, float] | None = None
    claims: NamespaceClaims = NamespaceClaims()


@dataclass(frozen=True, slots=True)
class ViewServer:
    """A server with its share of the ring, 0 < weight <= 1; a draining one has weight 0."""

    record: ServerRecord
    weight: float


@dataclass(frozen=True, slots=True)
class PoolView:
    """The pool at one time.

    Args:
        version: changes whenever anything but facts and uptime changes; values have no order.
        servers: by name.
        namespaces: by name.
    """

    version: str
    servers: tuple[ViewServer, ...] = ()
    namespaces: tuple[NamespaceRecord, ...] = ()


EMPTY_VIEW = PoolView("none")


# Tenants of the pool: isolation of their caches, and quotas per server.
#
# Equal prompts of two tenants must neither share blocks nor reveal that the other tenant's exist. Both follow from the
# salt at the start of a tenant's prefix-hash chain: its hashes cannot be computed or requested without the salt.

DEFAULT_NAMESPACE = "default"
"""Namespace of requests whose API key belongs to no tenant. It always exists; a record of it only sets a quota."""

SALT_BYTES = 16

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PERSON_NAMESPACE = b"kv namespace"
_PERSON_REQUEST = b"kv cache salt"


def is_namespace_name(name: str) -> bool:
    """Whether a tenant's name is valid: 1 to 64 of `A-Z a-z 0-9 . _ -`, the first a letter or digit.

    A name becomes a metric label and a folder of the SSD tier, where `..` or `.git` would have another meaning.
    """
    return _NAME.fullmatch(name) is not None


def namespace_salt(secret: bytes, name: str) -> bytes:
    """The salt of a tenant's prefix-hash chains, 16 bytes.

    Args:
        secret: known to gateways only, of any length; changing it makes all cached blocks unreachable.
    """
    # A BLAKE2b key has at most 64 bytes; hashing it first takes secrets of any length.
    key = blake2b(secret, person=_PERSON_NAMESPACE).digest()
    return blake2b(name.encode(), key=key, digest_size=SALT_BYTES, person=_PERSON_NAMESPACE).digest()


def request_salt(namespace_salt: bytes, cache_salt: str | None) -> bytes:
    """The salt of one request, derived from its tenant's salt and the request's `cache_salt`.

    Requests share blocks only if both agree, or both have none; an empty `cache_salt` is not the same as none.

    Args:
        namespace_salt: as `namespace_salt` makes it.
        cache_salt: any text, lone surrogates included; it is untrusted input.
    """
    if cache_salt is None:
        return namespace_salt
    # Keyed with the tenant's salt: no text of one tenant can produce a chain of another one.
    text = cache_salt.encode("utf-8", "surrogatepass")
    return blake2b(text, key=namespace_salt, digest_size=SALT_BYTES, person=_PERSON_REQUEST).digest()


def server_quotas(records: Iterable[NamespaceRecord], view: PoolView) -> dict[str, dict[str, int]]:
    """Share of each tenant's quota on each server: by weight, like its blocks.

    A block belongs to one server, and hashes spread evenly, so that a tenant reaches its quota on all servers at about
    the same time; a server may refuse a little early, since shares of the ring are not exactly even.

    Returns: {server: {namespace: bytes}}; no entry = no limit. A share is at least 1 byte, because 0 means no limit. A
        draining server has no shares: it accepts no new blocks, and its entries are about to move.
    """
    weights: Mapping[str, float] = {s.record.name: s.weight for s in view.servers}
    total = sum(weights.values())
    limited = [(r.name, r.quota_bytes) for r in records if r.quota_bytes > 0]
    return {
        server: {name: max(1, int(quota * weight / total)) for name, quota in limited} if weight > 0 else {}
        for server, weight in weights.items()
    }
