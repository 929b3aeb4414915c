"""Each metric, once: its name, its meaning, and the function that reads it from a record.

Two clocks. `ttft` and `e2e` start at the scheduled time, so that a request that waited for a slot or for this program
does not appear fast (coordinated omission). Their `_sent` twins start at the actual send, as in other tools. In a
closed loop there is no schedule and the two agree.

A function gives an array because some metrics have many values a request (gaps between chunks) and some have none (TPOT
of a single token).
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.record import RequestRecord

Values = NDArray[np.float64]
NONE: Values = np.empty(0)
NONE.setflags(write=False)
_TIME = struct.Struct("d")


@dataclass(frozen=True)
class Definition:
    """One metric.

    Attributes:
        unit: "s" or "tokens". what, formula: for people.
        values: of one request; empty where it does not exist.
        is_latency: a failed request then counts as infinitely late (`Distribution.with_failures`).
    """

    name: str
    unit: str
    what: str
    formula: str
    values: Callable[[RequestRecord], Values]
    is_latency: bool = False


def chunk_times(record: RequestRecord) -> Values:
    """Arrival of each content chunk [s from the start of the run], without a copy."""
    return np.frombuffer(record.chunk_times, dtype=np.float64)


def tokens_of(record: RequestRecord) -> int:
    """Output tokens from the server's usage; without usage the number of content chunks, as an estimate."""
    return len(record.chunk_times) // 8 if record.output_tokens is None else record.output_tokens


def last_content_s(record: RequestRecord) -> float | None:
    """Arrival of the last content; the end of the response if it did not arrive in chunks."""
    return _last(record) if record.chunk_times else record.ended_s


def tpot_s(record: RequestRecord) -> float | None:
    """Time per output token after the first; None with fewer than two tokens, or without a stream."""
    first, last, tokens = _first(record), _last(record), tokens_of(record)
    return (last - first) / (tokens - 1) if first is not None and last is not None and tokens > 1 else None


def _one(value: float | None) -> Values:
    return NONE if value is None else np.array([value], dtype=np.float64)


def _since(start: float | None, end: float | None) -> Values:
    return NONE if start is None or end is None else np.array([end - start], dtype=np.float64)


def _first(record: RequestRecord) -> float | None:
    """Arrival of the first content; read in place, because an array for one number costs more than all else here."""
    times: tuple[float, ...] = _TIME.unpack_from(record.chunk_times) if record.chunk_times else ()
    return times[0] if times else None


def _last(record: RequestRecord) -> float | None:
    times: tuple[float, ...] = _TIME.unpack_from(record.chunk_times, -_TIME.size) if record.chunk_times else ()
    return times[0] if times else None


def _per_token_gaps(record: RequestRecord) -> Values:
    """Gaps divided among the tokens that ended them; only where each chunk's tokens are known."""
    gaps = np.diff(chunk_times(record))
    counts = np.frombuffer(record.chunk_tokens, dtype=np.int32)
    if len(counts) != len(gaps) + 1 or (len(counts) and counts[1:].min(initial=1) < 1):
        one_each = record.output_tokens == len(gaps) + 1
        return gaps if one_each else NONE
    return np.repeat(gaps / counts[1:], counts[1:])


def _normalised(record: RequestRecord) -> Values:
    end, tokens = last_content_s(record), tokens_of(record)
    return NONE if end is None or tokens < 1 else np.array([(end - record.intended_s) / tokens])


def _count(value: int | None) -> Values:
    return NONE if value is None else np.array([value], dtype=np.float64)


