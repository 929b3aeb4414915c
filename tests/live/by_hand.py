"""Gateways' backends and instance servers whose links, engine loop and time are controlled by a test."""

import asyncio
from collections.abc import Iterable
from typing import Any

from serving.gateway.core.events import GatewayEvent, Look
from serving.gateway.live.backend import LiveBackend
from serving.ids import GatewayId, SequenceId
from serving.instance.live.engine_news import LoopEvent
from serving.instance.live.instance_server import InstanceServer
from serving.values.instances import Status
from serving.wire import messages as m

# Connections and links are replaced by the test's own.


def serve(server: InstanceServer, engine_loop: Any) -> None:
    """Attach an engine loop to a server, without a port."""
    server._engine_loop = engine_loop


def start(server: InstanceServer) -> None:
    """Let a server use the running event loop, without a port and without regular reports."""
    server._asyncio_loop = asyncio.get_running_loop()


def greet(server: InstanceServer, connection: Any) -> None:
    """Mark a gateway as introduced."""
    server._gateways[connection] = m.GatewayHello(GatewayId("g"))


def own(server: InstanceServer, connection: Any, *names: str) -> None:
    """Mark sequences as sent by a gateway."""
    server._owner.update(dict.fromkeys(map(SequenceId, names), connection))


def owned(server: InstanceServer) -> set[SequenceId]:
    """Sequences that a gateway waits for."""
    return set(server._owner)


def order(server: InstanceServer, connection: Any, body: bytes) -> None:
    """Deliver a gateway's frame."""
    server._on_frame(connection, body)


def hang_up(server: InstanceServer, connection: Any) -> None:
    """End a gateway's link."""
    server._on_closed(connection, "cut")


def tell(server: InstanceServer, news: Iterable[LoopEvent]) -> None:
    """Send events to the gateways that own their sequences."""
    server._dispatch(news)


def report(server: InstanceServer) -> None:
    """Send all gateways a status."""
    server._send_status()


def link_up(gate: LiveBackend, replica: Any, link: Any) -> None:
    """Give a gateway a link."""
    gate.links._links[replica] = link
    gate._on_up(link)


def arrive(gate: LiveBackend, link: Any, message: m.ToGateway) -> None:
    """Deliver an instance's frame or status to a gateway."""
    if isinstance(message, m.Frame):
        gate._on_frame(link, message)
    elif isinstance(message, Status):
        gate._on_status(link, message)


def link_down(gate: LiveBackend, link: Any) -> None:
    """End a gateway's link."""
    gate.links._down(link, "cut")


def happen(gate: LiveBackend, event: GatewayEvent) -> None:
    """Deliver an event to a gateway."""
    gate._tell(event)


def look(gate: LiveBackend) -> None:
    """Make a gateway process elapsed time."""
    happen(gate, Look())


def without_waker(gate: LiveBackend) -> None:
    """Disable a gateway's own wake-ups, so that only the test wakes it."""
    waker: Any = "woken by hand"
    gate._waker = waker
