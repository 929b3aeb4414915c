"""Traffic of all gateways together: monotonic totals, queued requests, and SLO attainment of the last minute."""

from collections import deque
from dataclasses import dataclass
from typing import Any

from serving.config.scaling import SloConfig
from serving.scaling.core.totals import SourceTotals
from serving.values.signals import Traffic
from serving.values.system_tally import HostRow, SystemTally
from serving.values.traffic import BOUNDS_S, BoardReply, GatewayReport, percentile

SILENCE_S = 5.0
"""The queue of a gateway that is silent for longer is ignored."""
WINDOW_S = 60.0
COUNTERS = (
    "arrived",
    "arrived_tokens",
    "uncached_tokens",
    "finished",
    "generated_tokens",
    "ttft_met",
    "ttft_missed",
    "tpot_met",
    "tpot_missed",
    "rejected",
)
_BUCKETS = len(BOUNDS_S) + 1


@dataclass(frozen=True, slots=True)
class _Mark:
    """Totals at one time."""

    at: float
    counters: tuple[float, ...]
    buckets: tuple[float, ...]


class Gateways:
    """Sums of the gateways' reports. Time is passed in."""

    def __init__(self) -> None:
        self._reports: dict[str, tuple[float, GatewayReport]] = {}
        self._counters = SourceTotals(len(COUNTERS))
        self._buckets = SourceTotals(2 * _BUCKETS)
        self._marks: deque[_Mark] = deque()

    def report(self, report: GatewayReport, now: float) -> None:
        """Add a gateway's latest report, and drop those of silent gateways.

        Counts already reported to a previous board are not added, because they would appear as a burst.
        """
        self._reports = {name: one for name, one in self._reports.items() if now - one[0] < SILENCE_S}
        self._reports[report.gateway] = now, report
        counters = [getattr(report.traffic, name) for name in COUNTERS]
        buckets = (*report.ttft, *report.tpot)
        if report.known:
            self._counters.begin(report.gateway, counters, now)
            self._buckets.begin(report.gateway, buckets, now)
        self._counters.update(report.gateway, counters, now)
        self._buckets.update(report.gateway, buckets, now)

    @property
    def names(self) -> set[str]:
        """Gateways that reported within `SILENCE_S` before the latest report."""
        return set(self._reports)

    def mark(self, now: float) -> None:
        """Record the current totals, to compute those of the last minute. Call about once a second."""
        self._marks.append(_Mark(now, tuple(self._counters.sums), tuple(self._buckets.sums)))
        while len(self._marks) > 1 and self._marks[1].at <= now - WINDOW_S:
            self._marks.popleft()

    def traffic(self, now: float) -> Traffic:
        """Totals and queues of all gateways together."""
        totals = {name: int(value) for name, value in zip(COUNTERS, self._counters.sums, strict=True)}
        here = [report.traffic for report in self._present(now)]
        return Traffic(
            **totals,
            queued=sum(one.queued for one in here),
            queued_tokens=sum(one.queued_tokens for one in here),
            oldest_wait_s=max((one.oldest_wait_s for one in here), default=0.0),
        )

    def running(self, now: float) -> int:
        """In-flight requests of all gateways, queued ones included."""
        return sum(report.running for report in self._present(now))

    def news(
        self,
        gateway: str,
        targets: dict[str, int],
        now: float,
        asleep: tuple[str, ...] = (),
        tally: SystemTally | None = None,
        hosts: tuple[HostRow, ...] = (),
    ) -> BoardReply:
        """State of the pools, the hosts and all other gateways, for one gateway."""
        others = [report for report in self._present(now) if report.gateway != gateway]
        queued = sum(one.traffic.queued for one in others)
        running = max(0, sum(one.running for one in others) - queued)
        peers = {one.gateway: one.address for one in others if one.address is not None}
        return BoardReply(targets, len(others), running, queued, peers, asleep, tally, hosts)

    def last_minute(self, slo: SloConfig, now: float) -> dict[str, Any]:
        """SLOs and their attainment during the last minute; null where no measurement exists."""
        mark = self._marks[0] if self._marks else _Mark(now, (0.0,) * len(COUNTERS), (0.0,) * 2 * _BUCKETS)
        grown = [new - old for new, old in zip(self._counters.sums, mark.counters, strict=True)]
        count = dict(zip(COUNTERS, grown, strict=True))
        buckets = [new - old for new, old in zip(self._buckets.sums, mark.buckets, strict=True)]
        ttft, tpot = buckets[:_BUCKETS], buckets[_BUCKETS:]
        return {
            "ttft_s": slo.ttft_s,
            "tpot_s": slo.tpot_s,
            "attainment": slo.attainment,
            "ttft_attained": _share(count["ttft_met"], count["ttft_missed"]),
            "tpot_attained": _share(count["tpot_met"], count["tpot_missed"]),
            "ttft_p50_s": percentile(ttft, 0.5),
            "ttft_p99_s": percentile(ttft, 0.99),
            "tpot_p50_s": percentile(tpot, 0.5),
            "tpot_p99_s": percentile(tpot, 0.99),
            "requests_per_s": count["arrived"] / max(1.0, now - mark.at),
        }

    def _present(self, now: float) -> list[GatewayReport]:
        return [report for at, report in self._reports.values() if now - at < SILENCE_S]


def _share(met: float, missed: float) -> float | None:
    return met / (met + missed) if met + missed > 0 else None
