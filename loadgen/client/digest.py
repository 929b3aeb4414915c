"""From an exchange's raw bytes to the fields of its record, and to its one outcome; pure."""

import asyncio
from collections import deque
from time import monotonic

import msgspec

from loadgen.client.exchange import Exchange, Failure, Keep
from loadgen.client.malformed import malformation_name
from loadgen.client.reader import AnswerReader
from loadgen.client.reply import body_error
from loadgen.plan import Conduct
from loadgen.record import RequestOutcome, RequestRecord

_READ_AHEAD_PARTS = 64
"""Parts of a long stream to parse at a time, about 0.1 ms of work: arrivals in that time get timestamps late by at
most that."""

_OF_FAILURE = {
    Failure.CONNECT: RequestOutcome.CONNECTION,
    Failure.NOT_HTTP: RequestOutcome.MALFORMED_REPLY,
    Failure.DEADLINE: RequestOutcome.TIMEOUT,
    Failure.LEFT: RequestOutcome.CANCELLED,
    Failure.CUT: RequestOutcome.UNFINISHED,
}
_NOT_NOW = (429, 503)


class Digest(msgspec.Struct, kw_only=True):
    """Content of a response; each field is that of `RequestRecord` of the same name.

    Attributes:
        text: the (first) choice without its reasoning, always present: a conversation's next turn needs it.
    """

    outcome: RequestOutcome
    error: str = ""
    first_answer_s: float | None = None
    chunk_times: bytes = b""
    chunk_tokens: bytes = b""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    content_chars: int = 0
    finish_reason: str = ""
    server_times: dict[str, float] = {}
    text: str = ""


def fill_record(record: RequestRecord, exchange: Exchange, found: Digest, keep: Keep) -> None:
    """Write an exchange and its digest into a record.

    Effects: sets the record's fields known to the client; those of plan and schedule are left alone.
    """
    record.conduct = exchange.conduct.value
    record.started_s = exchange.started_s
    record.connect_s = exchange.connect_s
    record.first_byte_s = exchange.first_byte_s
    record.ended_s = exchange.ended_s
    record.status = exchange.status
    record.request_id = exchange.request_id
    record.body = exchange.body if keep.body else None
    for name in _SHARED_FIELDS:
        setattr(record, name, getattr(found, name))
    record.text = found.text if keep.text else None


_SHARED_FIELDS = tuple(name for name in Digest.__struct_fields__ if name != "text")


def reader_of(exchange: Exchange) -> AnswerReader:
    """The reader of an exchange whose head has arrived.

    Effects: creates it if there is none.
    """
    if exchange.reader is None:
        kind = exchange.content_type.partition(";")[0].strip().lower()
        streamed: bool | None = None  # no type, or an unspecific one: the bytes themselves decide
        if not 200 <= exchange.status < 300 or kind == "application/json":
            streamed = False
        elif kind == "text/event-stream":
            streamed = True
        exchange.reader = AnswerReader(streamed=streamed)
    return exchange.reader


def read_ahead(exchange: Exchange) -> AnswerReader:
    """Parse all bytes received so far of an exchange that still runs."""
    reader = reader_of(exchange)
    if exchange.parts:
        reader.feed(*exchange.take_parts())
    return reader


def read_some(exchange: Exchange) -> None:
    """Read the oldest parts of a long stream, so that it need not be kept whole."""
    reader_of(exchange).feed(exchange.times[:_READ_AHEAD_PARTS], exchange.parts[:_READ_AHEAD_PARTS])
    del exchange.times[:_READ_AHEAD_PARTS]
    del exchange.parts[:_READ_AHEAD_PARTS]


