"""Broken promises: which pool they are to be laid to, and whether one instance more can mend them.

The plan goes by loads; loads are estimates, and what a promise needs depends on traffic that no estimate knows. So the
promises themselves have the last word: if more are broken than may be, by more than chance, while everybody who was
asked for is there, the pool at fault gets an instance and learns to aim lower. But only if it was busy: an answer that
is slow with nobody in its way will not be faster with company.
"""

import math
from dataclasses import dataclass, field

from serving.config.scaling import SloConfig
from serving.scaling.core.demand import Demand, Outlook
from serving.scaling.core.pool_planner import LoadTarget
from serving.scaling.core.prompt_work import PromptWork
from serving.scaling.core.totals import Gains, Recent
from serving.values.signals import PoolSignals, ScalingSignals

# Whether promises are being broken: the share kept lately, and whether it is worse than chance would have it.

WINDOW_S = 60.0
TREND_S = 600.0
"""Over so long it shows whether more or less is missed than may be."""
BUDGET_S = 3600.0
"""What may be missed is counted over so long: a bad minute in an hour that kept the promise is no reason to grow."""
FEWEST = 10
"""Answers below which nothing is concluded."""
SIGMAS = 2.0


@dataclass(slots=True)
class PromiseWindow:
    """One promise (time to first token, or per token) over the last minute.

    Args:
        goal: share of requests that must be served as promised.
    """

    goal: float
    _met: Recent = field(default_factory=lambda: Recent(WINDOW_S))
    _missed: Recent = field(default_factory=lambda: Recent(WINDOW_S))
    _trend_met: Recent = field(default_factory=lambda: Recent(TREND_S))
    _trend_missed: Recent = field(default_factory=lambda: Recent(TREND_S))
    _long_met: Recent = field(default_factory=lambda: Recent(BUDGET_S))
    _long_missed: Recent = field(default_factory=lambda: Recent(BUDGET_S))

    def add(self, met: int, missed: int, seconds: float) -> None:
        """Count the answers of the last `seconds`."""
        self._met.add(met, seconds)
        self._missed.add(missed, seconds)
        self._trend_met.add(met, seconds)
        self._trend_missed.add(missed, seconds)
        self._long_met.add(met, seconds)
        self._long_missed.add(missed, seconds)

    def clear(self) -> None:
        """Forget the last minute: what follows is to be judged by itself."""
        self._met.clear()
        self._missed.clear()

    @property
    def answers(self) -> int:
        """Judged in the window."""
        return round(self._met.total + self._missed.total)

    @property
    def share(self) -> float | None:
        """Kept; None if there was nothing to keep."""
        return self._met.total / self.answers if self.answers else None

    @property
    def trend_missed(self) -> float:
        """Broken in the last minutes; a change of the pool is part of it."""
        return self._trend_missed.total

    @property
    def trend_answers(self) -> float:
        """Judged in the last minutes."""
        return self._trend_met.total + self._trend_missed.total

    @property
    def broken(self) -> bool:
        """Whether more was missed than the goal allows: lately, by more than chance, and in the last hour."""
        allowed = (1.0 - self.goal) * self.answers
        lately = self.answers >= FEWEST and self._missed.total > allowed + SIGMAS * math.sqrt(allowed)
        return lately and self._long_missed.total > (1.0 - self.goal) * (self._long_met.total + self._long_missed.total)


# Broken promises: which pool they are to be laid to, and whether one instance more can mend them.

MEANT = 0.8
"""Of the promises that may be broken: the others are for what nobody foresees."""


@dataclass(slots=True)
class SloAttribution:
    """Watches both promises. A request must get both: each may be broken for half of those that may go without."""

    slo: SloConfig
    _ttft: PromiseWindow = field(init=False)
    _tpot: PromiseWindow = field(init=False)

    def __post_init__(self) -> None:
        self._ttft = PromiseWindow(self._goal)
        self._tpot = PromiseWindow(self._goal)

    @property
    def _goal(self) -> float:
        return (1.0 + self.slo.attainment) / 2

    def see(self, gains: Gains) -> None:
        """Count the answers since the last look."""
        self._ttft.add(gains.ttft_met, gains.ttft_missed, gains.seconds)
        self._tpot.add(gains.tpot_met, gains.tpot_missed, gains.seconds)

    @property
    def spent(self) -> float:
        """Promises broken in the last minutes, of those that are meant to be: 1 = just as many."""
        allowed = MEANT * (1.0 - self.slo.attainment) * max(self._ttft.trend_answers, self._tpot.trend_answers)
        return (self._ttft.trend_missed + self._tpot.trend_missed) / max(1.0, allowed)

    def clear(self) -> None:
        """Forget: a pool has changed, and what comes from now on is to be judged by itself."""
        self._ttft.clear()
        self._tpot.clear()

    def find(
        self,
        signals: ScalingSignals,
        pool: PoolSignals,
        outlook: Outlook,
        demand: Demand,
        lesson: LoadTarget,
        prompts: PromptWork,
    ) -> str:
        """Why the pool needs an instance more, "" = it does not.

        Effects: the pool learns from a broken promise, which is then forgotten.
        """
        if outlook.coming or not pool.running:
            return ""
        first, last = pool is signals.pools[0], pool is signals.pools[-1]
        for watch, promise, mine in (
            (self._ttft, f"first tokens within {self.slo.ttft_s:g} s", first and self._queues(prompts)),
            (self._tpot, f"tokens within {self.slo.tpot_s * 1e3:g} ms", last),
        ):
            if not (mine and watch.broken):
                continue
            load = None if demand.load is None else demand.load / pool.running
            if load is not None and not lesson.new(load):
                continue
            if load is not None:
                lesson.learn(load)
            broken = f"{promise}: {watch.share:.1%} of {watch.answers}, {100 * self._goal:g}% are needed"
            watch.clear()
            return broken
        return ""

    def _queues(self, prompts: PromptWork) -> bool:
        """Whether waiting is what breaks the promise: long waits more often than promises may break."""
        return prompts.long_waits > (1.0 - self.slo.attainment) / 2
