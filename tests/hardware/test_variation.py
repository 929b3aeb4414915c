"""Noise: its distribution, and that a draw depends only on its stream and its number."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.errors import SpecError
from hardware.variation import StepVariation

STEPS = range(50_000)


def test_jitter_is_log_normal_keeps_the_mean_and_is_capped() -> None:
    jitter = StepVariation(0.2, 0.0, 5.0, seed=1, name="decode0")
    factors = [jitter.factor(step) for step in STEPS]
    logs = [math.log(factor) for factor in factors]
    assert jitter.mean == 1
    assert statistics.fmean(factors) == pytest.approx(1, abs=4 * 0.2 / len(STEPS) ** 0.5)
    assert statistics.pstdev(logs) == pytest.approx(0.2, rel=0.02)
    assert statistics.fmean(logs) == pytest.approx(-0.02, abs=0.004)
    assert math.exp(-0.2 * 3.8) < min(factors)
    assert max(factors) < math.exp(0.2 * 3.8)


def test_spikes_come_as_often_and_as_high_as_asked() -> None:
    spikes = StepVariation(0.0, 0.01, 5.0, seed=1, name="decode0")
    factors = [spikes.factor(step) for step in STEPS]
    assert set(factors) == {1.0, 5.0}
    assert factors.count(5.0) / len(factors) == pytest.approx(0.01, abs=4 * (0.01 / len(STEPS)) ** 0.5)
    assert spikes.mean == pytest.approx(1.04)
    quiet = StepVariation(0.0, 0.0, 5.0, seed=1, name="decode0")
    assert {quiet.factor(step) for step in range(100)} == {1.0}
    every_step = StepVariation(0.0, 1.0, 5.0, seed=1, name="decode0")
    assert {every_step.factor(step) for step in range(100)} == {5.0}


@given(steps=st.lists(st.integers(0, 2**40), min_size=1, max_size=20), seed=st.integers(0, 2**32))
def test_a_draw_does_not_depend_on_order_or_on_other_draws(steps: list[int], seed: int) -> None:
    one = StepVariation(0.3, 0.1, 3.0, seed, "decode0")
    other = StepVariation(0.3, 0.1, 3.0, seed, "decode0")
    forward = {step: one.factor(step) for step in steps}
    StepVariation(0.3, 0.1, 3.0, seed, "decode1").factor(steps[0])
    assert forward == {step: other.factor(step) for step in reversed(steps)}


def test_draws_are_the_same_on_every_run_of_the_program() -> None:
    """Pinned: a hash that changes with the process (Python's own) would be detected."""
    jitter = StepVariation(0.2, 0.1, 5.0, seed=7, name="decode0")
    assert [round(jitter.factor(step), 6) for step in (0, 1, 2, 10**9)] == [0.824024, 0.646379, 0.738807, 0.658996]


def test_streams_with_other_seeds_or_names_have_nothing_to_do_with_one_another() -> None:
    base = [StepVariation(0.2, 0.0, 5.0, 1, "decode0").factor(step) for step in range(2000)]
    for seed, name in ((2, "decode0"), (1, "decode1"), (11, "decode0")):
        other = [StepVariation(0.2, 0.0, 5.0, seed, name).factor(step) for step in range(2000)]
        assert abs(statistics.correlation(base, other)) < 0.09
        assert abs(statistics.correlation(base[1:], base[:-1])) < 0.09


@pytest.mark.parametrize(
    ("sigma", "share", "factor"),
    [(-0.1, 0, 1), (1.1, 0, 1), (math.nan, 0, 1), (0, -0.1, 1), (0, 1.1, 1), (0, 0, 0.9), (0, 0, math.inf)],
)
def test_impossible_variation_is_refused(sigma: float, share: float, factor: float) -> None:
    with pytest.raises(SpecError, match="step variation"):
        StepVariation(sigma, share, factor, 0, "x")
