"""The pool's members, for its clients: one immutable value from the controller."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from serving.ids import NodeId


class ServerState(Enum):
    """State of a memory server."""

    ACTIVE = "active"
    DRAINING = "draining"
    """It moves its entries to the others: read from it, do not write to it."""


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """Announcement of a memory server, about once a second.

    Args:
        name: its position in the ring; a server that replaces a dead one takes over its name and SSD directory.
        incarnation: distinguishes a restarted server from its predecessor.
        node: on which its UB segment can be mapped.
        host, port: where it listens for clients.
        segment: path of its UB segment.
        generation: of its region of that segment.
        uptime_s: since it started to serve; a young one takes over its share of the keys gradually.
        models: versions of models whose weights it holds (`model@version`).
        facts: counters and gauges for status pages and metrics; plain numbers, texts, lists and dicts.
    """

    name: str
    incarnation: str
    node: NodeId
    host: str
    port: int
    segment: str
    generation: int
    capacity_bytes: int
    state: ServerState
    uptime_s: float
    models: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """One tenant of the pool.

    Args:
        quota_bytes: limit over the whole pool; 0 = no limit.
        weight: of each of its keys in gateways' queues.
        over: configured quota and weight when an operator changed them; None = unchanged.
    """

    name: str
    quota_bytes: int = 0
    weight: float = 1.0
    over: tuple[int, float] | None = None


@dataclass(frozen=True, slots=True)
class ViewServer:
    """A server with its share of the ring, 0 < weight <= 1; a draining one has weight 0."""

    record: ServerRecord
    weight: float


@dataclass(frozen=True, slots=True)
class PoolView:
    """The pool at one time.

    Args:
        version: changes whenever anything but facts and uptime changes; values have no order.
        servers: by name.
        namespaces: by name.
    """

    version: str
    servers: tuple[ViewServer, ...] = ()
    namespaces: tuple[NamespaceRecord, ...] = ()


EMPTY_VIEW = PoolView("none")
