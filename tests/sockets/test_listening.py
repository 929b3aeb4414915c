"""Ports within a range, and the error if there is none; how many connections an acceptor serves."""

import queue
import socket
import threading

import pytest

from serving.config.cluster import ANY_PORT, PortRange
from serving.errors import ConfigError
from serving.sockets.acceptor import MOST_STRANGERS, Acceptor, listen


def free_ports(count: int) -> PortRange:
    """A run of ports without listeners."""
    for first in range(20000, 32000, count):
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return PortRange(first, first + count - 1)
    raise AssertionError("no free ports")


def test_listeners_take_the_ports_of_a_range_in_turn_and_the_last_one_is_told() -> None:
    ports = free_ports(2)
    with listen("127.0.0.1", ports) as one, listen("127.0.0.1", ports) as two:
        assert [sock.getsockname()[1] for sock in (one, two)] == [ports.first, ports.last]
        with pytest.raises(ConfigError, match=rf"every port of \[cluster\] port_range {ports.first}-{ports.last} on"):
            listen("127.0.0.1", ports)
        with listen("127.0.0.2", ports, wish=ports.last) as other:
            assert other.getsockname() == ("127.0.0.2", ports.last)


def test_any_port_and_a_wish() -> None:
    with listen("127.0.0.1") as one:
        port = one.getsockname()[1]
        with listen("127.0.0.1", wish=port) as taken, listen("127.0.0.2", wish=port) as free:
            assert taken.getsockname()[1] != port
            assert free.getsockname()[1] == port


def test_an_address_of_another_host_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match="assign requested address"):
        listen("203.0.113.1")


@pytest.mark.parametrize(
    ("text", "found"), [("", ANY_PORT), ("30000-30100", PortRange(30000, 30100)), ("4000", PortRange(4000, 4000))]
)
def test_ranges_that_are_read(text: str, found: PortRange) -> None:
    assert PortRange.parse(text) == found


@pytest.mark.parametrize("text", ["x", "1-", "-5", "80-90", "5000-4000", "4000-70000", "4000-5000-6000"])
def test_ranges_that_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="port_range"):
        PortRange.parse(text)


def test_strangers_that_had_to_go_do_not_count_as_proved() -> None:
    end, served = threading.Event(), queue.Queue[socket.socket]()

    def serve(sock: socket.socket) -> None:
        served.put(sock)
        end.wait(60.0)

    acceptor = Acceptor("test", 1, serve)
    address = acceptor.start("127.0.0.1")
    try:
        clients = [socket.create_connection(address) for _ in range(MOST_STRANGERS + 8)]
        accepted = [served.get(timeout=60.0) for _ in clients]
        # The threads of the eight oldest still run, although their connections are shut.
        assert acceptor.count == MOST_STRANGERS + 8
        assert acceptor.accepted(accepted[-1])
        assert not acceptor.accepted(accepted[-2])
        assert acceptor.proved == 1
    finally:
        end.set()
        for client in clients:
            client.close()
        acceptor.stop(10.0)
