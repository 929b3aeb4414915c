"""Pools follow their load: up at once, down with patience, never beyond their bounds."""

from hypothesis import given
from hypothesis import strategies as st

from serving.policy.target_tracking import TargetTracker


def tracker(hold_s: float = 60.0) -> TargetTracker:
    return TargetTracker(utilisation=0.5, hold_s=hold_s, low=1, high=8)


def test_more_work_is_answered_at_once() -> None:
    decision = tracker().decide(0.0, 2, 2.6)
    assert decision.target == 6
    assert "2.60 instances at 50%" in decision.reason


def test_less_work_must_last() -> None:
    pool = tracker()
    assert pool.decide(0.0, 4, 2.0).target == 4
    assert [pool.decide(t, 4, 0.4).target for t in (10.0, 30.0, 50.0, 60.0)] == [4, 4, 4, 4]
    decision = pool.decide(70.0, 4, 0.4)
    assert decision.target == 1
    assert "were enough" in decision.reason


def test_load_that_wavers_changes_nothing() -> None:
    pool = tracker()
    targets = [pool.decide(10.0 * n, 4, 1.0 if n % 3 else 2.0).target for n in range(100)]
    assert set(targets) == {4}


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=50))
def test_the_target_stays_within_its_bounds(loads: list[float]) -> None:
    pool, instances = tracker(hold_s=20.0), 1
    for turn, load in enumerate(loads):
        instances = pool.decide(5.0 * turn, instances, load).target
        assert 1 <= instances <= 8
        assert instances >= min(8.0, load / 0.5) - 1e-6
