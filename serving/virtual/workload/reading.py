"""Conversion of a trace's records to columns: arrivals of all turns in order, whole prefix ids, no bodies.

Traces with sessions record the start of a session and the user's pause before each later turn, not when that turn
arrives, which depends on the previous response. A replay must assume the response time: a fixed time per output token,
by default 0, so that a turn follows its predecessor after the pause alone.
"""

import heapq
from collections.abc import Iterator

import numpy as np

from loadgen.trace import ServeGenTrace, Trace
from serving.virtual.workload.columns import Columns, Row, batches_of
from serving.virtual.workload.errors import refused_in_our_terms


def batches(trace: Trace, token_s: float = 0.0) -> Iterator[Columns]:
    """All requests of a trace in order of arrival, read from the trace on each call.

    Args:
        token_s: assumed time per output token before the pause of the next turn starts [s].
    Raises: TraceError with the line that is not a request or is out of order.
    """
    with refused_in_our_terms():
        if isinstance(trace, ServeGenTrace):
            for window in trace.windows():
                none = np.zeros(len(window.arrival_s), np.int64)
                yield Columns(window.arrival_s, window.input_tokens, window.output_tokens, np.empty(0, np.int64), none)
        else:
            yield from batches_of(_in_order(trace, token_s))


def _in_order(trace: Trace, token_s: float) -> Iterator[Row]:
    """All turns in order of arrival, lazily; at equal times in the order of the trace.

    Memory: the later turns that have not arrived yet.
    """
    block_tokens = trace.block_tokens or 1
    waiting: list[tuple[float, int, Row]] = []
    answers_s: dict[int | str | None, float] = {}
    zero = 0
    for number, request in enumerate(trace.requests()):
        arrival_s, input_tokens, ids = request.arrival_s, request.input_tokens, request.hash_ids
        # A truncated response is recorded as 0 tokens; the replay requests 1 token, as the load generator does.
        output_tokens = request.output_tokens or 1
        zero += not request.output_tokens
        if len(ids) * block_tokens >= input_tokens + block_tokens:  # the ids are of a longer prompt
            ids = ids[: -(-input_tokens // block_tokens)]
        if token_s and request.session is not None:
            arrival_s += answers_s.get(request.session, 0.0) if request.follows else 0.0
            answers_s[request.session] = arrival_s - request.arrival_s + output_tokens * token_s
        row = (arrival_s, input_tokens, output_tokens, ids)
        if request.follows:
            heapq.heappush(waiting, (arrival_s, number, row))
            continue
        while waiting and waiting[0][0] <= arrival_s:
            yield heapq.heappop(waiting)[2]
        yield row
    while waiting:
        yield heapq.heappop(waiting)[2]
    if zero:
        trace.notes["answers"] = f"answers of 0 tokens, asked for with 1: {zero}"
