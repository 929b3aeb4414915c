"""Later turns of sessions, put where they belong in an open-loop replay.

Traces with sessions say when a session begins and how long its user thinks before each later turn, not when that turn
arrives: in a closed loop it waits for the answer. A replay has to say beforehand how long answers take. Here that is a
fixed time for each of their tokens, 0 unless told otherwise; then a turn follows its predecessor by the pause alone.
"""

import heapq
from collections.abc import Iterable, Iterator

from serving.sim.workload.columns import Row


def in_order(rows: Iterable[tuple[bool, Row]]) -> Iterator[Row]:
    """All turns in order of arrival, lazily; at equal times in the order in which they came.

    Args:
        rows: (begins, row); rows that begin a session ascend in time, and each later turn comes after the rows of its
            session that are in front of it. Memory: the later turns that are not due yet.
    """
    waiting: list[tuple[float, int, Row]] = []
    for number, (begins, row) in enumerate(rows):
        if not begins:
            heapq.heappush(waiting, (row[0], number, row))
            continue
        while waiting and waiting[0][0] <= row[0]:
            yield heapq.heappop(waiting)[2]
        yield row
    while waiting:
        yield heapq.heappop(waiting)[2]
