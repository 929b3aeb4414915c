"""How long a step may take before its engine counts as hanging, and a peer be silent before it counts as frozen.

Two tiers of heartbeat: the control plane polls the replica's shell, and the shell polls the engine, whose response is
its progress. Long steps are the difficulty: a chunk of 30 s on a slow CPU is work, a step of 30 s on an engine whose
steps take 30 ms is a hang. So the engine records how long its steps take, by size:

    limit = max(floor, factor * longest recent step of this size)

A size without observations is judged by the nearest smaller one, as if time grew with tokens (it grows more slowly, so
this errs on the long side), else by the nearest larger one. An engine that has not made any step gets `first_s`: it may
still be loading, compiling or touching its memory for the first time.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from serving.ids import ReplicaId

_FORGET = 0.98
"""Decay of the longest time per shorter step: one outlier is forgotten, to a tenth, within 114 steps."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Limits of a step's duration.

    Args:
        floor_s: a step may always take this long [s].
        factor: times the longest step of its size.
        first_s: for an engine that has made no step [s].
    """

    floor_s: float
    factor: float
    first_s: float


class StepWatch:
    """Records durations of steps by size, in powers of two of their tokens."""

    def __init__(self, limits: StepLimits) -> None:
        self._limits = limits
        self._longest: dict[int, float] = {}

    def observe(self, tokens: int, seconds: float) -> None:
        """Record a step's duration.

        Effects: updates the longest duration; a step counts at most as long as its limit, so that one freeze does not
            disable the rule; shorter steps slowly decay an earlier longer one.
        """
        size = tokens.bit_length()
        seconds = min(seconds, self.limit_s(tokens))
        self._longest[size] = max(seconds, self._longest.get(size, 0.0) * _FORGET)

    def limit_s(self, tokens: int) -> float:
        """Limit for a step with this number of tokens.

        Returns: [s]; at least the floor.
        """
        limits = self._limits
        if not self._longest:
            return max(limits.floor_s, limits.first_s)
        size = tokens.bit_length()
        smaller = [known for known in tuple(self._longest) if known <= size]
        nearest = max(smaller) if smaller else min(tuple(self._longest))
        expected = self._longest[nearest] * (1 << max(0, size - nearest))
        return max(limits.floor_s, limits.factor * expected)


@dataclass(frozen=True, slots=True)
class FreezeOutcome:
    """Course of a process that stops responding for a while.

    Args:
        stands_s: until it resumes, or is replaced [s].
        resumed_after_s: when gateways resume its requests elsewhere; None = it responds before [s].
        replaced: whether it is ended and another one takes its place.
    """

    stands_s: float
    resumed_after_s: float | None
    replaced: bool


def freeze_outcome(frozen_s: float, silence_s: float, replaced_after_s: float) -> FreezeOutcome:
    """Course of an instance that is frozen for so long.

    Args:
        silence_s, replaced_after_s: see `HealthConfig`.
    """
    stands_s = min(frozen_s, replaced_after_s)
    resumed = silent_too_long(stands_s, silence_s)
    return FreezeOutcome(stands_s, silence_s if resumed else None, silent_too_long(frozen_s, replaced_after_s))


def silent_too_long(silent_s: float, limit_s: float) -> bool:
    """Whether a peer that has not responded for so long counts as frozen."""
    return silent_s > limit_s


def hangs(age_s: float, limit_s: float) -> bool:
    """Whether an engine that has been at a step for `age_s` counts as hanging. A crashed one has an infinite age."""
    return age_s > limit_s


LEAST_ROUND_S = 0.01


class Silence:
    """Distinguishes silent peers from a pause of the watcher itself.

    A process that was frozen, or too busy to read, finds all its peers silent when it resumes, although their messages
    are only unread. It then restarts the limit for all peers.
    """

    def __init__(self, limit_s: float, now: float) -> None:
        """
        Args:
            limit_s: silence that is too long [s].
            now: time of the watcher.
        """
        self._limit_s = limit_s
        self._looked_at = now
        self._awake_since = now

    def look(self, now: float) -> None:
        """Note that the watcher runs; call before each round of `too_long`.

        Effects: restarts the limit of all peers if the last call was longer ago than a quarter of the limit.
        """
        if now - self._looked_at > self._limit_s / 4:
            self._awake_since = now
        self._looked_at = now

    def too_long(self, received_at: float, now: float) -> bool:
        """Whether a peer that was heard at `received_at` has been silent for too long, by a watcher that was awake."""
        return silent_too_long(now - max(received_at, self._awake_since), self._limit_s)

    def pause_s(self, received_at: Iterable[float], now: float) -> float:
        """Time until the next round is due [s]: when the first peer reaches the limit, but so soon that `look` does not
        take the wait for a pause of the watcher.
        """
        ends = [max(at, self._awake_since) + self._limit_s for at in received_at]
        return max(LEAST_ROUND_S, min([self._limit_s / 8, *(end - now for end in ends)]))


# Health of the KV transfer path between two instances: a saturated path is not a lost one.
#
# Pulls run concurrently with the engine loops, so heartbeats do not cover their path. For each pair of a puller and a
# source, two signals are watched: how transfers end, and how long it takes to read a dummy block on an idle path.
#
#   dummies arrive late      the puller or the path is saturated: back-pressure, handoffs avoid this pair; no failover
#   no block arrives         the path is broken: this pair is isolated, all others continue; dummies detect its recovery
#
# Three results in a row degrade the state and two in a row improve it, so that one slow read on a busy node has no
# effect. A real block that arrives ends a loss immediately.

WORSE_AFTER = 3
BETTER_AFTER = 2


class LinkState(Enum):
    """State of one pair of instances."""

    HEALTHY = "healthy"
    SATURATED = "saturated"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Thresholds by which a link is probed and judged.

    Args:
        period_s: idle time after which a pair is probed with a dummy [s]; 0 = never.
        late_s: a dummy that takes longer is late [s].
        lost_s: a dummy that takes longer counts as lost [s].
    """

    period_s: float
    late_s: float
    lost_s: float


