"""A pool's history: changes, arrivals, stabilization."""

import pytest

from serving.scaling.core.decision import ScaleKind
from serving.scaling.core.demand import Demand
from serving.scaling.core.pool_planner import PoolPlanner, Wanted
from tests.scaling.core.looks import needs, prefill


def asked(planner: PoolPlanner, now: float, demand: Demand, size: int = 3) -> Wanted:
    pool = prefill(size, high=max(20, size))
    planner.outlook(now, pool, 5.0)
    return planner.wanted(now, pool, demand)


def test_those_who_were_asked_for_come_after_a_start() -> None:
    planner = PoolPlanner(0.7, 60.0)
    assert planner.outlook(0.0, prefill(2), 5.0).coming == 0
    asked = prefill(2, target=4)
    assert [planner.outlook(now, asked, 5.0).ready_in_s for now in (10.0, 12.0, 15.0)] == [5.0, 3.0, 0.0]
    late = [planner.outlook(now, asked, 5.0).ready_in_s for now in (16.0, 18.0, 30.0)]
    assert late == [1.0, 3.0, 5.0], "as late again"
    assert planner.outlook(31.0, prefill(4), 5.0).there == 4
    assert planner.outlook(40.0, prefill(3, target=4), 5.0).ready_in_s == 5.0, "one was lost"


def test_a_change_by_anybody_needs_time_to_show() -> None:
    planner = PoolPlanner(0.7, 60.0)
    planner.outlook(0.0, prefill(2), 5.0)
    assert planner.settled(0.0, 10.0)
    planner.outlook(5.0, prefill(2, target=3), 5.0)
    assert not planner.settled(14.0, 10.0)
    assert planner.settled(15.0, 10.0)


def test_the_plan_waits_for_history_and_urgency_does_not() -> None:
    planner = PoolPlanner(0.7, 60.0)
    assert asked(planner, 0.0, needs(9.0)).kind is ScaleKind.STAY
    assert asked(planner, 5.0, needs(9.0, urgent=3.5)) == Wanted(
        4, ScaleKind.BURST, "queue needs 4; load: load 9.00 at 70%"
    )
    assert asked(planner, 10.0, needs(9.0)) == Wanted(13, ScaleKind.FORECAST, "load: load 9.00 at 70% needs 13")
    assert asked(planner, 11.0, needs(9.0, urgent=3.5)) == Wanted(
        13, ScaleKind.BURST, "queue needs 4; load: load 9.00 at 70% needs 13"
    )


def test_a_load_within_its_noise_changes_nothing() -> None:
    planner = PoolPlanner(0.7, 60.0)
    for now in range(200):
        assert asked(planner, float(now), needs(2.2, noise=0.2)).target == 3, "2.1 is what three are for"
        assert asked(planner, float(now), needs(1.3, noise=0.2)).target == 3, "1.4 is what two are for"
    assert asked(planner, 200.0, needs(2.2, noise=0.01)).target == 4
    assert asked(planner, 201.0, needs(2.2, noise=0.2, steady=2.2)).target == 4, "it has been too much for ten minutes"
    assert asked(planner, 202.0, needs(1.3, noise=0.2, steady=2.2)).target == 3, "it was, and is not any more"


def test_short_peaks_of_work_that_waits_need_room_too() -> None:
    planner = PoolPlanner(0.7, 60.0)
    for now in range(200):
        assert asked(planner, float(now), needs(1.3, noise=0.2, swing=0.9)).target == 3, "2.1 is what three are for"
    assert asked(planner, 200.0, needs(1.3, swing=1.8)).target == 4


@pytest.mark.parametrize(
    ("demand", "reason"),
    [
        (needs(0.54, swing=2.3), "load: load 0.54 and 2.30 more in short times needs 3"),
        (needs(2.0), "load: load 2.00 at 70% needs 3"),
    ],
)
def test_the_reason_has_the_number_that_decided(demand: Demand, reason: str) -> None:
    planner = PoolPlanner(0.7, 60.0)
    asked(planner, 0.0, needs(0.1), size=1)
    assert asked(planner, 20.0, demand, size=1) == Wanted(3, ScaleKind.FORECAST, reason)


def test_it_shrinks_to_the_most_that_was_needed_and_rests() -> None:
    planner = PoolPlanner(0.7, 60.0)
    for now in range(60):
        assert asked(planner, float(now), needs(1.6 if now == 30 else 0.3), size=4).target == 4
    shrunk = asked(planner, 60.0, needs(0.3), size=4)
    assert (shrunk.target, shrunk.kind) == (3, ScaleKind.FORECAST)
    assert shrunk.reason == "load: load 0.30 at 70%; 3 would have done for 60 s"
    assert asked(planner, 95.0, needs(0.3), size=3).target == 3, "it rests for half of the time"
    assert asked(planner, 124.0, needs(0.3), size=3).target == 3
    assert asked(planner, 125.0, needs(0.3), size=3).target == 2, "a third at a time"


@pytest.mark.parametrize(("load", "sizes"), [(0.0, [9, 2, 1]), (0.3, [9, 2, 1]), (1.3, [9, 4, 3, 2]), (3.4, [9, 6, 5])])
def test_it_shrinks_at_once_to_twice_what_it_needs(load: float, sizes: list[int]) -> None:
    planner, size, seen = PoolPlanner(0.7, 60.0), 9, [9]
    for now in range(400):
        size = asked(planner, float(now), needs(load), size=size).target
        seen += [size] if size != seen[-1] else []
    assert seen == sizes


def test_a_large_pool_does_not_shrink_for_a_trifle() -> None:
    planner = PoolPlanner(0.7, 60.0)
    assert all(asked(planner, float(now), needs(18.5), size=28).target == 28 for now in range(100))
    assert all(asked(planner, 100.0 + now, needs(18.1), size=28).target == 28 for now in range(60))
    assert asked(planner, 161.0, needs(18.1), size=28).target == 26


def test_it_does_not_shrink_while_the_system_fills_up_or_traffic_grows() -> None:
    planner = PoolPlanner(0.7, 60.0)
    filling = needs(0.3, memory_s=100.0)
    assert all(asked(planner, float(now), filling).target == 3 for now in range(360))
    assert asked(planner, 360.0, filling).target == 2
    planner = PoolPlanner(0.7, 60.0)
    assert all(asked(planner, float(now), needs(0.3, heading=1.5)).target == 3 for now in range(400))


@pytest.mark.parametrize(("load", "urgent"), [(None, 30.0), (0.1, 30.0)])
def test_bounds_are_said(load: float | None, urgent: float) -> None:
    wanted = asked(PoolPlanner(0.7, 60.0), 0.0, needs(load, urgent))
    assert (wanted.target, wanted.kind) == (20, ScaleKind.BURST)
    assert wanted.reason.endswith("; 1 to 20 are allowed")
