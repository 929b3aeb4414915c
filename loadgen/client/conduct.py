"""Behaviours applied to one exchange: when it is given up, and what happens after each read."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from loadgen.client.connection import ExchangeConnection
from loadgen.client.digest import read_ahead
from loadgen.client.exchange import Exchange, Failure
from loadgen.plan import Behaviour, Conduct

_WORTH_PAUSING_S = 0.001
"""Shorter waits are added to the next one: the event loop's timers are no finer."""


@dataclass(frozen=True, slots=True)
class ExchangeLimit:
    """Time limit of an exchange [s after its start] and the failure it is recorded as."""

    after_s: float
    failure: Failure
    error: str


def limit_of(behaviour: Behaviour, request_timeout_s: float) -> ExchangeLimit:
    """The earlier of the run's own limit and the behaviour's."""
    chosen, error = None, ""
    if behaviour.conduct is Conduct.DISCONNECT:
        chosen = behaviour.leave_after_s
        error = "left on purpose"
    elif behaviour.conduct is Conduct.TIMEOUT:
        chosen = behaviour.give_up_after_s
        error = "gave up on purpose"
    if chosen is not None and chosen <= request_timeout_s:
        return ExchangeLimit(chosen, Failure.LEFT, f"{error} after {chosen:.3g} s")
    return ExchangeLimit(request_timeout_s, Failure.DEADLINE, f"not complete after {request_timeout_s:g} s")


def watch(exchange: Exchange, connection: ExchangeConnection) -> Callable[[int], None] | None:
    """The action after each read of an exchange; None for no action."""
    behaviour = exchange.behaviour
    if behaviour.conduct is Conduct.DISCONNECT and behaviour.leave_after_chunks is not None:
        return Departure(exchange, connection, behaviour.leave_after_chunks)
    if behaviour.conduct is Conduct.SLOW_READER and behaviour.read_bytes_per_s:
        return SlowReading(connection, behaviour.read_bytes_per_s)
    return None


class Departure:
    """Leaves after so many chunks of content. The only one that has to interpret a stream while it arrives."""

    def __init__(self, exchange: Exchange, connection: ExchangeConnection, after_chunks: int) -> None:
        self._exchange = exchange
        self._connection = connection
        self._after_chunks = after_chunks

    def __call__(self, received: int) -> None:
        """After a read.

        Effects: may close the connection.
        """
        reader = read_ahead(self._exchange)
        if reader.content_chunks >= self._after_chunks:
            chunks = reader.content_chunks
            self._connection.leave(Failure.LEFT, f"left on purpose after {chunks} chunk{'s' * (chunks != 1)}")


class SlowReading:
    """Reads so many bytes per second on average, by not reading for a while after each read."""

    def __init__(self, connection: ExchangeConnection, bytes_per_s: float) -> None:
        self._connection = connection
        self._bytes_per_s = bytes_per_s
        self._paid_until = 0.0

    def __call__(self, received: int) -> None:
        """After a read.

        Effects: pauses reading until the received bytes match the allowed rate.
        """
        now = monotonic()
        self._paid_until = max(self._paid_until, now) + received / self._bytes_per_s
        wait = self._paid_until - now
        transport = self._connection.transport
        if wait >= _WORTH_PAUSING_S and transport is not None and not transport.is_closing():
            transport.pause_reading()
            asyncio.get_running_loop().call_later(wait, self._resume)

    def _resume(self) -> None:
        transport = self._connection.transport
        if transport is not None and not transport.is_closing():
            transport.resume_reading()