DEFINITIONS = (
    Definition(
        "ttft",
        "s",
        "time to first token: first chunk with text, reasoning or a tool call",
        "first chunk − intended send",
        lambda r: _since(r.intended_s, _first(r)),
        is_latency=True,
    ),
    Definition(
        "ttft_sent",
        "s",
        "TTFT as most tools count it, blind to waiting before the send",
        "first chunk − actual send",
        lambda r: _since(r.started_s, _first(r)),
        is_latency=True,
    ),
    Definition(
        "ttfo",
        "s",
        "time to first output: the first chunk that is not reasoning",
        "first answer chunk − intended send",
        lambda r: _since(r.intended_s, r.first_answer_s),
        is_latency=True,
    ),
    Definition(
        "tpot",
        "s",
        "time per output token after the first; N > 1, from the server's usage",
        "(last chunk − first chunk) / (N − 1)",
        lambda r: _one(tpot_s(r)),
        is_latency=True,
    ),
    Definition(
        "itl",
        "s",
        "inter-token latency as clients see it: gaps between content chunks",
        "chunk[i] − chunk[i−1]",
        lambda r: np.diff(chunk_times(r)),
    ),
    Definition(
        "itl_token",
        "s",
        "ITL per token, where known: a gap is shared by the tokens of its chunk",
        "(chunk[i] − chunk[i−1]) / tokens[i]",
        _per_token_gaps,
    ),
    Definition(
        "e2e",
        "s",
        "end-to-end latency; a usage chunk behind the last token does not extend it",
        "last chunk − intended send",
        lambda r: _since(r.intended_s, last_content_s(r)),
        is_latency=True,
    ),
    Definition(
        "e2e_sent",
        "s",
        "E2E as most tools count it",
        "last chunk − actual send",
        lambda r: _since(r.started_s, last_content_s(r)),
        is_latency=True,
    ),
    Definition("ntpot", "s", "normalised time per output token, waiting included", "E2E / N", _normalised),
    Definition(
        "server_queue",
        "s",
        "queueing inside the server, if reported (vLLM's per-request metrics)",
        "metrics.queue_time_ms",
        lambda r: _one(r.server_times.get("queue")),
    ),
    Definition(
        "server_ttft",
        "s",
        "the server's own TTFT, if reported; starts when the request leaves its queue",
        "metrics.time_to_first_token_ms",
        lambda r: _one(r.server_times.get("ttft")),
    ),
    Definition(
        "lateness",
        "s",
        "how late this program sent a request that could go: its own error",
        "actual send − released",
        lambda r: _since(r.released_s, r.started_s),
    ),
    Definition(
        "client_queue",
        "s",
        "how long a due request waited for a slot under a cap on concurrency",
        "released − intended send",
        lambda r: _since(r.intended_s, r.released_s),
    ),
    Definition(
        "connect",
        "s",
        "opening a connection, where none was kept",
        "connected − actual send",
        lambda r: _one(r.connect_s),
    ),
    Definition("input_tokens", "tokens", "prompt tokens", "usage.prompt_tokens", lambda r: _count(r.input_tokens)),
    Definition(
        "output_tokens", "tokens", "output tokens (N)", "usage.completion_tokens", lambda r: _count(r.output_tokens)
    ),
    Definition(
        "cached_tokens",
        "tokens",
        "prompt tokens from a cache, if the server reports them",
        "usage.prompt_tokens_details.cached_tokens",
        lambda r: _count(r.cached_tokens),
    ),
)
"""In the order of tables."""

BY_NAME = {definition.name: definition for definition in DEFINITIONS}

_MORE_ROWS = (
    (
        "throughput",
        "requests/s, tokens/s",
        "successful requests and their tokens",
        "count / (last end − first send)",
    ),
    (
        "goodput",
        "requests/s",
        "successful requests that kept every SLO of `--slo`",
        "good / (last end − first send)",
    ),
    (
        "attainment",
        "share",
        "good requests among all that ended or were cut too late",
        "good / (ok + failed + cut too late)",
    ),
)


def metrics_table() -> str:
    """README.md's table of metrics, in Markdown."""
    rows = [(d.name, d.unit, d.what, d.formula) for d in DEFINITIONS] + list(_MORE_ROWS)
    lines = ["| metric | unit | meaning | formula |", "| --- | --- | --- | --- |"]
    return "\n".join([*lines, *(f"| `{name}` | {unit} | {what} | {formula} |" for name, unit, what, formula in rows)])
