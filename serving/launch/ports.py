"""Ports of this machine that a system will listen on. Does not import Ray."""

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
"""Setting named in the error."""
_ANY_DASHBOARD_PORT = "[cluster] dashboard_port (any free one: --set cluster.dashboard_port=0)"


def require_free(host: str, port: int, setting: str) -> None:
    """Check that a port is free now.

    Args:
        setting: the user's setting, for the error.

    Raises: ConfigError if it is in use, or this machine has no such address.
    """
    with _bound(host, port, setting):
        pass


def require_places(host: str, port: int, setting: str, cluster: ClusterConfig) -> None:
    """Check the ports, including the dashboard's, and the folder that a start on this machine needs.

    Args:
        setting: as `require_free`.
    Raises: ConfigError if a port is in use, the folder of starts is not writable, or its disk is full.
    """
    if 0 < port < 1 << 16:  # otherwise its range is the error
        require_free(host, port, setting)
    if cluster.dashboard_port:
        require_free(cluster.dashboard_host, cluster.dashboard_port, _ANY_DASHBOARD_PORT)
    folder = temporary_folder()
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{folder} is not writable, but the launcher needs a folder there: set TMPDIR to a writable folder"
        )
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
    """Reserve a port for this user's processes that share it (SO_REUSEPORT), as gateways and Serve's proxy do.

    Ray's processes take dozens of free ports while no gateway listens, before its start or after its death. The kernel
    does not hand out a bound port; connections reach only listening sockets, and this one does not listen.

    Raises: ConfigError as `require_free`.
    """
    with _bound(host, port, setting) as sock:
        # Not before: bound as shared, it would not have detected another system that shares its port in the same way.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        yield


@contextmanager
def _bound(host: str, port: int, setting: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ignore closed connections of an earlier listener
        try:
            sock.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(
                    f"port {port} on {host} is in use: stop the process that listens there, or set {setting}"
                ) from error
            raise ConfigError(f"cannot listen on {host}:{port} ({error.strerror}): set {setting}") from error
        yield sock
