"""SLO violations: which pool caused them, and whether one more instance helps.

The plan is based on estimated loads, which may be wrong. So measured SLO attainment overrides it: if significantly more
requests miss an SLO than allowed while all requested instances serve, the pool that caused it gets an instance and
lowers its utilization target. This applies only to a busy pool: adding an instance cannot speed up a request that was
slow on an idle one.
"""

import math
from dataclasses import dataclass, field

from serving.config.scaling import SloConfig
from serving.scaling.core.demand import Demand, Outlook
from serving.scaling.core.pool_planner import LoadTarget
from serving.scaling.core.prompt_work import PromptWork
from serving.scaling.core.totals import Gains, Recent
from serving.values.signals import PoolSignals, ScalingSignals

# Detection of violations: the recent attainment, and whether it is significantly below the goal.

WINDOW_S = 60.0
TREND_S = 600.0
"""Window for comparing the violations with the allowed number."""
BUDGET_S = 3600.0
"""Window of the error budget: a bad minute in an hour that meets the SLO is no reason to grow."""
FEWEST = 10
"""Fewest responses for a conclusion."""
SIGMAS = 2.0


@dataclass(slots=True)
class SloWindow:
    """Attainment of one SLO (TTFT or TPOT) over the last minute, ten minutes and hour.

    Args:
        goal: share of requests that must meet the SLO.
    """

    goal: float
    _met: Recent = field(default_factory=lambda: Recent(WINDOW_S))
    _missed: Recent = field(default_factory=lambda: Recent(WINDOW_S))
    _trend_met: Recent = field(default_factory=lambda: Recent(TREND_S))
    _trend_missed: Recent = field(default_factory=lambda: Recent(TREND_S))
    _long_met: Recent = field(default_factory=lambda: Recent(BUDGET_S))
    _long_missed: Recent = field(default_factory=lambda: Recent(BUDGET_S))

    def add(self, met: int, missed: int, seconds: float) -> None:
        """Count the responses of the last `seconds`."""
        self._met.add(met, seconds)
        self._missed.add(missed, seconds)
        self._trend_met.add(met, seconds)
        self._trend_missed.add(missed, seconds)
        self._long_met.add(met, seconds)
        self._long_missed.add(missed, seconds)

    def clear(self) -> None:
        """Clear the last minute, so that later responses are judged separately."""
        self._met.clear()
        self._missed.clear()

    @property
    def answers(self) -> int:
        """Number of responses in the last minute."""
        return round(self._met.total + self._missed.total)

    @property
    def share(self) -> float | None:
        """Attainment in the last minute; None if there were no responses."""
        return self._met.total / self.answers if self.answers else None

    @property
    def trend_missed(self) -> float:
        """Violations in the last `TREND_S`, including those before a change of the pool."""
        return self._trend_missed.total

    @property
    def trend_answers(self) -> float:
        """Number of responses in the last `TREND_S`."""
        return self._trend_met.total + self._trend_missed.total

    @property
    def broken(self) -> bool:
        """Whether violations exceed the goal in the last minute, significantly, and in the last hour."""
        allowed = (1.0 - self.goal) * self.answers
        lately = self.answers >= FEWEST and self._missed.total > allowed + SIGMAS * math.sqrt(allowed)
        return lately and self._long_missed.total > (1.0 - self.goal) * (self._long_met.total + self._long_missed.total)


# Attribution of violations: which pool caused them, and whether one more instance helps.

MEANT = 0.8
"""Part of the allowed violations to use; the rest is reserve."""


@dataclass(slots=True)
class SloAttribution:
    """Monitors both SLOs. A request must meet both, so each SLO gets half of the allowed violations."""

    slo: SloConfig
    _ttft: SloWindow = field(init=False)
    _tpot: SloWindow = field(init=False)

    def __post_init__(self) -> None:
        self._ttft = SloWindow(self._goal)
        self._tpot = SloWindow(self._goal)

    @property
    def _goal(self) -> float:
        return (1.0 + self.slo.attainment) / 2

    def see(self, gains: Gains) -> None:
        """Count the responses since the last poll."""
        self._ttft.add(gains.ttft_met, gains.ttft_missed, gains.seconds)
        self._tpot.add(gains.tpot_met, gains.tpot_missed, gains.seconds)

    @property
    def spent(self) -> float:
        """Recent violations relative to the number to use: 1 = exactly as many."""
        allowed = MEANT * (1.0 - self.slo.attainment) * max(self._ttft.trend_answers, self._tpot.trend_answers)
        return (self._ttft.trend_missed + self._tpot.trend_missed) / max(1.0, allowed)

    def clear(self) -> None:
        """Clear the last minute after a change of a pool, so that later responses are judged separately."""
        self._ttft.clear()
        self._tpot.clear()

    def find(
        self,
        signals: ScalingSignals,
        pool: PoolSignals,
        outlook: Outlook,
        demand: Demand,
        load_target: LoadTarget,
        prompts: PromptWork,
    ) -> str:
        """Why the pool needs one more instance; "" = it does not.

        A violation found also lowers the pool's utilization target, and clears the last minute of its SLO.
        """
        if outlook.coming or not pool.running:
            return ""
        first, last = pool is signals.pools[0], pool is signals.pools[-1]
        for watch, label, mine in (
            (self._ttft, f"first tokens within {self.slo.ttft_s:g} s", first and self._queues(prompts)),
            (self._tpot, f"tokens within {self.slo.tpot_s * 1e3:g} ms", last),
        ):
            if not (mine and watch.broken):
                continue
            load = None if demand.load is None else demand.load / pool.running
            if load is not None and not load_target.new(load):
                continue
            if demand.load is not None and demand.load + demand.swing > pool.running:
                continue  # the plan requests more instances anyway
            if load is not None:
                load_target.learn(load)
            broken = f"{label}: {watch.share:.1%} of {watch.answers}, {100 * self._goal:g}% are needed"
            watch.clear()
            return broken
        return ""

    def _queues(self, prompts: PromptWork) -> bool:
        """Whether queueing causes the violations: long waits are more frequent than allowed violations."""
        return prompts.long_waits > (1.0 - self.slo.attainment) / 2
