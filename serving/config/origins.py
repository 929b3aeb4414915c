"""Checks that allowed origins and hosts have the form that browsers send, and that a proxy can use a root path.

An origin or host in another form would never match.
"""

import re

from serving.errors import ConfigError

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
