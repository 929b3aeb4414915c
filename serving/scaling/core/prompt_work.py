"""How many instances the prompts take: uncached tokens that arrive, and those that already wait.

The smooth load is what the plan goes by. Urgent is a queue that will still be too long for the promise when an instance
asked for now could serve: one that is worked off before that needs nobody, and one that is left to those who are still
starting is not answered twice.
"""

from dataclasses import dataclass, field

from serving.scaling.core.demand import Demand, Outlook, unknown
from serving.scaling.core.load_forecast import FastRate, LoadForecast, ShareAverage
from serving.scaling.core.totals import Gains, Recent
from serving.values.signals import PoolSignals, Traffic

UNCACHED_S = 300.0
"""Time constant of the uncached share of prompts."""
SURE = 2.0
"""Standard deviations by which the smooth rate is surely not too high."""
BURST_SIGMAS = 4.5
"""The same of the last seconds: prompts are of very different length, so that a few long ones look like a burst."""
LONG_WAIT = 0.5
"""Of the promised time to first token: the rest is for computing and for moving KV."""
LOOKS_S = 120.0
SWING_SIGMAS = 2.0
"""Standard deviations of what comes within the longest wait that the instances must be able to take beside the mean."""


@dataclass(slots=True)
class PromptWork:
    """Demand on the pool that computes prompts.

    Args:
        ttft_s: promised time to first token [s].
    """

    ttft_s: float
    _share: ShareAverage = field(default_factory=lambda: ShareAverage(UNCACHED_S))
    _course: LoadForecast = field(default_factory=LoadForecast)
    _fast: FastRate = field(default_factory=lambda: FastRate(BURST_SIGMAS))
    _long: Recent = field(default_factory=lambda: Recent(LOOKS_S))
    """Seconds at whose end the queue was longer than the promise allows."""
    _queued_before: int = 0

    def see(self, gains: Gains, pool: PoolSignals, traffic: Traffic) -> None:
        """Count what happened since the last look. Effects: the averages move."""
        queued = pool.queued_tokens + traffic.queued_tokens
        accepted = gains.arrived_tokens * max(0.0, 1.0 - gains.rejected / max(1, gains.arrived))
        done = max(0.0, accepted - (queued - self._queued_before))
        self._queued_before = queued
        self._share.add(gains.uncached_tokens, max(done, gains.uncached_tokens), gains.seconds)
        self._course.add(gains.arrived_tokens, gains.seconds)
        self._fast.add(gains.arrived_tokens, gains.seconds)
        long = self._wait_s(pool, traffic) > LONG_WAIT * self.ttft_s or self._stands(pool, traffic)
        self._long.add(gains.seconds if long else 0.0, gains.seconds)

    @property
    def long_waits(self) -> float:
        """Share of the last minutes in which the queue alone took too much of the promise."""
        return self._long.total / self._long.seconds if self._long.seconds > 0 else 0.0

    def _wait_s(self, pool: PoolSignals, traffic: Traffic) -> float:
        """How long the queue takes the instances that serve [s]; 0 if nobody knows."""
        if pool.tokens_per_s <= 0:
            return 0.0
        return self.queue(pool, traffic) / (pool.tokens_per_s * max(pool.running, 0.5))

    def _stands(self, pool: PoolSignals, traffic: Traffic) -> bool:
        return traffic.oldest_wait_s > self.ttft_s and pool.waiting + traffic.queued > 0

    def queue(self, pool: PoolSignals, traffic: Traffic) -> float:
        """Tokens that wait to be computed, in the instances and, as far as they will not be cached, in the gateways."""
        return pool.queued_tokens + traffic.queued_tokens * self._share.value(1.0)

    def now_instances(self, pool: PoolSignals) -> float:
        """Instances that the prompts of the last seconds take."""
        if pool.tokens_per_s <= 0:
            return 0.0
        return self._fast.rate(self._course) * self._share.value(1.0) / pool.tokens_per_s

    def demand(self, pool: PoolSignals, traffic: Traffic, outlook: Outlook, elsewhere: float = 0.0) -> Demand:
        """Load and urgency.

        Args:
            elsewhere: instances of the pool that are busy with other work.
        """
        if pool.tokens_per_s <= 0:
            nobody_knows = "the speed of prefill is not known yet"
            urgent = outlook.there + 1.0 if self._stands(pool, traffic) and not outlook.coming else 0.0
            why = f"{traffic.queued + pool.waiting} requests wait, the first for {traffic.oldest_wait_s:.1f} s"
            return unknown(nobody_knows, urgent, f"{why}; {nobody_knows}")
        per_instance = self._share.value(1.0) / pool.tokens_per_s
        rate = self._course.ahead(outlook.start_s)
        wait_s = LONG_WAIT * self.ttft_s
        urgent, why_urgent = self._urgent(pool, self.queue(pool, traffic), outlook, elsewhere)
        return Demand(
            load=rate * per_instance,
            noise=self._course.noise * per_instance,
            sure=max(rate - SURE * self._course.noise, self._fast.surely(self._course)) * per_instance,
            steady=self._course.steady * per_instance,
            heading=self._course.level * per_instance,
            urgent=urgent,
            why=f"{rate * self._share.value(1.0):.0f} uncached tokens/s of {pool.tokens_per_s:.0f} an instance",
            why_urgent=why_urgent,
            swing=SWING_SIGMAS * self._course.noise_over(wait_s) * per_instance,
        )

    def _urgent(self, pool: PoolSignals, queue: float, outlook: Outlook, elsewhere: float) -> tuple[float, str]:
        share, speed = self._share.value(1.0), pool.tokens_per_s
        fast = self._fast.rate(self._course) * share
        surely = self._fast.surely(self._course) * share
        done = max(0.0, outlook.running - elsewhere) * outlook.start_s
        done += outlook.coming * max(0.0, outlook.start_s - outlook.ready_in_s)
        left = queue + surely * outlook.start_s - speed * done
        able = speed * max(outlook.there - elsewhere, 0.5)
        if left <= LONG_WAIT * self.ttft_s * able:
            return 0.0, ""
        # what is left is worked off in the time that it took to come
        need = fast / speed + left / (speed * max(outlook.start_s, self.ttft_s))
        why = f"{queue:.0f} tokens wait and {fast:.0f}/s come: {left / able:.1f} s of work in {outlook.start_s:.0f} s"
        return need, f"{why}, {self.ttft_s:g} s are promised"
