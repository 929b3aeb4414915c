"""Traffic totals over all gateways of a supernode, for the autoscaler."""

import math
from collections.abc import Sequence

from serving.config.scaling import SloConfig
from serving.values.signals import Traffic
from serving.virtual.result import Outcome, RequestColumns


class TrafficTally:
    """Counters that only grow; `traffic` reads them."""

    __slots__ = (
        "_oldest", "_slo", "arrived_tokens", "finished", "rejected", "tpot_met", "tpot_missed", "ttft_met",
        "ttft_missed", "uncached_tokens",
    )  # fmt: skip

    def __init__(self, slo: SloConfig) -> None:
        self._slo = slo
        self._oldest = 0
        """First row that may still wait for its first token."""
        self.arrived_tokens = 0
        self.uncached_tokens = 0
        self.finished = 0
        self.rejected = 0
        self.ttft_met = 0
        self.ttft_missed = 0
        self.tpot_met = 0
        self.tpot_missed = 0

    def first_token(self, after_s: float) -> None:
        """Count a first token, `after_s` seconds after its request, for the TTFT SLO."""
        if after_s <= self._slo.ttft_s:
            self.ttft_met += 1
        else:
            self.ttft_missed += 1

    def ended(self, rows: RequestColumns, row: int, outcome: Outcome) -> None:
        """Count the end of a request. Failed requests count as rejected, because their client got an error."""
        self.finished += 1
        if outcome is not Outcome.FINISHED:
            self.rejected += 1
            return
        further = rows.output_tokens[row] - 1
        if further > 0:
            tpot_s = (rows.finish_s[row] - rows.first_token_s[row]) / further
            if tpot_s <= self._slo.tpot_s:
                self.tpot_met += 1
            else:
                self.tpot_missed += 1

    def traffic(self, rows: RequestColumns, tokens_out: int, waiting: Sequence[tuple[int, int]], now: float) -> Traffic:
        """Traffic up to now.

        Args:
            waiting: for each gateway, the requests in its queue and their prompt tokens.
        """
        return Traffic(
            arrived=len(rows),
            arrived_tokens=self.arrived_tokens,
            uncached_tokens=self.uncached_tokens,
            finished=self.finished,
            generated_tokens=tokens_out,
            ttft_met=self.ttft_met,
            ttft_missed=self.ttft_missed,
            tpot_met=self.tpot_met,
            tpot_missed=self.tpot_missed,
            rejected=self.rejected,
            queued=sum(requests for requests, _ in waiting),
            queued_tokens=sum(tokens for _, tokens in waiting),
            oldest_wait_s=self._oldest_wait_s(rows, now),
        )

    def _oldest_wait_s(self, rows: RequestColumns, now: float) -> float:
        row, count = self._oldest, len(rows)
        while row < count and (rows.outcome[row] != Outcome.UNFINISHED or not math.isnan(rows.first_token_s[row])):
            row += 1
        self._oldest = row
        return now - rows.arrival_s[row] if row < count else 0.0
