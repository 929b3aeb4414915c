"""One operation on the pool as a pure state machine: what it and its driver say to each other.

    effects = operation.start(now)                 ask some servers something, copy some bytes
    effects = operation.on(event, now)             for each answer, failure and copy, until there are no more effects
    operation.result                               None while it is under way

The driver carries out the effects of one list in their order, but all its questions are asked before any answer is
waited for. Each question gets one `PoolAnswer` or, by its `until` at the latest, one `PoolFailure`. A failure at a
server ends what else the same list wants of it. A server that does not answer in time loses its connection, as it does
by `PoolClose`; leases and reservations are booked under a connection and end with it.

An operation that has its result still takes events. What comes too late gives its leases and reservations back.
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
    """Ask a server; its answer is due by `until`."""

    server: str
    message: Message
    until: float


class PoolPost(Value, frozen=True):
    """Tell a server something. Only a failure is reported, and its answer says nothing."""

    server: str
    message: Message
    until: float


class PoolClose(Value, frozen=True):
    """End the connection to a server, and with it all that is booked under it."""

    server: str


class PoolRead(Value, frozen=True):
    """Copy found blocks to their places, in order, up to the first that fails; each is to be verified.

    Args:
        indices: of the places; `servers` and `found` begin with as many.
        until: nothing is begun from then on.
    """

    indices: Sequence[int]
    servers: Sequence[str]
    found: Sequence[Found]
    until: float


class PoolWrite(Value, frozen=True):
    """Copy entries into room that a server granted.

    Args:
        grants: each with the index of its entry.
        until: nothing is begun from then on: no byte may be written after the reservation, which lasts longer, ended.
    """

    server: str
    grants: Sequence[tuple[int, Grant]]
    until: float


PoolEffect = PoolAsk | PoolPost | PoolClose | PoolRead | PoolWrite

# ---- events --------------------------------------------------------------------------------------------------------


class PoolAnswer(Value, frozen=True):
    """Answer of a server."""

    server: str
    message: Message


class PoolFailure(Value, frozen=True):
    """A server could not be asked or told something, or did not answer in time."""

    server: str
    reason: MissReason


class PoolReadDone(Value, frozen=True):
    """The end of a `PoolRead`: so many blocks are in place and verified, and why the next one is not."""

    good: int
    reason: MissReason | None = None


class PoolWritten(Value, frozen=True):
    """The end of a `PoolWrite`: for each grant the checksum of what was written, or in one word why it was not."""

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
    """Effects of an event that an operation does not wait for: nothing stays leased or reserved.

    Args:
        given_up: servers whose answers will not be used; those of others came twice.
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
