"""One operation on the pool as a pure state machine: its events and effects.

    effects = operation.start(now)                 requests to servers, copies of bytes
    effects = operation.on(event, now)             for each response, failure and copy, until there are no more effects
    operation.result                               None until it is complete

The driver carries out the effects of one list in their order, but sends all requests before it waits for any response.
Each request gets one `PoolAnswer` or, by its `until` at the latest, one `PoolFailure`. A failure at a server cancels
the remaining effects of the same list there. A server that does not respond in time loses its connection, as it does by
`PoolClose`; leases and reservations are booked under a connection and end with it.

A complete operation still takes events: late responses release their leases and reservations.
"""

from collections.abc import Container, Sequence
from typing import Protocol

from serving.errors import PoolError, PoolTimeoutError, PoolUnreachableError
from serving.kvpool.core.entry import Found, Grant, GrantStatus
from serving.kvpool.core.messages import Abort, Looked, Message, ReleaseLeases, Reserved
from serving.values.news import Value
from serving.values.pool_outcome import MissReason

LAST_WORD_S = 0.1
"""How long commits, reports and releases may take after an operation's deadline; then the connection is closed."""

# ---- effects -------------------------------------------------------------------------------------------------------


class PoolAsk(Value, frozen=True):
    """Send a request to a server; its response is due by `until`."""

    server: str
    message: Message
    until: float


class PoolPost(Value, frozen=True):
    """Send a request whose response carries no information. Only a failure is reported."""

    server: str
    message: Message
    until: float


class PoolClose(Value, frozen=True):
    """End the connection to a server, and with it all that is booked under it."""

    server: str


class PoolRead(Value, frozen=True):
    """Copy found blocks to their places, in order, up to the first that fails; verify each.

    Args:
        indices: of the places; the first items of `servers` and `found` belong to them.
        until: no copy starts after this.
    """

    indices: Sequence[int]
    servers: Sequence[str]
    found: Sequence[Found]
    until: float


class PoolWrite(Value, frozen=True):
    """Copy entries into room that a server granted.

    Args:
        grants: each with the index of its entry.
        until: no copy starts after this: no byte may be written after the reservation, which lasts longer, has expired.
    """

    server: str
    grants: Sequence[tuple[int, Grant]]
    until: float


PoolEffect = PoolAsk | PoolPost | PoolClose | PoolRead | PoolWrite

# ---- events --------------------------------------------------------------------------------------------------------


class PoolAnswer(Value, frozen=True):
    """Response of a server."""

    server: str
    message: Message


class PoolFailure(Value, frozen=True):
    """A request to a server failed, or was not answered in time."""

    server: str
    reason: MissReason


class PoolReadDone(Value, frozen=True):
    """End of a `PoolRead`: the number of blocks in place and verified, and why the next one is not."""

    good: int
    reason: MissReason | None = None


class PoolWritten(Value, frozen=True):
    """End of a `PoolWrite`: for each grant the checksum of the bytes written, or one word why it failed."""

    server: str
    digests: Sequence[int | str]


PoolEvent = PoolAnswer | PoolFailure | PoolReadDone | PoolWritten


class ClientOperation(Protocol):
    """Interface of an operation, as a driver uses it."""

    def start(self, now: float) -> Sequence[PoolEffect]:
        """First effects. Called once."""
        ...

    def on(self, event: PoolEvent, now: float) -> Sequence[PoolEffect]:
        """Effects of an event."""
        ...


def reason_of(error: PoolError) -> MissReason:
    """The word for an error of a link."""
    if isinstance(error, PoolTimeoutError):
        return MissReason.TIMEOUT
    return MissReason.UNREACHABLE if isinstance(error, PoolUnreachableError) else MissReason.ERROR


def undo(event: PoolEvent, until: float, given_up: Container[str]) -> list[PoolEffect]:
    """Effects of an event that an operation does not wait for: they leave no lease and no reservation.

    Args:
        given_up: servers whose responses are not used; a response of another server is a duplicate.
    """
    if isinstance(event, PoolFailure):
        return [PoolClose(event.server)]
    if not isinstance(event, PoolAnswer) or event.server not in given_up:
        return []
    match event.message:
        case Looked(found):
            leased = tuple([one.version for one in found if one is not None])
            return [PoolPost(event.server, ReleaseLeases(leased), until)] if leased else []
        case Reserved(grants):
            granted = tuple([one.version for one in grants if one.status is GrantStatus.GRANTED])
            return [PoolPost(event.server, Abort(granted), until)] if granted else []
    return []
