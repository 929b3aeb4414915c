"""From the records of a trace to the columns of a simulation: arrivals of all turns in order, whole ids, no bodies.

Traces with sessions say when a session begins and how long its user thinks before each later turn, not when that turn
arrives: in a closed loop it waits for the answer. A replay has to say beforehand how long answers take. Here that is a
fixed time for each of their tokens, 0 unless told otherwise; then a turn follows its predecessor by the pause alone.
"""

import heapq
from collections.abc import Iterator

import numpy as np

from loadgen.trace import ServeGenTrace, Trace
from serving.virtual.workload.columns import Columns, Row, batches_of
from serving.virtual.workload.errors import refused_in_our_terms


def batches(trace: Trace, token_s: float = 0.0) -> Iterator[Columns]:
    """All requests of a trace, read anew, in order of arrival.

    Args:
        token_s: time that each token of an answer takes before the next turn's pause begins [s].
    Raises: TraceError naming the line that is no request, or comes too early.
    """
    with refused_in_our_terms():
        if isinstance(trace, ServeGenTrace):
            for window in trace.windows():
                none = np.zeros(len(window.arrival_s), np.int64)
                yield Columns(window.arrival_s, window.input_tokens, window.output_tokens, np.empty(0, np.int64), none)
        else:
            yield from batches_of(_in_order(trace, token_s))


def _in_order(trace: Trace, token_s: float) -> Iterator[Row]:
    """All turns in order of arrival, lazily; at equal times in the order in which they came.

    Memory: the later turns that are not due yet.
    """
    block_tokens = trace.block_tokens or 1
    waiting: list[tuple[float, int, Row]] = []
    answers_s: dict[int | str | None, float] = {}
    zero = 0
    for number, request in enumerate(trace.requests()):
        arrival_s, input_tokens, ids = request.arrival_s, request.input_tokens, request.hash_ids
        # A cut answer is recorded as 0 tokens; a replay asks for one, as the load generator's does.
        output_tokens = request.output_tokens or 1
        zero += not request.output_tokens
        if len(ids) * block_tokens >= input_tokens + block_tokens:  # planned for a longer prompt than was counted
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