class LinkHealth:
    """Health of one pair, measured by its puller."""

    def __init__(self, limits: LinkLimits, now: float) -> None:
        self.state = LinkState.HEALTHY
        self.since = now
        """When the state began."""
        self._limits = limits
        self._passed_at = now
        self._asked_at = now
        self._late = 0
        self._prompt = 0
        self._missing = 0

    def dummy_due(self, now: float) -> bool:
        """Whether to read a dummy now: the path has been idle and unprobed for a period. Then call `dummy_sent`."""
        period = self._limits.period_s
        return period > 0 and now - max(self._passed_at, self._asked_at) >= period

    def dummy_sent(self, now: float) -> None:
        """Note that a dummy was requested."""
        self._asked_at = now

    def dummy_arrived(self, seconds: float, now: float) -> LinkState:
        """Record a dummy's duration. Returns: the new state."""
        self._passed_at = now
        self._missing = 0
        if seconds <= self._limits.late_s:
            self._late, self._prompt = 0, self._prompt + 1
            if self._prompt >= BETTER_AFTER:
                self._become(LinkState.HEALTHY, now)
        else:
            self._late, self._prompt = self._late + 1, 0
            if self._late >= (BETTER_AFTER if self.state is LinkState.LOST else WORSE_AFTER):
                self._become(LinkState.SATURATED, now)
        return self.state

    def blocks_arrived(self, now: float) -> None:
        """Record a successful transfer of real blocks. Its duration is ignored, as it depends on the number of blocks.

        Effects: ends a loss; without dummies, only a transfer can end one.
        """
        self._passed_at = now
        self._missing = 0
        if self.state is LinkState.LOST:
            self._become(LinkState.HEALTHY, now)

    def nothing_arrived(self, now: float) -> LinkState:
        """Record a dummy or a transfer without a result. Returns: the new state."""
        self._missing, self._prompt, self._late = self._missing + 1, 0, 0
        if self._missing >= WORSE_AFTER:
            self._become(LinkState.LOST, now)
        return self.state

    def _become(self, state: LinkState, now: float) -> None:
        if state is not self.state:
            self.state, self.since = state, now


@dataclass(frozen=True, slots=True)
class PathFault:
    """An instance's report about paths: the sources that it cannot reach, and those that it reaches slowly."""

    lost: tuple[ReplicaId, ...] = ()
    late: tuple[ReplicaId, ...] = ()


def decodes_to_avoid(source: ReplicaId, path_faults: Mapping[ReplicaId, PathFault]) -> tuple[ReplicaId, ...]:
    """Decode instances that should not pull from `source`.

    Args:
        path_faults: of all decode instances that could.
    Returns: those that cannot reach it, and those that reach it slowly unless no instance would be left; sorted.
    """
    lost = {replica for replica, path_fault in path_faults.items() if source in path_fault.lost}
    slow = {replica for replica, path_fault in path_faults.items() if source in path_fault.late}
    return tuple(sorted(lost if lost | slow == set(path_faults) else lost | slow))


def prefills_to_avoid(
    sources: Collection[ReplicaId], path_faults: Mapping[ReplicaId, PathFault]
) -> tuple[ReplicaId, ...]:
    """Prefill instances whose blocks no decode instance could pull.

    Args:
        sources: all prefill instances.
        path_faults: of all decode instances; empty = unknown.
    """
    if not path_faults:
        return ()
    return tuple(sorted(s for s in sources if all(s in path_fault.lost for path_fault in path_faults.values())))
