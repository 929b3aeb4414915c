"""Host names that requests may use: protects servers without API keys against DNS rebinding.

A page under a foreign name may let that name resolve to this machine; the browser then treats this server as the page's
own and lets the page read every response. The `Host` header still has the foreign name, and no script can change it. An
IP address instead of a name cannot be rebound.
"""

import ipaddress
import socket
from collections.abc import Iterable

LOOPBACK_NAMES = ("localhost", "*.localhost", "127.0.0.1", "[::1]")
ANY = "*"


class AllowedHosts:
    """Check of a request's `Host` header.

    Args:
        names: host names or addresses without a port; `*.example.com` = any name with this suffix; `*` = any. Loopback
            and this machine's own name are always included.
        any_address: whether every IP address is allowed, instead of loopback only.
    """

    def __init__(self, names: Iterable[str] = (), *, any_address: bool) -> None:
        known = [_plain(name) for name in (*LOOPBACK_NAMES, socket.gethostname(), *names)]
        self._any = ANY in known
        self._names = frozenset(known)
        self._endings = tuple(name[1:] for name in known if name.startswith("*."))
        self._any_address = any_address

    def allow(self, header: str) -> bool:
        """Whether a request with this `Host` is allowed. The port is ignored: a tunnel may have another."""
        name, colon, port = header.rpartition(":")
        if not colon or header.endswith("]"):  # no port; the colons belong to an IPv6 address
            name = header
        elif port and not (port.isascii() and port.isdigit()):
            return False
        name = _plain(name)
        return self._any or name in self._names or name.endswith(self._endings) or self._is_allowed_address(name)

    def _is_allowed_address(self, name: str) -> bool:
        bracketed = name.startswith("[") and name.endswith("]")
        try:
            address = ipaddress.ip_address(name[1:-1] if bracketed else name)
        except ValueError:
            return False
        if (address.version == 6) != bracketed:
            return False
        return self._any_address or address.is_loopback


def is_loopback(host: str) -> bool:
    """Whether a server listening on this name or address is reachable from its own machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return _plain(host) == "localhost"


def in_header(host: str) -> str:
    """A name or address in the format of `Host`: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")
