"""Ports of this machine that a system is going to listen on. Imports no Ray."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from serving.cluster.disk_watch import full_disk
from serving.cluster.session import temporary_folder
from serving.config.cluster import ClusterConfig
from serving.errors import ConfigError

GATEWAY_PORT = "[gateway] port or --port"
"""What a user would change."""
_ANY_DASHBOARD_PORT = "[cluster] dashboard_port (any free one: --set cluster.dashboard_port=0)"


def require_free(host: str, port: int, setting: str) -> None:
    """Look whether a port could be listened on now.

    Args:
        setting: what the user would change, for the error.

    Raises: ConfigError if it is taken, or this machine has no such address.
    """
    with _bound(host, port, setting):
        pass


def require_places(host: str, port: int, setting: str, cluster: ClusterConfig) -> None:
    """See that a start on this machine can have its ports, the dashboard's included, and its folder.

    Args:
        setting: as `require_free`.
    Raises: ConfigError if a port is taken, the folder of starts cannot be written, or its disk is full.
    """
    if 0 < port < 1 << 16:  # else its range is what is wrong with it
        require_free(host, port, setting)
    if cluster.dashboard_port:
        require_free(cluster.dashboard_host, cluster.dashboard_port, _ANY_DASHBOARD_PORT)
    folder = temporary_folder()
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder} cannot be written, and a start has its folder there: set TMPDIR to one that can")
    if (line := full_disk(folder)) is not None:
        raise ConfigError(line)


def any_free_port(host: str) -> int:
    """An unused port, chosen by the kernel from thousands, usually a different one each time.

    Raises: OSError if this machine has no such address.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.bind((host, 0))
        port: int = sock.getsockname()[1]
        return port


@contextmanager
def reserved_port(host: str, port: int, setting: str) -> Iterator[None]:
    """Keep a port for this user's processes that share it (SO_REUSEPORT), as gateways and Serve's proxy do.

    Ray's processes take dozens of free ports while the gateway has not started or has died. The kernel does not hand
    out a bound port; connections reach only listening sockets, and this one does not listen.

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
