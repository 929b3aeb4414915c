"""The largest rate (or concurrency) at which the server holds its SLOs: what to probe next, and when to end.

    attainment
      1.0 |*  *   *    *                 grow geometrically until a probe fails ...
          |                 *
   target |- - - - - - - - - - - - -     ... then halve the bracket (best held, first failed), on a logarithmic scale
          |                   ? *        for rates, until it is as narrow as `resolution`
          +--1--2---4----8--11-16-->

A probe is only conclusive when its 95 % Wilson interval is on one side of the target; else it is run again, for as
many requests as it has so far, and the counts are taken together. A growing backlog (see `backlog`) is a failure
regardless of the requests so far: in a short probe the queue has not had the time to show. Pure: the next probe follows
from the list of results alone, so a search can be reproduced from its files.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from loadgen.metrics.distribution import Z95, wilson


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """Target and effort of a search.

    Attributes:
        target: share of the counted requests that must keep every SLO, in (0, 1].
        first: value of the first probe. smallest, largest: never probed beyond; largest None = no limit.
        whole: values are integers (concurrency).
        least_requests: per probe; raised to what the target needs to be shown at all.
        least_duration_s: a rate is probed for at least so long, or queues have no time to form; without effect on a
            concurrency, where the requests are at least `slots_turned` times the slots.
        growth: factor between probes until the first one fails (or, downwards, holds).
        resolution: the search ends when first failed / best held is below 1 + this.
        most_probes: probes in all. most_repeats: probes of the same value before the nearer side is taken.
        within_s: duration of the search [s]. A finite one is divided: a probe takes a `_COARSE` of it until there is a
            bracket, then a `_FINE`, in place of the least requests and duration; each value is probed once,
            the best again if that was a coarse probe; the search ends when another probe would not fit.
    """

    target: float = 0.9
    first: float = 1.0
    smallest: float = 0.01
    largest: float | None = None
    whole: bool = False
    least_requests: int = 60
    least_duration_s: float = 15.0
    slots_turned: int = 4
    growth: float = 2.0
    resolution: float = 0.05
    most_probes: int = 16
    most_repeats: int = 3
    within_s: float = math.inf


_COARSE, _FINE = 1 / 24, 1 / 10
_LEAST_IN_TIME = 8
"""Requests of a probe of a search with a limited duration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """Result of one probe.

    Attributes:
        good, counted: as `result.SloResult` has them.
        overloaded: why it was stopped early, or which quantity grew without bound during it; empty if it was in
        balance. held_back: why so much could not be sent at all; the value is then no evidence about the server. Else
        empty. took_s: duration of the probe [s].
    """

    value: float
    good: int
    counted: int
    overloaded: str = ""
    held_back: str = ""
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Probe:
    """Run this next. `repeat`: counts are added to those of the earlier probes of the same value."""

    value: float
    requests: int
    repeat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFound:
    """The end of a search.

    Attributes:
        best: largest value that held; None if none did. first_failed: smallest that did not; None if none failed.
        explanation: one line.
    """

    best: float | None
    first_failed: float | None
    explanation: str


class Verdict(Enum):
    """Verdict on one value."""

    HOLDS = "holds"
    FAILS = "fails"
    OPEN = "open"


def next_step(settings: SearchSettings, results: Sequence[ProbeResult]) -> Probe | SearchFound:
    """The next probe, or the end.

    Args:
        results: of all probes so far, in order.
    Returns: the same for the same arguments.
    """
    by_value = _by_value(results)
    verdicts = {value: verdict(settings, group) for value, group in by_value.items()}
    bracket = _bracket(verdicts)
    if len(results) >= settings.most_probes:
        decided = {value: _nearer(settings, group) for value, group in by_value.items()}
        return _found(settings, by_value, _bracket(decided), f"after {len(results)} probes, the most allowed")
    for value, state in verdicts.items():
        if state is Verdict.OPEN:
            return Probe(value, _counted(by_value[value]) or requests_for(settings, value), repeat=True)
    following = _following(settings, bracket)
    if following is not None:
        probe = Probe(following, requests_for(settings, following, coarse=None in bracket))
    elif (confirming := _confirming(settings, by_value, bracket[0])) is not None:
        probe = confirming
    else:
        return _found(settings, by_value, bracket, "")
    if results and _spent_s(results) + _likely_s(settings, probe, results) > settings.within_s:
        return _found(settings, by_value, bracket, f"after {_spent_s(results):.0f} s, the time allowed")
    return probe


