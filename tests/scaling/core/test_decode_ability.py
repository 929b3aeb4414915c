"""Capacity within the TPOT SLO is estimated from work: level and slope of a line."""

import pytest

from serving.scaling.core.capacity import FEWER, SEEN_S, TPOT_SPREAD, DecodeAbility

FLOOR_S, EACH_S = 0.010, 0.001


def line(sequences: float, floor_s: float = FLOOR_S) -> float:
    return floor_s + EACH_S * sequences


def test_too_little_measured_means_as_configured() -> None:
    """The first steps of a deployment, from its counters: times that are too long, and rise with two small batches."""
    ability = DecodeAbility()
    assert ability.most(0.05, 64) == 64
    for batch in (1.3, 3.7) * 10:
        ability.see(batch, line(batch, 0.05), 2.9)
    assert ability.most(0.05, 64) == 64
    ability.see(3.7, line(3.7, 0.05), 5.0)
    assert ability.most(0.05, 64) < 4


def test_time_per_token_grows_with_the_batch() -> None:
    ability = DecodeAbility()
    for batch in (4, 8, 12) * 25:
        ability.see(batch, line(batch), 1.0)
    tpot_slo_s = 0.05
    assert ability.most(tpot_slo_s, 64) == pytest.approx((tpot_slo_s / TPOT_SPREAD - FLOOR_S) / EACH_S)
    assert ability.most(tpot_slo_s, 32) == 32, "no more than it may hold"
    assert ability.most(0.001, 64) == pytest.approx(FEWER * 8, rel=0.02), "with half of them it is judged anew"
    lone = DecodeAbility()
    lone.see(1, 0.02, 1.1 * SEEN_S)
    assert lone.most(0.001, 64) == 1, "one sequence must be possible"


@pytest.mark.parametrize(("tpot_slo_s", "most"), [(0.05, 64), (0.01 * TPOT_SPREAD, 8)])
def test_one_batch_size_says_only_whether_the_promise_holds(tpot_slo_s: float, most: float) -> None:
    ability = DecodeAbility()
    for _ in range(4):
        ability.see(16, 0.02, SEEN_S / 3)
    assert ability.most(tpot_slo_s, 64) == pytest.approx(most)


def test_longer_contexts_lower_what_fits_and_leave_the_slope() -> None:
    """Small batches of slow traffic must not look like a TPOT that does not grow with the batch."""
    ability = DecodeAbility()
    tpot_slo_s = line(200, 0.05) * TPOT_SPREAD
    for second in range(4 * 3600):
        night = min(1.0, max(0.0, second / 7200 - 0.5))  # two hours for half the sequences, as slow as before
        batch = 180 - 80 * night + (20 if second % 600 < 300 else -20)
        ability.see(batch, line(batch, 0.05 + 0.08 * night), 1.0)
        if second == 3600:
            assert ability.most(tpot_slo_s, 1000) == pytest.approx(200, rel=0.01)
    assert ability.most(tpot_slo_s, 1000) == pytest.approx(120, rel=0.03)