def conclude(exchange: Exchange, reader: AnswerReader, expected_tokens: int | None = None) -> Digest:
    """The digest of an exchange whose parts have all been read."""
    if 200 <= exchange.status < 300:
        reader.finish(clean=exchange.failure is None)
    outcome, error = _outcome(exchange, reader, expected_tokens)
    usage, streamed = reader.usage, reader.is_stream
    found = Digest(
        outcome=outcome,
        error=error,
        # Only the end of a whole response is known; its first token arrived some time before.
        first_answer_s=reader.first_answer_s if streamed else None,
        chunk_times=reader.times.tobytes() if streamed else b"",
        chunk_tokens=reader.tokens.tobytes() if streamed and reader.tokens_known else b"",
        content_chars=reader.content_chars,
        finish_reason=reader.finish_reason,
        server_times=reader.server_times,
        text="".join(reader.text),
    )
    if usage is not None:
        found.input_tokens = usage.prompt_tokens
        found.output_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            found.cached_tokens = usage.prompt_tokens_details.cached_tokens
        if usage.completion_tokens_details is not None:
            found.reasoning_tokens = usage.completion_tokens_details.reasoning_tokens
    return found


def _outcome(exchange: Exchange, reader: AnswerReader, expected_tokens: int | None) -> tuple[RequestOutcome, str]:
    """One outcome and its text. The earlier rule wins.

    A deliberate departure counts as such even if the response had already failed, since the client had left by then.
    """
    failure = exchange.failure
    if failure in _OF_FAILURE:
        return _OF_FAILURE[failure], exchange.error
    if exchange.status == 0:
        return RequestOutcome.CONNECTION, exchange.error
    if exchange.conduct is Conduct.MALFORMED:
        return _malformed_outcome(exchange, reader)
    if not 200 <= exchange.status < 300:
        return _status_outcome(exchange, reader)
    if reader.stream_error:
        return RequestOutcome.STREAM_ERROR, reader.stream_error
    if reader.malformed:
        return RequestOutcome.MALFORMED_REPLY, reader.malformed
    if not reader.done or not reader.ended:
        return RequestOutcome.TRUNCATED, exchange.error if failure and not reader.done else _missing(reader)
    tokens = reader.usage.completion_tokens if reader.usage is not None else None
    if expected_tokens is not None and tokens is not None and tokens < expected_tokens:
        return RequestOutcome.SHORT, f"{tokens} of {expected_tokens} tokens arrived although ignore_eos was set"
    return RequestOutcome.OK, ""


def _missing(reader: AnswerReader) -> str:
    if not reader.ended:
        return "the answer is empty" if reader.empty else "the answer has no finish reason"
    return "the stream has no end mark ([DONE])"


def _status_outcome(exchange: Exchange, reader: AnswerReader) -> tuple[RequestOutcome, str]:
    text = body_error(reader.body())
    error = f"HTTP {exchange.status}: {text}" if text else f"HTTP {exchange.status}"
    if exchange.status in _NOT_NOW:
        later = f" (retry after {exchange.retry_after})" if exchange.retry_after else ""
        return RequestOutcome.REJECTED, error + later
    return RequestOutcome.HTTP_ERROR, error


def _malformed_outcome(exchange: Exchange, reader: AnswerReader) -> tuple[RequestOutcome, str]:
    """Classify the response to a malformed request: 4xx is correct, 429 and 503 do not depend on the body."""
    if exchange.status in _NOT_NOW:
        return _status_outcome(exchange, reader)
    if 400 <= exchange.status < 500:
        return RequestOutcome.REFUSED_AS_MEANT, ""
    name = malformation_name(exchange.behaviour.malformation)
    if exchange.status < 300:
        return RequestOutcome.HTTP_ERROR, f"a malformed request ({name}) was answered with HTTP {exchange.status}"
    outcome, error = _status_outcome(exchange, reader)
    return outcome, f"{error} (for a malformed request: {name})"


# Interprets finished exchanges between reads, in slices so short that neither a send nor a stamp waits for them.
#
# A thread would not help because of the interpreter's lock, and parsing immediately would delay the timestamps of bytes
# that arrive at the same time. The event loop therefore parses after it has handled all reads, a fifth of a millisecond
# at a time.

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
