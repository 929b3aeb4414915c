"""Ports of this machine that a system is going to listen on. Imports no Ray."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from serving.errors import ConfigError

GATEWAY_PORT = "[gateway] port or --port"
"""What a user would change."""


def require_free(host: str, port: int, setting: str) -> None:
    """Look whether a port could be listened on now.

    Args:
        setting: what the user would change, for the error.

    Raises: ConfigError if it is taken, or this machine has no such address.
    """
    with _bound(host, port, setting):
        pass


def any_free_port(host: str) -> int:
    """A port that nothing listens on now, one of thousands, of which the kernel takes another one each time.

    Raises: OSError if this machine has no such address.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.bind((host, 0))
        port: int = sock.getsockname()[1]
        return port


@contextmanager
def reserved_port(host: str, port: int, setting: str) -> Iterator[None]:
    """Keep a port for this user's processes that share it (SO_REUSEPORT), as gateways and Serve's proxy do.

    Ray's processes take dozens of ports, any that are free, while the gateway is not there yet or has died. The kernel
    gives them none that is bound; connections go to those who listen, and this does not.

    Raises: ConfigError as `require_free`.
    """
    with _bound(host, port, setting) as sock:
        # Only now: bound as shared, it would not have found another system that shares its own port in this way.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        yield


@contextmanager
def _bound(host: str, port: int, setting: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections of an earlier one do not count
        try:
            sock.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(
                    f"port {port} on {host} is in use: stop what listens there, or set {setting}"
                ) from error
            raise ConfigError(f"cannot listen on {host}:{port} ({error.strerror}): set {setting}") from error
        yield sock
