"""Broken promises: which pool they are to be laid to, and whether one instance more can mend them.

The plan goes by loads; loads are estimates, and what a promise needs depends on traffic that no estimate knows. So the
promises themselves have the last word: if more are broken than may be, by more than chance, while everybody who was
asked for is there, the pool at fault gets an instance and learns to aim lower. But only if it was busy: an answer that
is slow with nobody in its way will not be faster with company.
"""

from dataclasses import dataclass, field

from serving.config.scaling import SloConfig
from serving.scaling.core.demand import Demand, Outlook
from serving.scaling.core.gains import Gains
from serving.scaling.core.load_target import LoadTarget
from serving.scaling.core.promises import PromiseWindow
from serving.scaling.core.prompt_work import PromptWork
from serving.values.signals import PoolSignals, ScalingSignals

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
