"""Tenants: an API key belongs to one namespace, and a request's cached blocks to its key's namespace.

    key of `[[namespaces]] acme`   -> acme
    key of `[gateway] api_keys`    -> default
    key of `[gateway] admin_keys`  -> default (or its `[[namespaces]]`), and may read and delete every tenant's cache
    no keys configured at all      -> default, and may administer: the server is open

If a key of any kind is configured, requests without one are refused. Only digests are stored.
"""

import base64
import hmac
from dataclasses import dataclass, replace

from starlette.requests import Request

from serving.errors import AuthenticationError
from serving.gateway.api.settings import ApiSettings, hash_api_key
from serving.values.pool_view import DEFAULT_NAMESPACE, namespace_salt

BACKGROUND_TENANT = "cloudmatrix.background_tenant"
"""Key of an ASGI scope with the tenant of a request that this process sends to its own application. Servers build
scopes from keys of their own only, so no client can set it."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One client.

    Args:
        namespace: under which the pool accounts for the client's blocks.
        salt: first part of its prefix-hash chains; chains of different namespaces never match.
        admin: may read and delete the cache of every namespace.
        key: distinguishes its API key from others in queues; empty = shared by all clients without a key.
        weight: weight of the key in queues.
        alone: no other tenant has a key, so the system's state reveals no other tenant's traffic.
        background: its requests run behind those of all other clients, as the lines of a batch do.
    """

    namespace: str
    salt: bytes
    admin: bool = False
    key: str = ""
    weight: float = 1.0
    alone: bool = False
    background: bool = False

    @property
    def may_see_system(self) -> bool:
        """Whether this client may see replicas, machines and load of the whole system."""
        return self.admin or self.alone

    def may_manage(self, namespace: str) -> bool:
        """Whether this client may read and delete a namespace's contents."""
        return self.admin or namespace == self.namespace


class KeyRing:
    """All known keys, as digests, with the tenant of each."""

    def __init__(self, settings: ApiSettings) -> None:
        self._anonymous = self._tenant(DEFAULT_NAMESPACE, settings, admin=False)
        admins = frozenset(settings.admin_key_hashes)
        owners: dict[bytes, str] = {}
        for namespace in settings.namespaces:
            for digest in namespace.key_hashes:
                owners.setdefault(digest, namespace.name)
        for digest in (*settings.api_key_hashes, *settings.admin_key_hashes):
            owners.setdefault(digest, DEFAULT_NAMESPACE)
        self._digests = tuple(owners)
        weights = {namespace.name: namespace.weight for namespace in settings.namespaces}
        alone = len(set(owners.values())) == 1
        self._tenants = [
            replace(
                self._tenant(name, settings, admin=digest in admins),
                key=f"{name}/{digest.hex()[:12]}",
                weight=weights.get(name, 1.0),
                alone=alone,
            )
            for digest, name in owners.items()
        ]
        self._everybody = self._tenant(DEFAULT_NAMESPACE, settings, admin=True)

    @staticmethod
    def _tenant(name: str, settings: ApiSettings, *, admin: bool) -> Tenant:
        return Tenant(name, namespace_salt(settings.pool_salt, name), admin)

    @property
    def open(self) -> bool:
        """Whether no key is configured, so that every client may enter."""
        return not self._digests

    def identify(self, authorization: str | None) -> Tenant:
        """The tenant of `Bearer <key>`, or of `Basic` with the key as password, as browsers send it.

        Every digest is compared, each in constant time.

        Raises: AuthenticationError when a key is required and missing or unknown.
        """
        if self.open:
            return self._everybody
        key = _key_of(authorization or "")
        if not key:
            raise AuthenticationError("no API key was given; send it as 'Authorization: Bearer <key>'")
        digest = hash_api_key(key)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]  # a list: no early exit
        if not any(matches):
            raise AuthenticationError("the API key is not valid on this server; check the key")
        return self._tenants[matches.index(True)]

    def glance(self, authorization: str | None) -> Tenant:
        """Identify the client on paths that need no key: an unknown key is the anonymous tenant."""
        try:
            return self.identify(authorization)
        except AuthenticationError:
            return self._anonymous


def _key_of(authorization: str) -> str:
    """The key in an `Authorization` header; empty if there is none."""
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(rest.strip(), validate=True).decode().partition(":")[2]
    except ValueError:  # not Base64, or not UTF-8
        return ""


def tenant_of(request: Request) -> Tenant:
    """Tenant of this request, set by the middleware."""
    tenant = request.state.tenant
    assert isinstance(tenant, Tenant), "the middleware comes before every route"
    return tenant
