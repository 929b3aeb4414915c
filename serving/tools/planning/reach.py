"""Detects during a run whether the target is still reachable: one that cannot need not be simulated to its end."""

from dataclasses import fields, replace

import numpy as np

from serving.tools.planning.verdict import PlanTarget
from serving.virtual.report.latencies import Flags, Latencies, floats, latencies
from serving.virtual.result import Outcome, RequestColumns, SimResult

_ROUNDING = 1e-6


class TargetReach:
    """Called periodically by a simulation; see `simulate`'s `enough`.

    One pool alone must have missed too much: of what both miss together, no floor of either pool would follow.

    Args:
        requests: of the whole trace.
    Attributes:
        lost: whether more requests missed one limit than the target allows, so that it is out of reach.
    """

    def __init__(self, target: PlanTarget, requests: int) -> None:
        self.lost = False
        self._target = target
        self._allowed = (1 - target.attainment) * requests + _ROUNDING

    def __call__(self, now: float, requests: RequestColumns) -> bool:
        """Whether the target is out of reach at a moment [s]. Effects: remembers that."""
        if requests:
            slow = int(np.count_nonzero(latencies(requests).tpot_s > self._target.tpot_s))
            late = int(np.count_nonzero(_late(requests, self._target, now)))
            self.lost = max(slow, late) > self._allowed
        return self.lost


def kept(times: Latencies, target: PlanTarget) -> tuple[Flags, Flags]:
    """Which requests kept TTFT, and which finished within TPOT."""
    in_time = times.ttft_s <= target.ttft_s
    return in_time, times.finished & (np.isnan(times.tpot_s) | (times.tpot_s <= target.tpot_s))


def of_decided(result: SimResult, target: PlanTarget) -> SimResult:
    """A stopped run, with only the requests that had finished by then or were already late."""
    requests = result.requests
    ended = np.frombuffer(requests.outcome, dtype=np.int8) != Outcome.UNFINISHED
    rows = np.flatnonzero(ended | _late(requests, target, result.totals.end_s)).tolist()
    columns = {one.name: getattr(requests, one.name) for one in fields(requests)}
    chosen = {name: type(column)(column.typecode, (column[row] for row in rows)) for name, column in columns.items()}
    return replace(result, requests=RequestColumns(**chosen))


def _late(requests: RequestColumns, target: PlanTarget, now: float) -> Flags:
    first = floats(requests.first_token_s)
    waited = np.where(np.isnan(first), now, first) - floats(requests.arrival_s)
    return waited > target.ttft_s
