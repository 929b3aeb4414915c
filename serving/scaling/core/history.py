"""Samples of the last hour in a bounded ring, so that a newly loaded page has its curves."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, to_builtins

from serving.scaling.core.cluster_snapshot import ClusterSnapshot, ReplicaPhase, SeenMember
from serving.scaling.core.totals import SourceTotals
from serving.values.signals import Traffic

HISTORY_S = 3600.0
SAMPLE_PERIOD_S = 5.0
ADOPTING_POOL = "decode"
"""Instances of this pool receive computed prompts, so their prefix hits are not cache hits."""


class HistorySample(Struct, frozen=True):
    """One sample.

    Args:
        at: seconds since 1970.
        ttft_s, tpot_s: 99th percentiles of the last minute [s]; None = there were none.
        prompt_tokens_per_s, output_tokens_per_s: since the previous sample.
        hit_rate: share of the prompt tokens started since the previous sample that were found in the instance's own
            blocks or pulled; None = there were none.
        running: serving replicas by pool.
        handed_off_bytes_per_s: KV moved between instances since the previous sample.
        read_bytes_per_s, written_bytes_per_s: KV read from and written to the KV-cache pool since the previous sample.
    """

    at: float
    ttft_s: float | None
    tpot_s: float | None
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    hit_rate: float | None
    running: dict[str, int]
    handed_off_bytes_per_s: float
    read_bytes_per_s: float
    written_bytes_per_s: float


class History:
    """Samples of the last `HISTORY_S`, one each `SAMPLE_PERIOD_S`. Time is passed in."""

    def __init__(self) -> None:
        self._samples: deque[HistorySample] = deque(maxlen=round(HISTORY_S / SAMPLE_PERIOD_S))
        self._prefixes = SourceTotals(2)
        self._flow = KvFlow()
        self._before: tuple[float, tuple[float, ...]] | None = None

    def due(self, now: float) -> bool:
        """Whether it is time for a sample."""
        return self._before is None or now - self._before[0] >= SAMPLE_PERIOD_S

    def add(
        self, snapshot: ClusterSnapshot, traffic: Traffic, pulled_tokens: int, last_minute: Mapping[str, Any]
    ) -> None:
        """Add a sample, except at the first call, which only sets the starting point of the totals.

        Args:
            traffic: all gateways' totals.
            pulled_tokens: total of prompt tokens pulled from the KV-cache pool.
            last_minute: with `ttft_p99_s` and `tpot_p99_s` [s].
        """
        self._observe_prefixes(snapshot)
        self._flow.observe(snapshot)
        asked, found = self._prefixes.sums
        tokens = float(traffic.arrived_tokens), float(traffic.generated_tokens), asked, found + pulled_tokens
        totals = (*tokens, *self._flow.totals)
        before, self._before = self._before, (snapshot.at, totals)
        if before is None or snapshot.at <= before[0]:
            return
        seconds = snapshot.at - before[0]
        new = [max(0.0, now - then) for now, then in zip(totals, before[1], strict=True)]
        prompt, output, asked, found, *moved = new
        self._samples.append(
            HistorySample(
                at=snapshot.at,
                ttft_s=last_minute["ttft_p99_s"],
                tpot_s=last_minute["tpot_p99_s"],
                prompt_tokens_per_s=prompt / seconds,
                output_tokens_per_s=output / seconds,
                hit_rate=min(1.0, found / asked) if asked else None,
                running={pool: seen.count(ReplicaPhase.SERVING) for pool, seen in snapshot.deployments.items()},
                handed_off_bytes_per_s=moved[0] / seconds,
                read_bytes_per_s=moved[1] / seconds,
                written_bytes_per_s=moved[2] / seconds,
            )
        )

    def newer(self, after: float) -> list[dict[str, Any]]:
        """Samples after a time [s since 1970], oldest first, ready for JSON."""
        return [to_builtins(sample) for sample in self._samples if sample.at > after]

    def _observe_prefixes(self, snapshot: ClusterSnapshot) -> None:
        for name, member in snapshot.members.items():
            if member.pool != ADOPTING_POOL:
                facts = member.facts
                counters = [int(facts.get(f"prefix_{what}_tokens_total") or 0) for what in ("queries", "hits")]
                self._prefixes.update(f"{name}/{member.incarnation}", counters, snapshot.at)


# KV traffic between the pools, from the instances' counters.


class KvFlow:
    """Totals of KV handed off, read from the KV-cache pool and written to it since the start [bytes]."""

    def __init__(self) -> None:
        self._totals = SourceTotals(3)

    def observe(self, snapshot: ClusterSnapshot) -> None:
        """Add the counters of one snapshot. Simulated instances count the bytes that a real one would move."""
        for name, member in snapshot.members.items():
            counters: Mapping[str, int] = (member.facts.get("pool") or {}).get("counters", {})
            moved = (
                int(member.facts.get("handoff_bytes_in_total") or 0),
                counters.get("bytes_pulled", 0),
                counters.get("bytes_stored", 0),
            )
            self._totals.update(f"{name}/{member.incarnation}", moved, snapshot.at)

    @property
    def totals(self) -> tuple[float, float, float]:
        """Bytes handed off, read and written."""
        handed_off, read, written = self._totals.sums
        return handed_off, read, written


# Busy share of each instance: how much of the last seconds its engine spent in steps.

BUSY_WINDOW_S = 10.0
"""Instances announce once a second: over ten announcements, one more or less has little effect."""


class BusyShares:
    """Shares by replica, from counters that only grow."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, deque[tuple[float, float]]]] = {}
        """By replica: its incarnation, and (time [s], busy time [s of the instance's clock]) of polls, oldest first."""
        self._scales: dict[str, float] = {}

    def observe(self, snapshot: ClusterSnapshot) -> None:
        """Add the busy times of one snapshot."""
        self._seen = {name: one for name, one in self._seen.items() if name in snapshot.members}
        for name, member in snapshot.members.items():
            self._observe(name, member, snapshot.at)

    def share(self, replica: str) -> float | None:
        """0..1 over at most `BUSY_WINDOW_S`; None = not known yet."""
        if replica not in self._seen:
            return None
        _, looks = self._seen[replica]
        if len(looks) < 2 or looks[-1][0] <= looks[0][0]:
            return None
        (begun, before), (ended, now) = looks[0], looks[-1]
        return min(1.0, max(0.0, (now - before) / (ended - begun) / self._scales[replica]))

    def _observe(self, name: str, member: SeenMember, at: float) -> None:
        busy_s, self._scales[name] = float(member.facts.get("busy_s") or 0.0), _scale(member)
        incarnation, looks = self._seen.get(name, ("", deque()))
        if incarnation != member.incarnation or (looks and busy_s < looks[-1][1]):
            looks = deque()
        looks.append((at, busy_s))
        while len(looks) > 2 and looks[1][0] <= at - BUSY_WINDOW_S:
            looks.popleft()
        self._seen[name] = member.incarnation, looks


def _scale(member: SeenMember) -> float:
    return float(member.facts.get("time_scale") or 1.0)
