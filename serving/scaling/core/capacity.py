"""Measured capacity of instances: prompt tokens per second, concurrent sequences within the SLO, start time.

Computed from differences of the counters that instances announce, between two polls.
"""

import math
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from serving.scaling.core.cluster_snapshot import ClusterSnapshot, ReplicaPhase, SeenMember

# Linear dependence of the time of work on its size, learned online.
#
# time                                 level: mean of the last minute of work; it changes with the traffic's contexts
#   |                  ...·'''        slope: from joint deviations within minutes, averaged over hours; slower
#   |        ...·''' <- now                   changes are due to the traffic, and do not count for the slope
#   +------------------------- size

LEVEL_S = 60.0
"""Time constant of the current point on the line [s of an instance's work, as all constants in this file]."""
TRAFFIC_S = 600.0
"""Time constant of the traffic's own changes: only deviations from its mean count for the slope."""
SLOPE_S = 7200.0
"""Time constant of the slope."""


@dataclass(slots=True)
class _Mean:
    """Exponential means of size and time."""

    constant_s: float
    size: float = 0.0
    time_s: float = 0.0
    _weight: float = 0.0

    def add(self, size: float, time_s: float, seconds: float) -> None:
        self._weight = self._weight * math.exp(-seconds / self.constant_s) + seconds
        gain = seconds / self._weight
        self.size += gain * (size - self.size)
        self.time_s += gain * (time_s - self.time_s)


@dataclass(slots=True)
class LearnedLine:
    """One line, learned by exponentially weighted regression.

    Args:
        same: mean square of the deviations of the size below which no slope is inferred.
    """

    same: float
    _level: _Mean = field(default_factory=lambda: _Mean(LEVEL_S))
    _traffic: _Mean = field(default_factory=lambda: _Mean(TRAFFIC_S))
    _worked_s: float = 0.0
    """Decays like `_moves`."""
    _moves: float = 0.0
    """Sum of squared deviations of the size, weighted by seconds of work."""
    _answers: float = 0.0
    """Sum of products of the deviations of size and time, with the same weights."""

    def see(self, size: float, time_s: float, seconds: float) -> None:
        """Add `seconds` of work in which `size` took `time_s`."""
        self._level.add(size, time_s, seconds)
        self._traffic.add(size, time_s, seconds)
        keep = math.exp(-seconds / SLOPE_S)
        move, answer = size - self._traffic.size, time_s - self._traffic.time_s
        self._worked_s = self._worked_s * keep + seconds
        self._moves = self._moves * keep + move * move * seconds
        self._answers = self._answers * keep + move * answer * seconds

    @property
    def known(self) -> bool:
        """Whether any work was added."""
        return self._worked_s > 0

    @property
    def worked_s(self) -> float:
        """Work added in the last hours [s]: a sum with the time constant `SLOPE_S`."""
        return self._worked_s

    @property
    def size(self) -> float:
        """Recent mean size."""
        return self._level.size

    @property
    def time_s(self) -> float:
        """Recent mean time [s]."""
        return self._level.time_s

    @property
    def slope_s(self) -> float:
        """Additional time per unit of size [s]; 0 = not known."""
        if self._moves <= self.same * self._worked_s:
            return 0.0
        return max(0.0, self._answers / self._moves)


# Concurrent sequences of an instance within the TPOT SLO, learned from its work.
#
# The time per token is a linear function of the concurrent sequences (`LearnedLine`). The closer an instance is to
# the SLO's limit, where precision matters, the smaller is the influence of the slope.

TPOT_SPREAD = 1.06
"""TPOT of the slowest of a hundred requests / mean: fewer of its draft tokens are accepted, and its batch is fuller.
Measured in virtual time with the ServeGen R1 day: 1.05 to 1.08 while the load is steady."""
CROWD_SPREAD = 1.04
"""The same for an overload no longer than the start of an instance: the rest of a sequence compensates for it."""
SAME_BATCH = 0.25
"""Mean square of the deviations below which no slope is inferred [squared sequences]."""
SEEN_S = 60.0
"""Work of all instances together before a limit is inferred: the first batches of a pool are small and fill up between
two polls, so that their time per token looks too long and its slope too steep."""
FEWER = 0.5
"""Lower limit of the estimate, as part of the current batch, however slow tokens are: the line is not reliable further
away, and is learned again at half the batch."""


