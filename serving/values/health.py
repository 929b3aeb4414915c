"""How long a step may take before its engine counts as hanging, and a peer be silent before it counts as frozen.

Two tiers of heartbeat: the control plane polls the replica's shell, and the shell polls the engine, whose response is
its progress. Long steps are the difficulty: a chunk of 30 s on a slow CPU is work, a step of 30 s on an engine whose
steps take 30 ms is a hang. So the engine records how long its steps take, by size:

    limit = max(floor, factor * longest recent step of this size)

A size without observations is judged by the nearest smaller one, as if time grew with tokens (it grows more slowly, so
this errs on the long side), else by the nearest larger one. An engine that has not made any step gets `first_s`: it may
still be loading, compiling or touching its memory for the first time.
"""

from dataclasses import dataclass

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
class FreezeCourse:
    """Course of a process that stops responding for a while.

    Args:
        stands_s: until it resumes, or is replaced [s].
        resumed_after_s: when gateways resume its requests elsewhere; None = it responds before [s].
        replaced: whether it is ended and another one takes its place.
    """

    stands_s: float
    resumed_after_s: float | None
    replaced: bool


def freeze_course(frozen_s: float, silence_s: float, replaced_after_s: float) -> FreezeCourse:
    """Course of an instance that is frozen for so long.

    Args:
        silence_s, replaced_after_s: see `HealthConfig`.
    """
    stands_s = min(frozen_s, replaced_after_s)
    resumed = silent_too_long(stands_s, silence_s)
    return FreezeCourse(stands_s, silence_s if resumed else None, silent_too_long(frozen_s, replaced_after_s))


def silent_too_long(silent_s: float, limit_s: float) -> bool:
    """Whether a peer that has not responded for so long counts as frozen."""
    return silent_s > limit_s


def hangs(age_s: float, limit_s: float) -> bool:
    """Whether an engine that has been at a step for `age_s` counts as hanging. A crashed one has an infinite age."""
    return age_s > limit_s


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

    def too_long(self, heard_at: float, now: float) -> bool:
        """Whether a peer that was heard at `heard_at` has been silent for too long, by a watcher that was awake."""
        return silent_too_long(now - max(heard_at, self._awake_since), self._limit_s)
