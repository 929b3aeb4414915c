"""Prefill demand in instances: arriving uncached tokens, and queued ones.

The plan uses the smooth load. A queue is urgent if it will still be too long for the TTFT SLO when an instance
requested now could serve: a queue that is processed earlier needs no instance, and starting instances are counted, so
that none is requested twice.
"""

import math
from dataclasses import dataclass, field

from serving.scaling.core.demand import Demand, Outlook, unknown
from serving.scaling.core.load_forecast import FastRate, LoadForecast, ShareAverage
from serving.scaling.core.totals import Gains, Recent
from serving.values.signals import PoolSignals, Traffic

UNCACHED_S = 300.0
"""Time constant of the uncached share of prompts."""
SURE = 1.0
"""Standard deviations between the smooth rate and its lower bound."""
BURST_SIGMAS = 4.5
"""The same for the rate of the last seconds: prompt lengths vary widely, so a few long ones resemble a burst."""
LONG_WAIT = 0.5
"""Part of the TTFT SLO that may be spent waiting: the rest is for computing and transferring KV."""
LEAD_S = 10.0
"""How long before the load needs it a new instance should serve: the time of a few counts and of a first step."""
LOOKS_S = 120.0
SWING_SIGMAS = 3.0
"""Standard deviations of the arrivals that instances must absorb without a longer wait."""


@dataclass(slots=True)
class PromptWork:
    """Demand on the pool that computes prompts.

    Args:
        ttft_s: TTFT SLO [s].
    """

    ttft_s: float
    _share: ShareAverage = field(default_factory=lambda: ShareAverage(UNCACHED_S))
    _forecast: LoadForecast = field(default_factory=LoadForecast)
    _fast: FastRate = field(default_factory=lambda: FastRate(BURST_SIGMAS))
    _long: Recent = field(default_factory=lambda: Recent(LOOKS_S))
    """Time during which the queue was longer than the SLO allows."""
    _queued_before: int = 0

    def see(self, gains: Gains, pool: PoolSignals, traffic: Traffic) -> None:
        """Update the averages with what happened since the last poll."""
        queued = pool.queued_tokens + traffic.queued_tokens
        accepted = gains.arrived_tokens * max(0.0, 1.0 - gains.rejected / max(1, gains.arrived))
        done = max(0.0, accepted - (queued - self._queued_before))
        self._queued_before = queued
        self._share.add(gains.uncached_tokens, max(done, gains.uncached_tokens), gains.seconds)
        self._forecast.add(gains.arrived_tokens, gains.seconds)
        self._fast.add(gains.arrived_tokens, gains.seconds)
        long = self._wait_s(pool, traffic) > LONG_WAIT * self.ttft_s or self._stands(pool, traffic)
        self._long.add(gains.seconds if long else 0.0, gains.seconds)

    @property
    def long_waits(self) -> float:
        """Share of the last minutes in which queueing alone used too much of the TTFT SLO."""
        return self._long.total / self._long.seconds if self._long.seconds > 0 else 0.0

    def _wait_s(self, pool: PoolSignals, traffic: Traffic) -> float:
        """Time in which the serving instances process the queue [s]; 0 if unknown."""
        if pool.tokens_per_s <= 0:
            return 0.0
        return self.queue(pool, traffic) / (pool.tokens_per_s * max(pool.running, 0.5))

    def _stands(self, pool: PoolSignals, traffic: Traffic) -> bool:
        return traffic.oldest_wait_s > self.ttft_s and pool.waiting + traffic.queued > 0

    def queue(self, pool: PoolSignals, traffic: Traffic) -> float:
        """Queued tokens: those in the instances, and the expected uncached ones in the gateways."""
        return pool.queued_tokens + traffic.queued_tokens * self._share.value(1.0)

    def now_instances(self, pool: PoolSignals) -> float:
        """Instances needed for the prompts of the last seconds."""
        if pool.tokens_per_s <= 0:
            return 0.0
        return self._fast.rate(self._forecast) * self._share.value(1.0) / pool.tokens_per_s

    def demand(self, pool: PoolSignals, traffic: Traffic, outlook: Outlook, elsewhere: float = 0.0) -> Demand:
        """Load and urgency of the pool.

        Args:
            elsewhere: instances of the pool that are busy with other work.
        """
        if pool.tokens_per_s <= 0:
            nobody_knows = "the speed of prefill is not known yet"
            urgent = outlook.there + 1.0 if self._stands(pool, traffic) and not outlook.coming else 0.0
            why = f"{traffic.queued + pool.waiting} requests wait, the first for {traffic.oldest_wait_s:.1f} s"
            return unknown(nobody_knows, urgent, f"{why}; {nobody_knows}")
        per_instance = self._share.value(1.0) / pool.tokens_per_s
        rate = self._forecast.ahead(outlook.start_s + LEAD_S)
        urgent, why_urgent = self._urgent(pool, self.queue(pool, traffic), outlook, elsewhere)
        return Demand(
            load=rate * per_instance,
            noise=self._forecast.noise * per_instance,
            sure=max(rate - SURE * self._forecast.noise, self._fast.surely(self._forecast)) * per_instance,
            steady=self._forecast.steady * per_instance,
            heading=self._forecast.ahead(0.0) * per_instance,
            urgent=urgent,
            why=f"{rate * self._share.value(1.0):.0f} uncached tokens/s of {pool.tokens_per_s:.0f} an instance",
            why_urgent=why_urgent,
            swing=self._swing(rate, per_instance),
        )

    def _swing(self, rate: float, per_instance: float) -> float:
        """Instances above the load that keep the queue short when more tokens than usual arrive for a while.

        In t seconds the work exceeds the mean by k standard deviations, which grow with the square root of t, and n
        instances can do (n - load) t more than the mean. The queue stays below w seconds of all instances for every t
        if n (n - load) >= k^2 variance / 4 w.
        """
        load, variance = rate * per_instance, self._forecast.spread_at(rate) * per_instance**2
        product = SWING_SIGMAS**2 * variance / (4 * LONG_WAIT * self.ttft_s)
        return (math.sqrt(load * load + 4 * product) - load) / 2

    def _urgent(self, pool: PoolSignals, queue: float, outlook: Outlook, elsewhere: float) -> tuple[float, str]:
        share, speed = self._share.value(1.0), pool.tokens_per_s
        fast = self._fast.rate(self._forecast) * share
        surely = self._fast.surely(self._forecast) * share
        done = max(0.0, outlook.running - elsewhere) * outlook.start_s
        done += outlook.coming * max(0.0, outlook.start_s - outlook.ready_in_s)
        able = speed * max(outlook.there - elsewhere, 0.5)
        late = queue > LONG_WAIT * self.ttft_s * speed * max(outlook.running - elsewhere, 0.5)
        # a long queue proves that the likely rate is no chance
        come = max(surely, self._forecast.ahead(0.0) * share) if late else surely
        left = queue + come * outlook.start_s - speed * done
        if left <= LONG_WAIT * self.ttft_s * able:
            return 0.0, ""
        # the remaining queue is processed in the time in which it accumulated
        need = fast / speed + left / (speed * max(outlook.start_s, self.ttft_s))
        why = f"{queue:.0f} tokens wait and {fast:.0f}/s come: {left / able:.1f} s of work in {outlook.start_s:.0f} s"
        return need, f"{why}, {self.ttft_s:g} s are promised"
