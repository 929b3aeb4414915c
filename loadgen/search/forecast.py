"""Forecast of a search's duration: its policy searches model servers with known limits, without sending requests."""

import math
from collections.abc import Callable

from loadgen.search.saturation import Probe, ProbeResult, SearchSettings, next_step

SecondsOf = Callable[[Probe], float]
"""How long a probe takes."""
_OCTAVES_DOWN, _OCTAVES_UP, _STEPS = 6, 4, 4


def expected_s(settings: SearchSettings, seconds_of: SecondsOf, limit: float) -> float:
    """Duration of a search [s] if this value is the limit and each probe is as clear as can be."""
    return _duration_s(settings, seconds_of, limit, clear=True)


def longest_s(settings: SearchSettings, seconds_of: SecondsOf) -> float:
    """Duration of the longest of all searches [s]: wherever the limit is, and if every probe is as unclear as can be.

    Limits far above the first value cost a probe each time that it is doubled, until the probes are used up.
    """
    steps = range(-_OCTAVES_DOWN * _STEPS, _OCTAVES_UP * _STEPS + 1)
    limits = [0.0, math.inf, *(settings.first * 2 ** (step / _STEPS) for step in steps)]
    return max(_duration_s(settings, seconds_of, limit, clear=clear) for limit in limits for clear in (True, False))


def _duration_s(settings: SearchSettings, seconds_of: SecondsOf, limit: float, *, clear: bool) -> float:
    """Duration of one search whose probes hold up to the limit."""
    results: list[ProbeResult] = []
    total_s = 0.0
    while isinstance(step := next_step(settings, results), Probe):
        total_s += seconds_of(step)
        holds = step.value <= limit
        if clear:
            good = step.requests if holds else 0
        else:
            good = math.ceil(settings.target * step.requests) - (not holds)
        results.append(ProbeResult(value=step.value, good=good, counted=step.requests))
    return total_s
