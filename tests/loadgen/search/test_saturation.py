"""The search: on hand-made results step by step, and on simulated servers with a known knee."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.search.backlog import LEAST_GROWTH, look_times, running_grows, trend
from loadgen.search.saturation import (
    Probe,
    ProbeResult,
    SearchFound,
    SearchSettings,
    Verdict,
    bracket_of,
    next_step,
    requests_for,
    verdict,
)
from tests.loadgen.search.simulated_server import Queue, search

SETTINGS = SearchSettings(target=0.9, least_requests=60, least_duration_s=0.0)


def result(value: float, good: int, counted: int = 100, **more: object) -> ProbeResult:
    return ProbeResult(value=value, good=good, counted=counted, **more)  # type: ignore[arg-type]


def walk(settings: SearchSettings, knee: float) -> tuple[SearchFound, list[float]]:
    """A search with good results below `knee` and bad ones above. Returns: the probed values."""
    results: list[ProbeResult] = []
    while isinstance(step := next_step(settings, results), Probe):
        good = step.requests if step.value <= knee else 0
        results.append(result(step.value, good, step.requests))
    return step, [r.value for r in results]


def test_growth_bisection_and_limits() -> None:
    found, values = walk(SETTINGS, 5.0)
    assert values == [1.0, 2.0, 4.0, 8.0, 5.66, 4.76, 5.19, 4.97]
    assert (found.best, found.first_failed) == (4.97, 5.19)
    assert found.explanation == (
        "4.97 held (60 of 60 good, 95 % interval 94.0 to 100.0 %); "
        "5.19 did not hold (0 of 60 good, 95 % interval 0.0 to 6.0 %)"
    )

    found, values = walk(SETTINGS, 0.3)
    assert values[:4] == [1.0, 0.5, 0.25, 0.354]
    assert found.best is not None
    assert 0.28 < found.best <= 0.3

    found, values = walk(SearchSettings(resolution=0.0, most_probes=100, least_duration_s=0.0), 5.0)
    assert (found.best, found.first_failed) == (5.0, 5.01)
    assert len(values) == len(set(values)) < 20

    found, values = walk(SearchSettings(most_probes=5, least_duration_s=0.0), 5.0)
    assert len(values) == 5
    assert (found.best, found.first_failed) == (4.0, 5.66)
    assert found.explanation.endswith("after 5 probes, the most allowed")


def test_whole_numbers_and_limits() -> None:
    settings = SearchSettings(whole=True, first=4, slots_turned=1)
    found, values = walk(settings, 13)
    assert (found.best, found.first_failed) == (13.0, 14.0)
    assert all(value == round(value) for value in values)
    assert walk(settings, 1)[0].best == 1.0
    assert walk(settings, 0)[0].best is None

    found, values = walk(SearchSettings(largest=10.0, least_duration_s=0.0), 1e9)
    assert values == [1.0, 2.0, 4.0, 8.0, 10.0]
    assert (found.best, found.first_failed) == (10.0, None)
    assert "nothing failed, and 10 is the largest allowed" in found.explanation
    found, values = walk(SearchSettings(smallest=0.3, least_duration_s=0.0), 0.1)
    assert values == [1.0, 0.5, 0.3]
    assert (found.best, found.first_failed) == (None, 0.3)
    assert "no value held the SLOs for 0.9" in found.explanation


@pytest.mark.parametrize(
    ("capacity", "most", "bracket_s"),
    [(3.0, 1.6, 36.0), (40.0, 1.4, 16.0), (500.0, 1.4, 16.0)],  # a slow queue shows late
)
@pytest.mark.parametrize("guess", [0.25, 1.0, 3.0])
def test_a_search_within_a_time_brackets_early_and_ends_in_time(
    capacity: float, most: float, bracket_s: float, guess: float
) -> None:
    queue = Queue(service_s=1 / capacity)
    settings = SearchSettings(first=guess * 0.8 * capacity, growth=1.5, within_s=120.0)
    found, results = search(settings, queue, limit_s=10 / capacity)
    spent, bracketed = np.cumsum([one.took_s for one in results]), 0
    while None in bracket_of(settings, results[: bracketed + 1]):
        bracketed += 1
    assert spent[-1] <= 120 * 1.1, "a queue that is too full takes longer than its load"
    assert spent[bracketed] <= bracket_s * (1 if guess == 1 else 2)
    assert found.best is not None
    assert found.first_failed is not None
    assert 0.6 * capacity < found.best < found.first_failed < most * capacity
    assert found.first_failed / found.best < 1.3


def test_a_best_value_of_a_short_probe_is_confirmed() -> None:
    settings = SearchSettings(first=10.0, growth=1.5, within_s=120.0)
    probes = [result(10.0, 50, 50, took_s=5.0), result(10.4, 0, took_s=5.0)]
    assert next_step(settings, probes) == Probe(10.0, 120, repeat=True)
    held = [*probes, result(10.0, 120, 120, took_s=12.0)]
    assert isinstance(next_step(settings, held), SearchFound)
    failed = [*probes, result(10.0, 20, 120, took_s=12.0, overloaded="requests piled up")]
    assert next_step(settings, failed) == Probe(6.67, 34)
    slow = [result(10.0, 50, 50, took_s=5.0), result(10.4, 0, took_s=110.0)]
    assert isinstance(next_step(settings, slow), SearchFound), "there is no time left"


def test_the_end_of_the_time_is_said() -> None:
    settings = SearchSettings(first=10.0, within_s=30.0)
    probes = [result(10.0, 100, took_s=10.0), result(20.0, 0, took_s=12.0), result(14.1, 100, took_s=7.0)]
    assert isinstance(next_step(settings, probes[:2]), Probe)
    found = next_step(settings, probes)
    assert isinstance(found, SearchFound)
    assert (found.best, found.first_failed) == (14.1, 20.0)
    assert found.explanation.endswith("after 29 s, the time allowed")


def test_verdicts_and_repeats() -> None:
    assert verdict(SETTINGS, [result(1.0, 60, 60)]) is Verdict.HOLDS
    assert verdict(SETTINGS, [result(1.0, 40, 60)]) is Verdict.FAILS
    assert verdict(SETTINGS, [result(1.0, 55, 60)]) is Verdict.OPEN
    assert verdict(SETTINGS, [result(1.0, 0, 0)]) is Verdict.OPEN
    assert verdict(SETTINGS, [result(1.0, 0, 0)] * 3) is Verdict.FAILS
    every = SearchSettings(target=1.0)
    assert verdict(every, [result(1.0, 60, 60)]) is Verdict.HOLDS
    assert verdict(every, [result(1.0, 59, 60)]) is Verdict.FAILS
    results = [result(1.0, 92)]
    assert next_step(SETTINGS, results) == Probe(1.0, 100, repeat=True)
    results.append(result(1.0, 91))
    assert next_step(SETTINGS, results) == Probe(1.0, 200, repeat=True)
    results.append(result(1.0, 195, 200))  # 378 of 400: sure now
    assert next_step(SETTINGS, results) == Probe(2.0, 60)
    above = [result(1.0, 91), result(1.0, 91), result(1.0, 182, 200)]
    assert verdict(SETTINGS, above) is Verdict.HOLDS
    step = next_step(SearchSettings(most_probes=3), above)
    assert isinstance(step, SearchFound)
    assert "1 held, by a hair, not for certain" in step.explanation
    assert verdict(SETTINGS, [result(1.0, 89)] * 3) is Verdict.FAILS
    assert next_step(SETTINGS, [result(1.0, 0, 0)]) == Probe(1.0, 60, repeat=True)


def test_what_fails_whatever_the_requests_say() -> None:
    found = next_step(SearchSettings(resolution=1.0), [result(1.0, 100), result(2.0, 100, overloaded="it piled up")])
    assert found == SearchFound(
        best=1.0,
        first_failed=2.0,
        explanation="1 held (100 of 100 good, 95 % interval 96.3 to 100.0 %); 2 did not hold: it piled up",
    )
    found = next_step(
        SearchSettings(resolution=1.0), [result(1.0, 100), result(2.0, 100, held_back="the machine was busy")]
    )
    assert isinstance(found, SearchFound)
    assert (found.best, found.first_failed) == (1.0, 2.0)
    assert "2 was not sent as it should be: the machine was busy" in found.explanation
    results = [result(1.0, 100), result(4.0, 100), result(2.0, 0)]
    step = next_step(SETTINGS, results)
    assert isinstance(step, Probe)
    assert 1.0 < step.value < 2.0


def test_what_a_search_asks_for_and_tells_again() -> None:
    assert requests_for(SearchSettings(least_requests=60, least_duration_s=15.0), 10.0) == 150
    assert requests_for(SearchSettings(least_requests=60), 0.5) == 60
    assert requests_for(SearchSettings(target=0.99), 0.5) == 381
    assert requests_for(SearchSettings(whole=True, slots_turned=4), 64) == 256

    found, results = search(SETTINGS, Queue(0.1, seed=3), 0.3)
    for number in range(len(results)):
        step = next_step(SETTINGS, results[:number])
        assert isinstance(step, Probe)
        assert step.value == results[number].value
    assert next_step(SETTINGS, results) == found


@given(st.floats(0.02, 500), st.floats(0.05, 50), st.floats(1.2, 4), st.floats(0.02, 0.5), st.booleans())
def test_every_search_ends_with_the_knee_in_a_narrow_bracket(
    knee: float, first: float, growth: float, resolution: float, whole: bool
) -> None:
    settings = SearchSettings(
        first=first, growth=growth, resolution=resolution, whole=whole, most_probes=200, largest=1000.0
    )
    found, values = walk(settings, knee)
    assert len(values) == len(set(values)) < 100
    if found.best is not None:
        assert found.best <= knee
    if found.first_failed is not None:
        assert found.first_failed > knee
    if found.best is not None and found.first_failed is not None:
        gap = found.first_failed - found.best
        assert gap <= found.best * resolution + 1e-9 or (whole and gap <= 1)


@pytest.mark.parametrize(("service_s", "servers"), [(0.1, 1), (0.4, 8), (0.02, 1)])
def test_the_knee_of_a_queue(service_s: float, servers: int) -> None:
    """Requests may wait three service times: an M/D/1 queue holds that for 90 % up to about 0.8 of its capacity."""
    limit_s = 3 * service_s
    settings = SearchSettings(target=0.9, least_duration_s=30.0)
    queue = Queue(service_s, servers, seed=1)
    found, results = search(settings, queue, limit_s)
    assert found.best is not None
    # An independent and long check of the result.
    far_below, far_above = 0.75 * found.best, 1.3 * found.best
    for rate, holds in ((far_below, True), (far_above, False)):
        waits = Queue(service_s, servers, seed=2).run(rate, 6_000)[1]
        assert bool((waits <= limit_s).mean() >= 0.9) is holds
    assert 0.6 * queue.capacity_per_s < found.best < 1.05 * queue.capacity_per_s
    assert len(results) <= settings.most_probes


def test_trends() -> None:
    times = np.linspace(10, 20, 101).tolist()
    line = trend(times, [3 + 2 * (time - 10) for time in times])
    assert line is not None
    assert line.slope_per_s == pytest.approx(2)
    assert line.lower_per_s == pytest.approx(2)
    assert line.growth == pytest.approx(20)
    assert line.start == pytest.approx(3)
    assert line.window_s == pytest.approx(10)
    assert line.is_significant
    times = [float(time) for time in range(60)]
    for values in ([5.0] * 60, [60.0 - time for time in times]):
        line = trend(times, values)
        assert line is not None
        assert not line.is_significant
        assert running_grows(times, values, 1.0) == ""
    assert trend([], []) is None
    assert trend([1.0] * 50, list(range(50))) is None
    assert trend(list(range(20)), list(range(20))) is None
    gap = [0.0] * 30 + [100.0]
    assert trend(gap, gap) is None
    assert running_grows([], [], 1.0) == ""


def test_what_is_called_a_backlog() -> None:
    times = [float(time) for time in range(60)]
    barely = [LEAST_GROWTH * 0.9 * time / 59 for time in times]
    assert running_grows(times, barely, 0.01) == ""
    assert running_grows(times, [2 * value for value in barely], 0.01) != ""
    assert running_grows(times, [2 * value for value in barely], 100.0) == ""  # luck of 6000 arrivals
    grid = np.linspace(0, 60, 121)
    text = running_grows(grid.tolist(), (10 + 2 * grid).tolist(), 20.0)
    assert text == "requests piled up by 2 a second at 20 a second offered (from 10 to 130 in 60 s)"
    assert look_times(60.0) == (15.0, 30.0, 60.0)


def alarms(load: float, requests: int, *, repeats: int = 40) -> float:
    """Share of runs of a queue at `load` times its capacity in which the test finds a backlog."""
    found = 0
    for seed in range(repeats):
        queue = Queue(0.1, seed=seed)
        rate = load * queue.capacity_per_s
        arrivals, waits = queue.run(rate, requests)
        found += bool(queue.grows(arrivals, waits, rate))
    return found / repeats


@pytest.mark.parametrize(("load", "requests"), [(0.5, 150), (0.9, 600), (0.95, 150)])
def test_a_server_in_balance_is_seldom_accused(load: float, requests: int) -> None:
    assert alarms(load, requests) <= 0.1


@pytest.mark.parametrize(("load", "requests", "least"), [(1.25, 200, 0.75), (1.5, 200, 0.95), (1.1, 1000, 0.75)])
def test_an_overloaded_server_is_found(load: float, requests: int, least: float) -> None:
    assert alarms(load, requests) >= least
