"""Gateways' backends and instance servers whose links, engine loop and time are in a test's hands."""

from collections.abc import Iterable
from typing import Any

from serving.gateway.core.events import GatewayEvent, Look
from serving.gateway.live.backend import LiveBackend
from serving.ids import GatewayId, SequenceId
from serving.instance.live.engine_news import LoopNews
from serving.instance.live.instance_server import InstanceServer
from serving.values.instances import Status
from serving.wire import messages as m

# Connections and links are whatever a test has in their place.


def serve(server: InstanceServer, engine_loop: Any) -> None:
    """Give a server its engine loop, without a port."""
    server._engine_loop = engine_loop


def greet(server: InstanceServer, connection: Any) -> None:
    """Let a gateway have introduced itself."""
    server._gateways[connection] = m.GatewayHello(GatewayId("g"))


def own(server: InstanceServer, connection: Any, *names: str) -> None:
    """Let a gateway have sent sequences."""
    server._owner.update(dict.fromkeys(map(SequenceId, names), connection))


def owned(server: InstanceServer) -> set[SequenceId]:
    """Sequences that a gateway waits for."""
    return set(server._owner)


def order(server: InstanceServer, connection: Any, body: bytes) -> None:
    """Let a gateway's frame arrive."""
    server._on_frame(connection, body)


def hang_up(server: InstanceServer, connection: Any) -> None:
    """Let a gateway's link end."""
    server._on_closed(connection, "cut")


def tell(server: InstanceServer, news: Iterable[LoopNews]) -> None:
    """Send news to the gateways that own it."""
    server._dispatch(news)


def report(server: InstanceServer) -> None:
    """Send all gateways a status."""
    server._send_status()


def link_up(gate: LiveBackend, replica: Any, link: Any) -> None:
    """Let a gateway have a link."""
    gate.links._links[replica] = link
    gate._on_up(link)


def arrive(gate: LiveBackend, link: Any, message: m.ToGateway) -> None:
    """Let an instance's frame or status arrive at a gateway."""
    if isinstance(message, m.Frame):
        gate._on_frame(link, message)
    elif isinstance(message, Status):
        gate._on_status(link, message)


def link_down(gate: LiveBackend, link: Any) -> None:
    """Let a gateway's link end."""
    gate.links._down(link, "cut")


def happen(gate: LiveBackend, event: GatewayEvent) -> None:
    """Tell a gateway of an event."""
    gate._tell(event)


def look(gate: LiveBackend) -> None:
    """Have a gateway look at what time has brought."""
    happen(gate, Look())


def without_waker(gate: LiveBackend) -> None:
    """Let nothing but the test wake a gateway."""
    waker: Any = "woken by hand"
    gate._waker = waker
