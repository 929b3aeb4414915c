"""Verdict on one candidate."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadgen.report.numbers import limit
from serving.tools.planning.candidate import Candidate
from serving.tools.planning.loss import PlanLoss


@dataclass(frozen=True, slots=True)
class PlanTarget:
    """SLOs of a plan: limits [s] of each request, kept by this share of all requests."""

    ttft_s: float
    tpot_s: float
    attainment: float

    @property
    def limits(self) -> str:
        """Limits, for people."""
        return f"TTFT {limit(self.ttft_s)} and TPOT {limit(self.tpot_s)}"

    @property
    def text(self) -> str:
        """Limits and share, for people."""
        return f"{self.limits} for {100 * self.attainment:.4g} % of requests"


@dataclass(frozen=True, slots=True)
class PlanVerdict:
    """One simulation of a candidate.

    Attributes:
        attainment: requests that finished within every limit, of all that arrived, 0..1.
        ttft_attainment: those with the first token in time. tpot_attainment: those that kept TPOT, of the ones that
            got a first token. Neither is below `attainment`; each describes one pool.
        goodput_per_s: requests within every limit, over the time in which requests arrive.
        hit_share: of prompt tokens that were not computed. pool_share: highest fill of the KV-cache pool.
        prefill_busy, decode_busy: work done under load, of what the pool can do; see `serving.virtual.work_done`.
        prefill_running, decode_running: part of the time under load in which steps ran.
        batch: most sequences of a decode die at a time, mean over its instance.
        why: what limits it, in one sentence with figures.
        worst_attainment: of requests that arrived in the ten minutes from the middle of the busiest one on.
        hit: sequences that a loss hit.
        prompt_tokens, output_tokens: of requests within every limit.
        load_s: time under load: until the last request arrived.
        stopped_s: when the run was stopped because the target was out of reach; None = it was not. All shares are then
            of the requests that were decided by then: finished, or late. pace_attainment: requests that kept TPOT, of
            those that finished: `tpot_attainment` without responses that started too late to finish before the end.
    """

    attainment: float
    ttft_attainment: float
    tpot_attainment: float
    goodput_per_s: float
    ttft_p99_s: float
    tpot_p99_s: float
    hit_share: float
    pool_share: float
    prefill_busy: float
    decode_busy: float
    batch: float
    why: str
    events: int = 0
    prefill_running: float = math.nan
    decode_running: float = math.nan
    worst_attainment: float = math.nan
    hit: int = 0
    pace_attainment: float = math.nan
    prompt_tokens: int = 0
    output_tokens: int = 0
    load_s: float = math.nan
    stopped_s: float | None = None

    def holds(self, target: PlanTarget) -> bool:
        """Whether enough requests kept the limits."""
        return self.attainment >= target.attainment

    def latency_percent(self, target: PlanTarget) -> float:
        """The 99th percentile that is nearer to its limit, in whole percents of it; infinite without any.

        Smaller differences are treated as equal.
        """
        parts = [self.ttft_p99_s / target.ttft_s, self.tpot_p99_s / target.tpot_s]
        return max((float(round(100 * part)) for part in parts if math.isfinite(part)), default=math.inf)


@dataclass(frozen=True, slots=True)
class PlanProbe:
    """One requested simulation.

    Attributes:
        whole: on the whole trace, else on its busiest stretch.
        rate: factor on arrivals per second, on top of the trace's own.
        loss: in the middle of the busiest minute.
        may_stop: whether it may end as soon as one pool alone has missed more requests than the target allows.
    """

    candidate: Candidate
    whole: bool = True
    rate: float = 1.0
    loss: PlanLoss | None = None
    may_stop: bool = False


Evaluate = Callable[[Sequence[PlanProbe]], list[PlanVerdict]]
"""Simulate; verdicts in the same order."""
