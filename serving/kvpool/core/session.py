"""State of one client's connection to a memory server."""

from dataclasses import dataclass, field

from serving.ids import NodeId
from serving.kvpool.core.entries import EntryView
from serving.kvpool.core.holds import HoldingProcess


@dataclass(frozen=True, slots=True)
class Writing:
    """A reservation: its place and its start, so that bytes that arrive too late are not written."""

    offset: int
    nbytes: int
    since: float
    model: str | None


@dataclass(slots=True)
class Session:
    """State of a client.

    Args:
        client: number under which its leases and reservations are booked.
        process: None if this server cannot see whether it lives: another node, or another container.
        writing: by version, reserved and not yet committed.
        listing: what the pages of its present listing are cut from.
        written: which pieces of the `Write` under way have a place.
    """

    client: int
    name: str
    node: NodeId
    process: HoldingProcess | None
    writing: dict[int, Writing] = field(default_factory=dict)
    listing: list[EntryView] = field(default_factory=list)
    written: tuple[bool, ...] = ()