def _confirming(settings: SearchSettings, by_value: dict[float, list[ProbeResult]], best: float | None) -> Probe | None:
    """A fine probe of the best value if only a coarse one has held: a queue that grows slowly shows late."""
    if best is None or math.isinf(settings.within_s):
        return None
    requests = requests_for(settings, best)
    return Probe(best, requests, repeat=True) if _counted(by_value[best]) < requests / 2 else None


def _spent_s(results: Sequence[ProbeResult]) -> float:
    return sum(result.took_s for result in results)


def _likely_s(settings: SearchSettings, probe: Probe, results: Sequence[ProbeResult]) -> float:
    """Duration of a probe [s], by that of a request in the probe with the nearest value."""
    nearest = min(results, key=lambda result: abs(math.log(result.value / probe.value)))
    each_s = nearest.took_s / max(nearest.counted, 1)
    return each_s * probe.requests * (1.0 if settings.whole else nearest.value / probe.value)


def verdict(settings: SearchSettings, group: Sequence[ProbeResult]) -> Verdict:
    """Judge one value by all of its probes."""
    if any(result.overloaded or result.held_back for result in group):
        return Verdict.FAILS
    good, counted = sum(result.good for result in group), _counted(group)
    low, high = wilson(good, counted)
    if counted and settings.target < 1.0:
        if low >= settings.target - 1e-12:
            return Verdict.HOLDS
        if high < settings.target:
            return Verdict.FAILS
    most_repeats = settings.most_repeats if math.isinf(settings.within_s) else 1
    if counted and (settings.target >= 1.0 or len(group) >= most_repeats):
        return _nearer(settings, group)
    if len(group) >= most_repeats:
        return Verdict.FAILS  # not one request that counts, again and again
    return Verdict.OPEN


def requests_for(settings: SearchSettings, value: float, *, coarse: bool = False) -> int:
    """Requests of a first probe of a value.

    Args:
        coarse: there is no bracket yet; of significance only with `within_s`.
    """
    if math.isfinite(settings.within_s):
        seconds = settings.within_s * (_COARSE if coarse else _FINE)
        return max(_LEAST_IN_TIME, math.ceil((settings.slots_turned if settings.whole else seconds) * value))
    by_time = settings.slots_turned * value if settings.whole else settings.least_duration_s * value
    return max(settings.least_requests, least_requests(settings.target), math.ceil(by_time))


def _by_value(results: Sequence[ProbeResult]) -> dict[float, list[ProbeResult]]:
    """Results of each value, in the order of its first probe."""
    groups: dict[float, list[ProbeResult]] = {}
    for result in results:
        groups.setdefault(result.value, []).append(result)
    return groups


def _counted(group: Sequence[ProbeResult]) -> int:
    return sum(result.counted for result in group)


def _nearer(settings: SearchSettings, group: Sequence[ProbeResult]) -> Verdict:
    """The verdict by the share itself, where certainty is not to be had."""
    if any(result.overloaded or result.held_back for result in group):
        return Verdict.FAILS
    good, counted = sum(result.good for result in group), _counted(group)
    return Verdict.HOLDS if counted and good >= settings.target * counted else Verdict.FAILS


def bracket_of(settings: SearchSettings, results: Sequence[ProbeResult]) -> tuple[float | None, float | None]:
    """Best held value below the first failed one, and the first failed one, so far; None where there is none."""
    return _bracket({value: verdict(settings, group) for value, group in _by_value(results).items()})


