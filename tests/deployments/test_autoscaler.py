"""What the autoscaler adds to the pure policy: numbers that never fall."""

from serving.deployments.autoscaler import GAUGES, RisingTraffic
from serving.policy.scaling.signals import ScalingSignals, Traffic


def look(now: float, **traffic: float) -> ScalingSignals:
    return ScalingSignals(now, (), None, Traffic(**traffic), 0, 0, 5.0)  # type: ignore[arg-type] # whole numbers


def test_totals_go_on_where_a_restarted_board_begins_anew() -> None:
    rising = RisingTraffic()
    assert rising.upon(look(1.0, arrived=10, finished=8, queued=2)).traffic == Traffic(arrived=10, finished=8, queued=2)
    anew = rising.upon(look(2.0, arrived=3, finished=9, queued=1))
    assert anew.traffic == Traffic(arrived=10, finished=8, queued=1), "one total fell, so all begin anew; gauges do not"
    assert rising.upon(look(3.0, arrived=5, finished=10)).traffic == Traffic(arrived=12, finished=9)


def test_time_never_stands_still() -> None:
    rising = RisingTraffic()
    times = [rising.upon(look(now)).now for now in (5.0, 5.0, 3.0, 9.0)]
    assert times == sorted(set(times))
    assert times[-1] == 9.0


def test_gauges_are_what_traffic_calls_so() -> None:
    assert set(Traffic.__struct_fields__) >= GAUGES
