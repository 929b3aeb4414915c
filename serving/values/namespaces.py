"""Tenants of the pool: isolation of their caches, and quotas per server.

Equal prompts of two tenants must neither share blocks nor reveal that the other tenant's exist. Both follow from the
salt at the start of a tenant's prefix-hash chain: its hashes cannot be computed or requested without the salt.
"""

import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b

from serving.values.pool_view import NamespaceRecord, PoolView

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