def _bracket(verdicts: dict[float, Verdict]) -> tuple[float | None, float | None]:
    """Best held below the first failed, and the first failed.

    A value that held above one that failed is luck: the smaller one counts.
    """
    failed = min((value for value, state in verdicts.items() if state is Verdict.FAILS), default=None)
    held = [value for value, state in verdicts.items() if state is Verdict.HOLDS and (failed is None or value < failed)]
    return max(held, default=None), failed


def _following(settings: SearchSettings, bracket: tuple[float | None, float | None]) -> float | None:
    """The next new value; None if the search is complete."""
    best, failed = bracket
    if best is None and failed is None:
        return _within(settings, settings.first)
    if failed is None:
        assert best is not None, "one of the two is known"
        following = _within(settings, best * settings.growth)
        return following if following > best else None
    if best is None:
        following = _within(settings, failed / settings.growth)
        return following if following < failed else None
    if failed <= best * (1 + settings.resolution) or (settings.whole and failed - best <= 1):
        return None
    middle = math.sqrt(best * failed)
    if settings.whole:
        return float(min(max(round(middle), best + 1), failed - 1))
    middle = _three_digits(middle)
    return middle if best < middle < failed else None


def _within(settings: SearchSettings, value: float) -> float:
    value = float(round(value)) if settings.whole else _three_digits(value)
    smallest = max(1.0, math.ceil(settings.smallest)) if settings.whole else settings.smallest
    return min(max(value, smallest), settings.largest if settings.largest is not None else math.inf)


def _three_digits(value: float) -> float:
    """Values that a person can read; far finer than any sensible resolution."""
    return float(f"{value:.3g}")


def _found(
    settings: SearchSettings,
    by_value: dict[float, list[ProbeResult]],
    bracket: tuple[float | None, float | None],
    why: str,
) -> SearchFound:
    best, failed = bracket
    words = [_best_words(settings, by_value, best), _failed_words(settings, by_value, failed)]
    return SearchFound(best=best, first_failed=failed, explanation="; ".join(part for part in (*words, why) if part))


def _best_words(settings: SearchSettings, by_value: dict[float, list[ProbeResult]], best: float | None) -> str:
    if best is None:
        return f"no value held the SLOs for {settings.target:.4g} of the requests"
    unsure = "" if wilson(*_shares(by_value[best]))[0] >= settings.target - 1e-12 else ", by a hair, not for certain"
    return f"{best:g} held{unsure} ({_share_words(by_value[best])})"


def _failed_words(settings: SearchSettings, by_value: dict[float, list[ProbeResult]], failed: float | None) -> str:
    if failed is None:
        limit = "" if settings.largest is None else f", and {settings.largest:g} is the largest allowed"
        return f"nothing failed{limit}"
    group = by_value[failed]
    for result in group:
        if result.held_back:
            return f"{failed:g} was not sent as it should be: {result.held_back}"
        if result.overloaded:
            return f"{failed:g} did not hold: {result.overloaded}"
    return f"{failed:g} did not hold ({_share_words(group)})"


def _shares(group: Sequence[ProbeResult]) -> tuple[int, int]:
    return sum(result.good for result in group), _counted(group)


def _share_words(group: Sequence[ProbeResult]) -> str:
    """`57 of 60 good, 95 % sure of 86 % to 98 %`."""
    good, counted = _shares(group)
    low, high = wilson(good, counted)
    return f"{good} of {counted} good, 95 % interval {100 * low:.1f} to {100 * high:.1f} %"


# Number of requests needed for a reliable share.


def least_requests(target: float, z: float = Z95) -> int:
    """Fewest requests that, all being good, show that the target holds: where Wilson's lower bound reaches it.

    The bound of n good ones out of n is n / (n + z²). A target of 1 can never be shown; 1 is returned for it.
    """
    if target >= 1.0:
        return 1
    return max(1, math.ceil(z * z * target / (1 - target) - 1e-9))


# Forecast of a search's duration: its policy searches model servers with known limits, without sending requests.

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
        results.append(ProbeResult(value=step.value, good=good, counted=step.requests, took_s=seconds_of(step)))
    return total_s
