"""Whether allowed origins are such as browsers send them; one that is spelled otherwise would allow nobody."""

import re

from serving.errors import ConfigError

_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(\d{1,5}))?")
_DEFAULT_PORT = {"http": "80", "https": "443"}


def check_origins(origins: tuple[str, ...]) -> None:
    """Checks `[gateway] allowed_origins`.

    Raises: ConfigError if one is neither `*` nor scheme, host and port in the form that browsers send.
    Effects: none.
    """
    for origin in origins:
        found = _ORIGIN.fullmatch(origin)
        if origin == "*" or (found and found[2] != _DEFAULT_PORT.get(found[1], "")):
            continue
        raise ConfigError(
            f"[gateway] allowed_origins holds {origin!r}, which no browser sends: write scheme and host in lower case,"
            f' without a path or a default port, as "https://chat.example.com", or "*"'
        )
