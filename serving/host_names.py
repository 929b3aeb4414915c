"""Names under which a server may be asked: what keeps DNS rebinding out of servers that ask for no key.

A page of a foreign name may let that name point to this machine; the browser then takes this server for the page's own
and lets it read every answer. It still says the foreign name in the `Host` header, and no script can change that. An
address in place of a name cannot be rebound.
"""

import ipaddress
import socket
from collections.abc import Iterable

LOOPBACK_NAMES = ("localhost", "*.localhost", "127.0.0.1", "[::1]")
ANY = "*"


class AllowedHosts:
    """Decides by a request's `Host` header.

    Args:
        names: host names or addresses without a port; `*.example.com` = whatever ends like this; `*` = any. Loopback
            and this machine's own name are always among them.
        any_address: whether every IP address passes, or those of loopback only.
    """

    def __init__(self, names: Iterable[str] = (), *, any_address: bool) -> None:
        known = [_plain(name) for name in (*LOOPBACK_NAMES, socket.gethostname(), *names)]
        self._any = ANY in known
        self._names = frozenset(known)
        self._endings = tuple(name[1:] for name in known if name.startswith("*."))
        self._any_address = any_address

    def allow(self, header: str) -> bool:
        """Whether a request with this `Host` may be answered. The port does not matter: a tunnel may have its own."""
        name, colon, port = header.rpartition(":")
        if not colon or header.endswith("]"):  # no port; colons are an IPv6 address's own
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
    """Whether a server that listens on this name or address can be reached from its own machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return _plain(host) == "localhost"


def in_header(host: str) -> str:
    """A name or address as browsers write it in `Host`: IPv6 addresses have brackets there."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")
