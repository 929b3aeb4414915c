"""The pool's members as clients see them: one immutable value that the controller hands out whole."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from serving.ids import NodeId


class ServerState(Enum):
    """State of a memory server."""

    ACTIVE = "active"
    DRAINING = "draining"
    """It hands its entries to the others: read from it, write nothing to it."""


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """Announcement of a memory server about itself, about once a second.

    Args:
        name: its place in the ring; the server that replaces a dead one takes over its name and its SSD directory.
        incarnation: tells a restarted server from its predecessor.
        node: on which its UB segment can be mapped.
        host, port: where it listens for clients.
        segment: path of its UB segment.
        generation: of its region of that segment.
        uptime_s: since it began to serve; a young one takes its share of the keys step by step.
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
        quota_bytes: 0 = no limit; it counts over the whole pool.
        weight: of each of its keys where requests wait for their turn at a gateway.
        over: quota and weight of the configuration when an operator changed them; None = nobody did.
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
    """The pool at one moment.

    Args:
        version: another value whenever anything but facts and uptime differs; not a number to compare.
        servers: by name.
        namespaces: by name.
    """

    version: str
    servers: tuple[ViewServer, ...] = ()
    namespaces: tuple[NamespaceRecord, ...] = ()


EMPTY_VIEW = PoolView("none")
