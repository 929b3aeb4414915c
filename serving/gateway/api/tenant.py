"""Tenants: an API key belongs to one namespace, and a request's cached blocks to its key's namespace.

    key of `[[namespaces]] acme`   -> acme
    key of `[gateway] api_keys`    -> default
    key of `[gateway] admin_keys`  -> default (or its `[[namespaces]]`), and may see and delete everybody's cache
    no keys configured at all      -> default, and may administer: the server is open

As soon as any key is configured, of whatever kind, requests without one are refused. Only digests are held.
"""

import base64
import hmac
from dataclasses import dataclass, replace

from starlette.requests import Request

from serving.errors import AuthenticationError
from serving.gateway.api.settings import ApiSettings, hash_api_key
from serving.values.namespaces import DEFAULT_NAMESPACE, namespace_salt


@dataclass(frozen=True, slots=True)
class Tenant:
    """One caller.

    Args:
        namespace: under which the pool books the caller's blocks.
        salt: first part of its prefix-hash chains; another namespace's chain never meets it.
        admin: may see and delete the cache of every namespace.
        key: tells its API key from others where they wait for their turn; empty = everybody's.
        weight: of the key's share there.
        alone: no key belongs to another tenant, so there is nobody whose traffic the system's state would show.
    """

    namespace: str
    salt: bytes
    admin: bool = False
    key: str = ""
    weight: float = 1.0
    alone: bool = False

    @property
    def may_see_system(self) -> bool:
        """Whether replicas, machines and load of the whole system are this caller's to see."""
        return self.admin or self.alone

    def may_manage(self, namespace: str) -> bool:
        """Whether a namespace's contents are this caller's to see and to delete."""
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
        """No key is configured: everybody may enter."""
        return not self._digests

    def identify(self, authorization: str | None) -> Tenant:
        """The tenant of `Bearer <key>`, or of `Basic` with the key as password, as browsers send it.

        Every digest is compared, each in constant time.

        Raises: AuthenticationError when a key is needed and there is none, or an unknown one.
        """
        if self.open:
            return self._everybody
        key = _key_of(authorization or "")
        if not key:
            raise AuthenticationError("no API key was given; send it as 'Authorization: Bearer <key>'")
        digest = hash_api_key(key)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]  # a list: no early exit
        if not any(matches):
            raise AuthenticationError("the API key is not known to this server; check the key")
        return self._tenants[matches.index(True)]

    def glance(self, authorization: str | None) -> Tenant:
        """Identify the sender for paths that need no key: an unknown key is the anonymous tenant."""
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
    except ValueError:  # no Base64, or no UTF-8
        return ""


def tenant_of(request: Request) -> Tenant:
    """Sender of this request, as the middleware found out."""
    tenant = request.state.tenant
    assert isinstance(tenant, Tenant), "the middleware comes before every route"
    return tenant
