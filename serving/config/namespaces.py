"""Checks that a configuration's tenants are distinct by name and by key."""

import re
from collections import Counter

from serving.config.gateway import GatewayConfig
from serving.config.kvcache import NamespaceConfig
from serving.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_namespaces(namespaces: tuple[NamespaceConfig, ...], gateway: GatewayConfig) -> None:
    """Check names and API keys; messages never contain a key.

    A key in `[gateway] admin_keys` may also be a tenant's, which makes that tenant an administrator.

    Raises: ConfigError if a name cannot be part of a path and of a metric's label, two namespaces share a name, or an
        API key has two roles.
    """
    for namespace in namespaces:
        # A name becomes a folder of the SSD tier: it must not start with a dot or contain a slash.
        if not _NAME.fullmatch(namespace.name):
            raise ConfigError(
                f"[[namespaces]] name {namespace.name!r} must be 1 to 64 letters, digits, dots, dashes or underscores"
                f" and begin with a letter or digit"
            )
    twice = _repeated([namespace.name for namespace in namespaces])
    if twice:
        raise ConfigError(f"two [[namespaces]] are called {twice!r}: give each its own name")
    for where, keys in (
        *((f"[[namespaces]] {n.name} api_keys", n.api_keys) for n in namespaces),
        ("[gateway] api_keys", gateway.api_keys),
        ("[gateway] admin_keys", gateway.admin_keys),
    ):
        if any(key != key.strip() for key in keys):
            raise ConfigError(f"{where} holds a key that begins or ends with a space: no client can send it")
    owners: dict[str, str] = {}
    for where, keys in (
        *((f"[[namespaces]] {n.name}", n.api_keys) for n in namespaces),
        ("[gateway]", gateway.api_keys),
    ):
        if _repeated(list(keys)):
            raise ConfigError(f"{where} api_keys holds a key twice: remove one")
        for key in keys:
            if key in owners:
                raise ConfigError(f"{owners[key]} and {where} share an API key: a key belongs to one namespace")
            owners[key] = where
    if _repeated(list(gateway.admin_keys)):
        raise ConfigError("[gateway] admin_keys holds a key twice: remove one")


def _repeated(texts: list[str]) -> str | None:
    return next((text for text, count in Counter(texts).items() if count > 1), None)
