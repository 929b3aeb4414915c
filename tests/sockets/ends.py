"""The end of a connection as seen by its other side."""

import socket


def is_closed(sock: socket.socket) -> bool:
    """Read until the other side has ended the connection, with or without data.

    Returns: False if it has not within the socket's timeout.
    """
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True
