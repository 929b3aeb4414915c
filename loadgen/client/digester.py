"""Interprets finished exchanges between reads, in slices so short that neither a send nor a stamp waits for them.

A thread would not help because of the interpreter's lock, and parsing immediately would delay the timestamps of bytes
that arrive at the same time. The event loop therefore parses after it has handled all reads, a fifth of a millisecond
at a time.
"""

import asyncio
from collections import deque
from time import monotonic

from loadgen.client.digest import Digest, conclude, reader_of
from loadgen.client.exchange import Exchange

SLICE_S = 0.0002
BATCH_PARTS = 16
BATCH_BYTES = 4096
"""Bytes parsed between two clock readings: a batch ends at whichever limit is first. Larger parts are cut."""
MAX_BACKLOG_BYTES = 64 * 2**20


class _Item:
    """An exchange on its way, and how far it has been read."""

    __slots__ = ("at", "exchange", "expected_tokens", "future", "offset", "parts", "size_bytes", "times")

    def __init__(self, exchange: Exchange, expected_tokens: int | None, future: "asyncio.Future[Digest]") -> None:
        self.exchange = exchange
        self.expected_tokens = expected_tokens
        self.future = future
        self.times, self.parts = exchange.take_parts()
        self.size_bytes = sum(map(len, self.parts))
        self.at = 0
        self.offset = 0  # within the part `at`, if that is a long one

    def read_batch(self) -> bool:
        """Read a little on; false when it is fully read."""
        at, parts = self.at, self.parts
        if at >= len(parts):
            return False
        reader = reader_of(self.exchange)
        if self.offset or len(parts[at]) > BATCH_BYTES:
            end = self.offset + BATCH_BYTES
            reader.feed([self.times[at]], [parts[at][self.offset : end]])
            self.offset = end
            if end >= len(parts[at]):
                self.at, self.offset = at + 1, 0
            return True
        stop, size = at, 0
        while stop < len(parts) and stop < at + BATCH_PARTS and size + len(parts[stop]) <= BATCH_BYTES:
            size += len(parts[stop])
            stop += 1
        reader.feed(self.times[at:stop], parts[at:stop])
        self.at = stop
        return True


class Digester:
    """A queue of finished exchanges on one event loop.

    Attributes:
        backlog_bytes: waiting to be interpreted.
        overruns: exchanges that were interpreted immediately because the backlog was full, delaying other work.
            The host then receives more than it can interpret, which the run's report should mention.
    """

    def __init__(self, *, slice_s: float = SLICE_S, max_backlog_bytes: int = MAX_BACKLOG_BYTES) -> None:
        self.backlog_bytes = 0
        self.overruns = 0
        self._slice_s = slice_s
        self._max_backlog_bytes = max_backlog_bytes
        self._queue: deque[_Item] = deque()
        self._scheduled = False

    def __len__(self) -> int:
        """Exchanges waiting."""
        return len(self._queue)

    async def digest(self, exchange: Exchange, expected_tokens: int | None = None) -> Digest:
        """Interpret a finished exchange; see `conclude`.

        Effects: takes the exchange's parts.
        """
        loop = asyncio.get_running_loop()
        item = _Item(exchange, expected_tokens, loop.create_future())
        self._queue.append(item)
        self.backlog_bytes += item.size_bytes
        while self.backlog_bytes > self._max_backlog_bytes:
            self.overruns += 1
            first = self._queue[0]
            while first.read_batch():
                pass
            self._done()
        if self._queue and not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._slice, loop)
        return await item.future

    def _slice(self, loop: asyncio.AbstractEventLoop) -> None:
        until = monotonic() + self._slice_s
        while self._queue:
            if not self._queue[0].read_batch():
                self._done()
            if monotonic() >= until:
                break
        self._scheduled = bool(self._queue)
        if self._scheduled:
            loop.call_soon(self._slice, loop)

    def _done(self) -> None:
        """Conclude the oldest."""
        item = self._queue.popleft()
        self.backlog_bytes -= item.size_bytes
        if item.future.done():  # no caller waits any more
            return
        try:
            found = conclude(item.exchange, reader_of(item.exchange), item.expected_tokens)
        except Exception as error:  # a bug of ours must reach the caller, and must not stop the queue
            item.future.set_exception(error)
        else:
            item.future.set_result(found)