@dataclass(slots=True)
class DecodeAbility:
    """Decode capacity of the instances of one pool, which are equal."""

    _line: LearnedLine = field(default_factory=lambda: LearnedLine(SAME_BATCH))

    def see(self, sequences: float, token_s: float, seconds: float) -> None:
        """An instance decoded this many concurrent sequences with `token_s` per token each, for `seconds` of work."""
        self._line.see(sequences, token_s, seconds)

    def most(self, tpot_slo_s: float, configured: float, spread: float = TPOT_SPREAD) -> float:
        """Concurrent sequences with which 99 of 100 requests of an instance meet a TPOT SLO.

        Args:
            tpot_slo_s: TPOT SLO [s].
            configured: limit of an instance; returned until `SEEN_S` of work were measured.
            spread: TPOT of the slowest of a hundred requests / mean.
        Returns: between 1 and `configured`.
        """
        if self._line.worked_s < SEEN_S:
            return configured
        batch, token_s = self._line.size, self._line.time_s
        limit_s, slope = tpot_slo_s / spread, self._line.slope_s
        if slope > 0:
            best = batch + (limit_s - token_s) / slope
        else:  # one batch size so far: within the SLO its limit is unknown
            best = configured if token_s <= limit_s else batch * limit_s / token_s
        return min(configured, max(1.0, FEWER * batch, best))


# Measured capacity of instances: prompt tokens per second, concurrent sequences within the SLO, start time.

START_S = 30.0
"""Assumed before any start was observed. Source: engine processes of xDeepServe's parent system, 26-32 s."""
STARTS_KEPT = 8
PLACED_S = 3.0
"""A replica without a node for longer than this waits for hardware, which does not count as start time."""
MIN_BUSY_S = 0.02
"""Shorter intervals of work are ignored: clocks and announcements are not exact enough."""
SAME_TOKENS = 16.0**2
"""Mean square of the deviations of a step's tokens below which no slope is inferred."""
FURTHER = 4.0
"""The line is extrapolated to this multiple of the recent step size, or to the largest step size observed."""
PROMPT_SHARE = 8
"""Work counts as prefill if it processed more than this many prompt tokens per generated token."""


@dataclass(slots=True)
class PromptRate:
    """Prompt tokens per second of busy time in full steps, which is an instance's limit.

    A step has a large fixed cost, so the rate of small steps under low load does not show the capacity. The time of a
    step is a linear function of its tokens (`LearnedLine`).
    """

    _line: LearnedLine = field(default_factory=lambda: LearnedLine(SAME_TOKENS))
    _largest: float = 0.0
    """Largest mean number of tokens per step of any interval."""

    def observe(self, tokens: float, busy_s: float, steps: int) -> None:
        """Add an interval of prefill work of at least one step."""
        self._line.see(tokens / steps, busy_s / steps, busy_s)
        self._largest = max(self._largest, tokens / steps)

    def tokens_per_s(self, full: float) -> float:
        """The rate with `full` tokens in a step; 0 = not known yet."""
        if not self._line.known:
            return 0.0
        size, step_s = self._line.size, self._line.time_s
        to = max(size, min(full, max(self._largest, FURTHER * size)))
        slope_s = min(self._line.slope_s or step_s / size, step_s / size)  # the fixed cost is not negative
        return to / (step_s + slope_s * (to - size))


@dataclass(frozen=True, slots=True)
class _Before:
    """An instance's counters at the previous poll."""

    incarnation: str
    prompt_tokens: int
    generated_tokens: int
    busy_s: float
    running: int
    steps: int


