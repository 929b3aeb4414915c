"""Writing a trace in any format that holds requests."""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import chain, count
from pathlib import Path

import msgspec

from loadgen.errors import UsageError
from loadgen.trace.bailian import bailian_lines
from loadgen.trace.lines import LARGEST_ID
from loadgen.trace.mooncake import MooncakeTrace, mooncake_line
from loadgen.trace.recorded import RecordedTrace, TraceHeader, write_lines, write_recorded
from loadgen.trace.request import Trace, TraceRecord, in_sessions
from loadgen.trace.tables import AZURE, BURSTGPT, PLAIN, table_lines
from loadgen.trace.tracelab import TraceLabTrace
from loadgen.trace.weka import WekaTrace


class TraceForm(StrEnum):
    """Format of a file; the names are those of `--format`."""

    LOADGEN = "loadgen"
    MOONCAKE = "mooncake"
    BAILIAN = "bailian"
    AZURE = "azure"
    BURSTGPT = "burstgpt"
    PLAIN = "plain"


_TABLES = {TraceForm.AZURE: AZURE, TraceForm.BURSTGPT: BURSTGPT, TraceForm.PLAIN: PLAIN}
KEEPS_IDS = frozenset({TraceForm.LOADGEN, TraceForm.MOONCAKE, TraceForm.BAILIAN})
"""Formats that hold `hash_ids`; the others keep only times and lengths."""


def convert(trace: Trace, path: Path, form: TraceForm) -> int:
    """Write a trace in another format; how many requests there are. Reads it twice, and holds what may have sessions.

    Raises: TraceFormatError as reading does; OutputError if it cannot be written.
    Effects: replaces `path`.
    """
    total = sum(1 for _ in trace.requests())
    if form is TraceForm.LOADGEN:
        write_recorded(path, TraceHeader(block_tokens=trace.block_tokens or 1, requests=total), _numbered(trace))
    elif isinstance(
        trace, MooncakeTrace | RecordedTrace | TraceLabTrace | WekaTrace
    ):  # whose later turns are at other places, or ids do not fit
        write_requests(path, form, list(trace.requests()), trace.block_tokens)
    else:
        _write(path, form, trace.requests())
    return total


def write_requests(
    path: Path, form: TraceForm, requests: Sequence[TraceRecord], block_tokens: int | None = None
) -> None:
    """Write requests in a format without a header of ours. Later turns are placed as if responses took no time.

    Args:
        block_tokens: tokens per hash id; None = there are none.
    Raises: OutputError; UsageError for sessions with branches in a format whose turns follow each other.
    Effects: replaces `path`.
    """
    if form is TraceForm.MOONCAKE and any(request.waits_for for request in requests):
        raise UsageError(f"{path}: Mooncake's form has no turns that wait for several others; take --format loadgen")
    if form in KEEPS_IDS and block_tokens is not None:
        requests = _covered(requests, block_tokens)
    _write(path, form, requests if form is TraceForm.MOONCAKE else sorted(requests, key=lambda one: one.arrival_s))


def _write(path: Path, form: TraceForm, requests: Iterable[TraceRecord]) -> None:
    """Write requests that are in order. Raises: OutputError. Effects: replaces `path`."""
    if form is TraceForm.MOONCAKE:
        write_lines(path, map(mooncake_line, requests))
    else:
        write_lines(
            path, bailian_lines(requests) if form is TraceForm.BAILIAN else table_lines(_TABLES[form], requests)
        )


def _numbered(trace: Trace) -> Iterator[TraceRecord]:
    """Requests with sessions as our own file has them: numbers that ascend, together with what follows."""
    sessions = enumerate(in_sessions(trace))
    return chain.from_iterable(
        (msgspec.structs.replace(request, session=number) for request in requests) for number, requests in sessions
    )


def _covered(requests: Sequence[TraceRecord], block_tokens: int) -> list[TraceRecord]:
    """Requests with an id for every block of the prompt, or none at all, as other formats require.

    Ids are planned, lengths are counted by a server: surplus ids are dropped, uncovered blocks get unique ids.
    """
    used = {one for request in requests for one in request.hash_ids}
    fresh = (LARGEST_ID - number for number in count() if LARGEST_ID - number not in used)
    covered = []
    for request in requests:
        ids, whole = request.hash_ids, request.input_tokens // block_tokens
        blocks = -(-request.input_tokens // block_tokens)
        if ids and not whole <= len(ids) <= blocks:
            ids = [*ids[:blocks], *(next(fresh) for _ in range(blocks - len(ids)))]
            request = msgspec.structs.replace(request, hash_ids=ids)
        covered.append(request)
    return covered
