"""A small model of the pools, for the policy's tests: a day in a second or two.

Prompts wait in one queue and are computed at the speed of all prefill instances together; sequences decode at one
common speed that falls when a batch exceeds an instance's capacity within the SLO. No steps, no KV movement: a
policy must handle the load, the delay of a start, and the noise of arrivals.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from serving.scaling.core.decision import PoolTarget, Scaler
from serving.values.signals import PoolSignals, ScalingSignals, Traffic


@dataclass
class FluidPool:
    """Replicas of one pool; a start is delayed, a stop is immediate."""

    name: str
    running: int
    npus: int
    low: int = 1
    high: int = 50
    target: int = -1
    starts: deque[float] = field(default_factory=deque)
    held_until: float = 0.0

    def __post_init__(self) -> None:
        self.target = self.running if self.target < 0 else self.target

    def set(self, target: int, now: float, start_s: float) -> None:
        """Start or stop replicas."""
        self.target = target
        while self.running + len(self.starts) < target:
            self.starts.append(now + start_s)
        while self.starts and self.running + len(self.starts) > target:
            self.starts.pop()
        self.running = min(self.running, target)

    def step(self, now: float) -> None:
        """Replicas whose start is complete begin to serve."""
        while self.starts and self.starts[0] <= now:
            self.starts.popleft()
            self.running += 1


@dataclass
class Fluid:
    """The system and its traffic.

    Args:
        rate: requests per second at a time [s].
        prompt, output: mean tokens, exponentially distributed.
    """

    rate: Callable[[float], float]
    seed: int = 0
    start_s: float = 10.0
    ttft_s: float = 2.0
    tpot_s: float = 0.05
    prompt: float = 2000.0
    output: float = 400.0
    tokens_per_s: float = 20000.0
    max_sequences: float = 100.0
    npus_total: int = 384
    cached: float = 0.0
    prefill: FluidPool = field(default_factory=lambda: FluidPool("prefill", 2, 4))
    decode: FluidPool = field(default_factory=lambda: FluidPool("decode", 2, 8))
    now: float = 0.0
    npu_s: float = 0.0
    changes: list[tuple[float, PoolTarget]] = field(default_factory=list)
    arrived: int = 0
    arrived_tokens: int = 0
    uncached: int = 0
    finished: int = 0
    ttft_met: int = 0
    ttft_missed: int = 0
    tpot_met: int = 0
    tpot_missed: int = 0
    _line: deque[list[float]] = field(default_factory=deque)
    """Waiting: [arrived at, tokens left, tokens, cached part]."""
    _decoding: list[tuple[float, float, float]] = field(default_factory=list)
    """Heap of (token clock at the end, start, tokens)."""
    _clock: float = 0.0
    """Tokens that every sequence has got since the start."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def run(self, scaler: Scaler | None, until: float, period_s: float = 1.0) -> None:
        """Drive the scaler to the end. Effects: all state."""
        while self.now < until:
            if scaler is not None:
                for target in scaler.decide(self.signals()).changes:
                    self.changes.append((self.now, target))
                    pool = self.prefill if target.pool == "prefill" else self.decode
                    pool.set(target.target, self.now, self.start_s)
            self._step(period_s)

    def signals(self) -> ScalingSignals:
        """Signals of one tick."""
        queued = sum(one[1] for one in self._line)
        used = self.prefill.target * self.prefill.npus + self.decode.target * self.decode.npus
        oldest = self.now - self._line[0][0] if self._line else 0.0
        return ScalingSignals(
            now=self.now,
            pools=(
                self._pool(self.prefill, round(queued), len(self._line), self.tokens_per_s, 0.0),
                self._pool(self.decode, 0, 0, 0.0, self.max_sequences, len(self._decoding)),
            ),
            cache=None,
            traffic=Traffic(
                arrived=self.arrived,
                arrived_tokens=self.arrived_tokens,
                uncached_tokens=self.uncached,
                finished=self.finished,
                ttft_met=self.ttft_met,
                ttft_missed=self.ttft_missed,
                tpot_met=self.tpot_met,
                tpot_missed=self.tpot_missed,
                oldest_wait_s=oldest,
            ),
            npus_free=max(0, self.npus_total - used),
            npus_total=self.npus_total,
            start_s=self.start_s,
        )

    @staticmethod
    def _pool(
        pool: FluidPool, queued: int, waiting: int, speed: float, sequences: float, there: int = 0
    ) -> PoolSignals:
        return PoolSignals(
            pool=pool.name,
            target=pool.target,
            running=pool.running,
            starting=len(pool.starts),
            draining=0,
            npus_per_instance=pool.npus,
            queued_tokens=queued,
            waiting=waiting,
            sequences=there + waiting,
            kv_blocks_used=there,
            kv_blocks_total=1000 * pool.running,
            tokens_per_s=speed,
            max_sequences=sequences,
            low=pool.low,
            high=pool.high,
            held_until=pool.held_until,
        )

    @property
    def attainment(self) -> float:
        """The worse attainment of both SLOs."""
        ttft = self.ttft_met / max(1, self.ttft_met + self.ttft_missed)
        return min(ttft, self.tpot_met / max(1, self.tpot_met + self.tpot_missed))

    def _step(self, seconds: float) -> None:
        for pool in (self.prefill, self.decode):
            pool.step(self.now)
            self.npu_s += seconds * pool.npus * pool.target
        begin, self.now = self.now, self.now + seconds
        for at in self._arrivals(begin, seconds):
            tokens = max(1.0, self.random.expovariate(1 / self.prompt))
            self.arrived += 1
            self.arrived_tokens += round(tokens)
            self._line.append([at, tokens * (1 - self.cached), tokens, tokens * (1 - self.cached)])
        self._prefill(begin, seconds)
        self._decode(begin, seconds)

    def _arrivals(self, begin: float, seconds: float) -> list[float]:
        rate, at, times = self.rate(begin), begin, []
        while rate > 0:
            at += self.random.expovariate(rate)
            if at >= begin + seconds:
                break
            times.append(at)
        return times

    def _prefill(self, begin: float, seconds: float) -> None:
        speed, at = self.tokens_per_s * self.prefill.running, begin
        while self._line and speed > 0:
            one = self._line[0]
            at = max(at, one[0])
            done = at + one[1] / speed
            if done > begin + seconds:
                one[1] -= max(0.0, begin + seconds - at) * speed
                return
            self._line.popleft()
            alone = one[3] / self.tokens_per_s - one[3] / speed
            met = done + alone - one[0] <= self.ttft_s
            self.ttft_met, self.ttft_missed = self.ttft_met + met, self.ttft_missed + (not met)
            self.uncached += round(one[3])
            tokens = max(2.0, self.random.expovariate(1 / self.output))
            heapq.heappush(self._decoding, (self._clock + tokens, done, tokens))
            at = done

    def _decode(self, begin: float, seconds: float) -> None:
        if not self.decode.running:
            return
        batch = len(self._decoding) / self.decode.running
        pace = self.tpot_s * (0.5 + 0.5 * batch / self.max_sequences)
        self._clock += seconds / pace
        while self._decoding and self._decoding[0][0] <= self._clock:
            _, began, tokens = heapq.heappop(self._decoding)
            met = self.now - began <= self.tpot_s * tokens + seconds
            self.finished += 1
            self.tpot_met, self.tpot_missed = self.tpot_met + met, self.tpot_missed + (not met)


def flat(rate: float) -> Callable[[float], float]:
    """A constant rate."""
    return lambda _: rate


def day(low: float, high: float, hours: float = 24.0) -> Callable[[float], float]:
    """One slow wave, lowest at the start."""
    return lambda t: low + (high - low) * 0.5 * (1 - math.cos(2 * math.pi * t / (3600 * hours)))


def burst(base: float, peak: float, start: float, length: float) -> Callable[[float], float]:
    """A block of higher rate."""
    return lambda t: peak if start <= t < start + length else base
