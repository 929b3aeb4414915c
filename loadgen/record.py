"""Measurements of one request: timestamps, counts and outcome, no derived values.

Every reported metric is computed from these records (see `metrics/`), so a saved run can be evaluated again. All times
are seconds from the start of the run, taken from the system's monotonic clock, which the worker processes share:

    intended          released      started       first_byte      chunks[0]   ...   chunks[-1]      ended
    the schedule's    slot free     connect,      status line     first content    last content    response complete or
    own time          (cap)         write                                                           given up
"""

from array import array
from enum import StrEnum

import msgspec


class RequestOutcome(StrEnum):
    """Outcome of a request; exactly one each."""

    OK = "ok"  # complete: finish reason and end of stream seen
    SHORT = "short"  # complete, but fewer tokens than requested although `ignore_eos` was set
    REJECTED = "rejected"  # 429 or 503: temporarily unavailable
    HTTP_ERROR = "http_error"  # any other status that is not 2xx
    STREAM_ERROR = "stream_error"  # an error object inside a stream with a valid start
    TRUNCATED = "truncated"  # the stream ended without finish reason or end mark
    MALFORMED_REPLY = "malformed_reply"  # not HTTP, not SSE or not JSON
    CONNECTION = "connection"  # refused, reset, name unknown, TLS
    TIMEOUT = "timeout"  # the client's deadline
    CANCELLED = "cancelled"  # left on purpose (`Conduct.DISCONNECT`, `Conduct.TIMEOUT`)
    REFUSED_AS_MEANT = "refused_as_meant"  # a malformed request with the expected 4xx response
    UNFINISHED = "unfinished"  # the run ended first


SUCCESSES = frozenset({RequestOutcome.OK})
DELIBERATE = frozenset({RequestOutcome.CANCELLED, RequestOutcome.REFUSED_AS_MEANT})
"""Ended early as planned: neither success nor failure."""
NOT_COUNTED = frozenset({RequestOutcome.UNFINISHED})
"""No evidence about the server."""
FAILURES = frozenset(RequestOutcome) - SUCCESSES - DELIBERATE - NOT_COUNTED


class RequestRecord(msgspec.Struct, kw_only=True):
    """One request. Unknown is None, never a made-up number.

    Attributes:
        index: its job's index. turn: which turn of the conversation, from 0. worker: which process sent it.
        warmup: left out of statistics.
        conduct: the client's `plan.Conduct`, as text.
        intended_s: scheduled send time; in a closed loop equal to `released_s`.
        released_s: when it could go: due, and (under a cap on concurrency) a slot was free.
        started_s: start of the send; `started_s - released_s` is the generator's own lateness.
        connect_s: duration of opening the connection [s]; None if a kept one was used.
        first_byte_s: status line. ended_s: answer complete, or given up.
        first_answer_s: first content that is not reasoning.
        chunk_times: float64 array as bytes: arrival of each chunk that carried content (text, reasoning, tool call).
        chunk_tokens: int32 array as bytes: tokens of each such chunk, if the server reported them; else
            empty.
        status: HTTP status; 0 if none was received. error: one line, empty if none.
        input_tokens, output_tokens: from the server's usage, else None. cached_tokens, reasoning_tokens: the same.
        planned_input_tokens, planned_output_tokens: lengths sent and requested, by the plan.
        asked_input_tokens, asked_output_tokens, turns_left_out: see `plan.Turn` and `plan.Conversation`; the last one
            is set only for a conversation's first turn.
        job_turns: turns of its conversation as planned. think_s: planned pause in front of it [s].
        waits_for: see `plan.Turn`.
        content_chars: characters of the response.
        finish_reason: of the (last) choice, empty if none was received.
        server_times: server-side times in the response [s], such as "queue", "ttft".
        request_id: assigned by the server or the client.
        body, text: request body sent and response text received, kept only if requested.
    """

    index: int
    turn: int = 0
    worker: int = 0
    warmup: bool = False
    conduct: str = "normal"
    tenant: str = ""
    outcome: RequestOutcome = RequestOutcome.UNFINISHED
    intended_s: float = 0.0
    released_s: float = 0.0
    started_s: float | None = None
    connect_s: float | None = None
    first_byte_s: float | None = None
    first_answer_s: float | None = None
    ended_s: float | None = None
    chunk_times: bytes = b""
    chunk_tokens: bytes = b""
    status: int = 0
    error: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    planned_input_tokens: int | None = None
    planned_output_tokens: int | None = None
    asked_input_tokens: int | None = None
    asked_output_tokens: int | None = None
    turns_left_out: int = 0
    job_turns: int = 1
    think_s: float = 0.0
    waits_for: list[int] = []
    content_chars: int = 0
    finish_reason: str = ""
    server_times: dict[str, float] = {}
    hash_ids: list[int] = []
    block_tokens: int = 0
    request_id: str = ""
    body: bytes | None = None
    text: str | None = None

    def chunks(self) -> "array[float]":
        """Arrival times of content chunks [s from run start], shape [chunks] float64."""
        return array("d", self.chunk_times)

    def tokens_of_chunks(self) -> "array[int]":
        """Tokens of each content chunk, shape [chunks] int32; empty if the server did not report them."""
        return array("i", self.chunk_tokens)
