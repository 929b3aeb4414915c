"""Checks of tenants, origins and hosts in a configuration."""

import re
from collections import Counter

from serving.config.gateway import GatewayConfig
from serving.config.kvcache import NamespaceConfig
from serving.errors import ConfigError

# Checks that a configuration's tenants are distinct by name and by key.

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


# Checks that allowed origins and hosts have the form that browsers send, and that a proxy can use a root path.
#
# An origin or host in another form would never match.

_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(\d{1,5}))?")
_HOST = re.compile(r"\*|(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]", re.IGNORECASE)
_ROOT = re.compile(r"(?:/[A-Za-z0-9._~-]+)*")
_OWN = ("/v1", "/inference", "/pool", "/experts")
"""Path prefixes of the endpoint itself."""
_DEFAULT_PORT = {"http": "80", "https": "443"}


def check_origins(origins: tuple[str, ...]) -> None:
    """Check `[gateway] allowed_origins`.

    Raises: ConfigError if one is neither `*` nor scheme, host and port in the form that browsers send.
    """
    for origin in origins:
        found = _ORIGIN.fullmatch(origin)
        if origin == "*" or (found and found[2] != _DEFAULT_PORT.get(found[1], "")):
            continue
        raise ConfigError(
            f"[gateway] allowed_origins holds {origin!r}, which no browser sends: write scheme and host in lower case,"
            f' without a path or a default port, as "https://chat.example.com", or "*"'
        )


def check_hosts(hosts: tuple[str, ...]) -> None:
    """Check `[gateway] allowed_hosts`.

    Raises: ConfigError if one is neither `*` nor a name or address alone, without scheme, port or path.
    """
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise ConfigError(
                f"[gateway] allowed_hosts holds {host!r}, which is not a host: write its name or address alone, as"
                f' "llm.example.com", "*.example.com", "[fd00::1]", or "*"'
            )


def check_root_path(path: str) -> None:
    """Check `[gateway] root_path`.

    Raises: ConfigError if it is not a path, or begins like one of the endpoint's own paths.
    """
    if not _ROOT.fullmatch(path):
        raise ConfigError(f'[gateway] root_path = {path!r} must begin with a slash and not end with one, as "/llm"')
    if path.startswith(_OWN):
        raise ConfigError(f"[gateway] root_path = {path!r} starts like a path of the endpoint: choose another")
