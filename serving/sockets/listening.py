"""Listening sockets: at any free port, or within `[cluster] port_range`."""

import errno
import socket

from serving.config.ports import ANY_PORT, PORT_RANGE_KEY, PortRange
from serving.errors import ConfigError


def listen(host: str, ports: PortRange = ANY_PORT, backlog: int = 128, wish: int = 0) -> socket.socket:
    """A socket listening on `host`.

    Args:
        wish: port to try first, if it is allowed; 0 = none.
    Raises: ConfigError if every port of the range is in use; OSError if the host cannot be bound.
    """
    allowed = [0] if ports == ANY_PORT else [*range(ports.first, ports.last + 1)]
    if wish and (wish in allowed or ports == ANY_PORT):
        allowed.insert(0, wish)
    for port in allowed:
        try:
            return socket.create_server((host, port), backlog=backlog)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    raise ConfigError(
        f"every port of {PORT_RANGE_KEY} {ports.first}-{ports.last} on {host} is taken: widen it, or stop what "
        "listens there"
    )
