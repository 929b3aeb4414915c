"""Decode demand in instances: concurrent sequences, and the KV blocks that they fill.

Sequences stay long, so their future number can be forecast better than a rate: with residence T and arrival rate a, it
approaches a x T (Little's law) with time constant T, as current sequences end. Thus a burst of prompts starts decode
instances before its sequences arrive there.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from serving.scaling.core.demand import Demand, Outlook, unknown
from serving.scaling.core.load_forecast import FastRate, GrowthRate, LoadForecast, ShareAverage, StockAverage
from serving.scaling.core.totals import Gains
from serving.values.signals import PoolSignals

RESIDENCE_S = 200.0
"""Time constant of the residence of sequences."""
STOCK_S = 60.0
"""Time constant of the number of sequences."""
SURE, SURE_NOW = 2.0, 3.0
"""Standard deviations between the smooth number, and the current one, and their lower bounds."""
BURST_SIGMAS = 4.0
"""The same for the requests of the last seconds."""
GROWTH_SIGMAS = 2.5
"""The same for the growth of the number of sequences."""
FEWEST = 5.0
"""Requests needed before the measured residence is used."""
KV_AIM = 0.9
"""Target fill of the KV blocks: the rest is for sequences that still grow."""
FULL = 0.9
"""Part of the slots or KV blocks from which the next sequence may have to wait. Also the part of `max_sequences`, if
the short-term limit `crowd` is not given."""


@dataclass(slots=True)
class DecodeWork:
    """Demand on the pool that decodes."""

    _stock: StockAverage = field(default_factory=lambda: StockAverage(STOCK_S))
    _blocks: StockAverage = field(default_factory=lambda: StockAverage(STOCK_S))
    _residence: ShareAverage = field(default_factory=lambda: ShareAverage(RESIDENCE_S))
    _forecast: LoadForecast = field(default_factory=LoadForecast)
    _fast: FastRate = field(default_factory=lambda: FastRate(BURST_SIGMAS))
    _growth: GrowthRate = field(default_factory=lambda: GrowthRate(GROWTH_SIGMAS))

    def see(self, gains: Gains, pool: PoolSignals) -> None:
        """Update the averages with what happened since the last poll."""
        self._stock.add(pool.sequences, gains.seconds)
        self._blocks.add(pool.kv_blocks_used, gains.seconds)
        # While traffic grows, arrivals exceed departures; the residence is relative to the mean of both.
        accepted = max(0, gains.arrived - gains.rejected)
        self._residence.add(pool.sequences * gains.seconds, (accepted + gains.finished) / 2, gains.seconds)
        self._forecast.add(gains.arrived, gains.seconds)
        self._fast.add(gains.arrived, gains.seconds)
        self._growth.add(pool.sequences, gains.seconds)

    @property
    def residence_s(self) -> float:
        """Sum of the residence times of a request's sequences [s]; 0 = not known yet."""
        return self._residence.value(0.0) if self._residence.whole >= FEWEST else 0.0

    def now_instances(self, pool: PoolSignals) -> float:
        """Instances needed for the current sequences."""
        return max(self._by_sequences(pool, pool.sequences), self._by_blocks(pool, pool.kv_blocks_used))

    def full(self, pool: PoolSignals, elsewhere: int) -> bool:
        """Whether new sequences must wait.

        Args:
            elsewhere: requests that wait in an earlier stage.
        """
        return pool.waiting + elsewhere > 0 and self.now_instances(pool) >= FULL * max(1, pool.running)

    def words(self, pool: PoolSignals) -> str:
        """Load of the pool and the limit from which it is full, as text."""
        full = FULL * max(1, pool.running)
        return f"decode is full: {self.now_instances(pool):.2f} instances' worth, from {full:.2f} on nothing more fits"

    def demand(self, pool: PoolSignals, outlook: Outlook, coming: int = 0, aim: float = FULL) -> Demand:
        """Load and urgency of the pool.

        Args:
            coming: sequences in an earlier stage that this pool will decode.
            aim: target load of an instance.
        """
        if pool.max_sequences <= 0 and pool.kv_blocks_total <= 0:
            return unknown("what decode can take is not known yet")
        arrivals, residence = self._forecast.ahead(outlook.start_s), self.residence_s
        expected = self._in_a_while(self._stock.mean, arrivals, outlook.start_s)
        surely = self._fast.surely(self._forecast)
        sure = self._in_a_while(self._surely_here(pool), surely, outlook.start_s)
        noise, heading = self._noise(outlook.start_s), max(expected, self._forecast.level * residence)
        urgent, why_urgent = self._urgent(pool, outlook, coming, aim)
        return Demand(
            load=self._instances(pool, expected),
            noise=self._more_instances(pool, expected, noise),
            sure=self._instances(pool, sure),
            steady=self._instances(pool, self._stock.steady),
            heading=self._instances(pool, heading),
            urgent=urgent,
            why=self._why(pool, expected),
            why_urgent=why_urgent,
            memory_s=residence,
        )

    def _why(self, pool: PoolSignals, expected: float) -> str:
        if self._by_sequences(pool, expected) >= self._instances(pool, expected):
            return f"{expected:.0f} sequences ahead of {pool.max_sequences:.0f} an instance"
        return f"{expected:.0f} sequences ahead, KV {pool.kv_blocks_used / max(1, pool.kv_blocks_total):.0%} full"

    def _surely_here(self, pool: PoolSignals) -> float:
        """Lower bound of the sequences: the last minute's or the current number, each lowered by its scatter."""
        smooth = self._stock.mean - SURE * self._stock.noise(self.residence_s)
        now = pool.sequences - SURE_NOW * self._stock.scatter
        return max(0.0, smooth, now)

    def _urgent(self, pool: PoolSignals, outlook: Outlook, coming: int, aim: float) -> tuple[float, str]:
        """Urgent need: if the lower bound exceeds the instances, request the likely need in one large step."""
        arrivals = self._fast.surely(self._forecast)
        longer = max(1.0, self.now_instances(pool) / max(1, pool.running))  # too many at once all stay longer
        come = self._in_a_while(pool.sequences + coming, arrivals, outlook.start_s / longer)
        rise = self._growth.ahead(outlook.start_s, self._forecast)
        rises = rise.surely > 0.0
        soon = max(come, pool.sequences + rise.surely) if rises else come
        if self._at_once(pool, soon, aim) <= outlook.there:
            return 0.0, ""
        soon = max(come, pool.sequences + rise.likely) if rises else come
        ahead = f"{soon:.0f} sequences in {outlook.start_s:.0f} s"
        why = f"{ahead}, {pool.sequences} now, {pool.waiting + coming} waiting"
        return self._at_once(pool, soon, aim), why

    def _at_once(self, pool: PoolSignals, sequences: float, aim: float) -> float:
        """Instances needed at once for `sequences`, with as many KV blocks each as the current ones.

        Args:
            aim: target load of an instance, up to which the load is never urgent.
        """
        blocks = pool.kv_blocks_used * sequences / max(1, pool.sequences)
        crowd = max(pool.crowd or FULL * pool.max_sequences, aim * pool.max_sequences)
        slow = self._by_sequences(pool, sequences * pool.max_sequences / crowd) if crowd > 0 else 0.0
        seats = sequences / pool.seats if pool.seats > 0 else 0.0
        return max(slow, seats / FULL, self._by_blocks(pool, blocks) / FULL)

    def _in_a_while(self, sequences: float, arrivals: float, seconds: float) -> float:
        residence = self.residence_s
        if residence <= 0:
            return sequences
        final = arrivals * residence
        return final + (sequences - final) * math.exp(-seconds / residence)

    def _noise(self, seconds: float) -> float:
        """Standard deviation of the forecast number of sequences: of the current ones, and of arrivals until then."""
        residence = self.residence_s
        stay = math.exp(-seconds / residence) if residence > 0 else 1.0
        come = self._forecast.noise * residence * (1.0 - stay)
        return math.hypot(self._stock.noise(residence) * stay, come)

    def _instances(self, pool: PoolSignals, sequences: float) -> float:
        """Instances needed for `sequences`, with the current mean KV blocks of each."""
        each = self._blocks.mean / self._stock.mean if self._stock.mean > 0 else 0.0
        return max(self._by_sequences(pool, sequences), self._by_blocks(pool, sequences * each))

    def _more_instances(self, pool: PoolSignals, sequences: float, more: float) -> float:
        """Instances needed for `more` additional sequences; fewer than for these alone if large ones do better."""
        if not pool.abilities:
            return self._instances(pool, more)
        return self._instances(pool, sequences + more) - self._instances(pool, sequences)

    @staticmethod
    def _by_sequences(pool: PoolSignals, sequences: float) -> float:
        if pool.abilities:
            return parts_for(sequences, pool.abilities)
        return sequences / pool.max_sequences if pool.max_sequences > 0 else 0.0

    @staticmethod
    def _by_blocks(pool: PoolSignals, blocks: float) -> float:
        if pool.kv_blocks_total <= 0 or pool.running <= 0:
            return 0.0
        return blocks / (pool.kv_blocks_total / pool.running * KV_AIM)


# How many parts of an instance a load takes, where an instance grows and shrinks by parts.
#
# sequences                   . abilities[n]: what n parts decode in time; more parts hold fewer experts each,
#    |                  . '     so that twice as many do more than twice as much
#    |          . ' '
#    +--------------------- parts


def parts_for(sequences: float, abilities: Sequence[float]) -> float:
    """Parts needed for a number of sequences, with fractions; extrapolated beyond the end of the table.

    Args:
        abilities: of 0, 1, 2, ... parts; rising from 0, at least two.
    """
    last = len(abilities) - 1
    above = min(bisect_left(abilities, sequences, 1), last)
    low, high = abilities[above - 1], abilities[above]
    return above - 1 + (sequences - low) / (high - low)
