"""A port for a later listener: reported as taken, or reserved until then."""

import errno
import socket

import pytest

from serving.errors import ConfigError
from serving.launch.machine import any_free_port, require_free, reserved_port
from tests.e2e.server import free_port


def listening(port: int, *options: int, host: str = "127.0.0.1") -> socket.socket:
    """Raises: OSError if the port is taken."""
    sock = socket.socket()
    try:
        for option in options:
            sock.setsockopt(socket.SOL_SOCKET, option, 1)
        sock.bind((host, port))
        sock.listen()
    except BaseException:
        sock.close()
        raise
    return sock


def test_a_free_port_is_free_afterwards() -> None:
    port = free_port()
    require_free("127.0.0.1", port, "[x] port")
    with listening(port):
        pass


def test_any_free_port_is_not_the_first_from_a_number_on() -> None:
    """So that the next start does not take the port of a process that has just died."""
    found = [any_free_port("127.0.0.1") for _ in range(20)]
    assert len(set(found)) > 10
    require_free("127.0.0.1", found[0], "[x] port")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_somebody_listens_on(host: str) -> None:
    with listening(0, socket.SO_REUSEADDR, socket.SO_REUSEPORT) as other:
        port = other.getsockname()[1]
        says = rf"port {port} on {host} is in use: stop the process that listens there, or set \[x\] port"
        with pytest.raises(ConfigError, match=says):
            require_free(host, port, "[x] port")


def test_an_address_of_another_machine() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:\d+ \(.*\): set --host"):
        require_free("192.0.2.1", free_port(), "--host")


def test_a_second_system_finds_a_reserved_port_taken() -> None:
    port = free_port()
    with reserved_port("127.0.0.1", port, "[x] port"):
        with pytest.raises(ConfigError, match="in use"), reserved_port("0.0.0.0", port, "[x] port"):
            pass
        with pytest.raises(ConfigError, match="in use"):
            require_free("127.0.0.1", port, "[x] port")


def test_nobody_else_gets_a_reserved_port() -> None:
    port = free_port()
    with reserved_port("127.0.0.1", port, "[x] port"):
        for options in ((), (socket.SO_REUSEADDR,)):
            with pytest.raises(OSError, match="in use") as refused:
                listening(port, *options).close()
            assert refused.value.errno == errno.EADDRINUSE


def test_who_shares_a_reserved_port_gets_its_connections() -> None:
    options = (socket.SO_REUSEADDR, socket.SO_REUSEPORT)  # the gateway's, and Serve's proxy's
    port = free_port()
    with reserved_port("127.0.0.1", port, "[x] port"):
        for _ in range(2):  # a second gateway after the first, whose connection is not long closed
            with listening(port, *options) as server, socket.create_connection(("127.0.0.1", port), 5) as client:
                accepted, _address = server.accept()
                with accepted:
                    accepted.sendall(b"here")
                assert client.recv(4) == b"here"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5).close()
    require_free("127.0.0.1", port, "[x] port")