class Abilities:
    """All measurements by pool.

    Work is measured in the instances' own time, which is also the time of `[slo]`; starts are measured in real time.
    """

    def __init__(self) -> None:
        self._prompts: defaultdict[str, PromptRate] = defaultdict(PromptRate)
        self._decodes: defaultdict[str, DecodeAbility] = defaultdict(DecodeAbility)
        self._before: dict[str, _Before] = {}
        self._began: dict[tuple[str, str], float] = {}
        self._starts: deque[float] = deque(maxlen=STARTS_KEPT)
        self._founded = False
        self._at = 0.0

    def observe(self, snapshot: ClusterSnapshot) -> None:
        """Update the measurements from one snapshot."""
        self._at = snapshot.at
        for name, member in snapshot.members.items():
            self._observe_work(name, member)
        self._before = {name: one for name, one in self._before.items() if name in snapshot.members}
        self._observe_starts(snapshot)

    def tokens_per_s(self, pool: str, full: int) -> float:
        """Prompt tokens that one instance of the pool computes per second; 0 = not known yet.

        Args:
            full: tokens of its largest possible step.
        """
        return self._prompts[pool].tokens_per_s(full)

    def most_sequences(self, pool: str, tpot_s: float, configured: int, spread: float = TPOT_SPREAD) -> float:
        """Concurrent sequences of one instance of the pool within the TPOT SLO, see `DecodeAbility.most`."""
        return self._decodes[pool].most(tpot_s, configured, spread)

    @property
    def start_s(self) -> float:
        """Median time from a request for an instance until it serves [s of real time]; before the first start has
        finished, at least the age of the longest one in progress.
        """
        if self._starts:
            return median(self._starts)
        going_on = [self._at - began for began in self._began.values()] if self._founded else []
        return max([START_S, *going_on])

    def _observe_work(self, name: str, member: SeenMember) -> None:
        facts = member.facts
        now = _counters(member.incarnation, facts)
        before = self._before.get(name)
        if before is None or before.incarnation != now.incarnation:
            self._before[name] = now
            return
        busy = now.busy_s - before.busy_s
        steps = now.steps - before.steps
        if busy < MIN_BUSY_S or steps < 1:
            return
        self._before[name] = now
        prompts, generated = now.prompt_tokens - before.prompt_tokens, now.generated_tokens - before.generated_tokens
        if prompts > PROMPT_SHARE * generated:
            self._prompts[member.pool].observe(prompts, busy, now.steps - before.steps)
        elif generated > 0 and before.running and now.running:
            sequences = (before.running + now.running) / 2
            share = float(facts.get("share_of_capacity") or 1.0)
            token_s = busy * sequences / generated
            self._decodes[member.pool].see(sequences / share, token_s, busy)

    def _observe_starts(self, snapshot: ClusterSnapshot) -> None:
        seen = set()
        for pool, deployment in snapshot.deployments.items():
            for replica in deployment.replicas:
                key = pool, replica.name
                seen.add(key)
                if replica.phase is ReplicaPhase.STARTING:
                    began = self._began.setdefault(key, replica.started_at or snapshot.at)
                    if replica.node is None and snapshot.at - began > PLACED_S:  # it waits for hardware
                        self._began[key] = snapshot.at
                elif replica.phase is ReplicaPhase.SERVING and key in self._began:
                    self._starts.append(max(0.0, snapshot.at - self._began.pop(key)))
        if not self._founded and snapshot.deployments:  # starts of the whole system differ from later ones
            self._founded = not any(d.starting for d in snapshot.deployments.values())
            self._starts.clear()
        self._began = {key: at for key, at in self._began.items() if key in seen}


def _counters(incarnation: str, facts: Mapping[str, Any]) -> _Before:
    return _Before(
        incarnation,
        int(facts.get("prompt_tokens_total", 0)),
        int(facts.get("generated_tokens_total", 0)),
        float(facts.get("busy_s", 0.0)),
        int(facts.get("running", 0)),
        int(facts.get("steps_total", 0)),
    )
