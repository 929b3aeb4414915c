"""The live autoscaler's addition to the pure policy: monotonic counters, and otherwise the same decisions."""

import itertools
import pickle
from dataclasses import dataclass, field

from msgspec.structs import replace

from serving.scaling.core.autoscaler import make_scaler
from serving.scaling.core.decision import Scaler, ScalingDecision
from serving.scaling.live.autoscaler_replica import GAUGES, RisingTraffic
from serving.values.signals import ScalingSignals, Traffic
from serving.virtual.simulation import simulate
from tests.scaling.core.looks import cache, prefill
from tests.virtual.core.case import burst, config


def poll(now: float, **traffic: float) -> ScalingSignals:
    return ScalingSignals(now, (), None, Traffic(**traffic), 0, 0, 5.0)  # type: ignore[arg-type] # whole numbers


def test_totals_go_on_where_a_restarted_board_begins_anew() -> None:
    rising = RisingTraffic()
    assert rising.upon(poll(1.0, arrived=10, finished=8, queued=2)).traffic == Traffic(arrived=10, finished=8, queued=2)
    anew = rising.upon(poll(2.0, arrived=3, finished=9, queued=1))
    assert anew.traffic == Traffic(arrived=10, finished=8, queued=1), "one total fell, so all begin anew; gauges do not"
    assert rising.upon(poll(3.0, arrived=5, finished=10)).traffic == Traffic(arrived=12, finished=9)


def test_time_never_stands_still() -> None:
    rising = RisingTraffic()
    times = [rising.upon(poll(now)).now for now in (5.0, 5.0, 3.0, 9.0)]
    assert times == [5.0, 6.0, 7.0, 13.0]


def test_a_board_whose_clock_was_set_back_makes_no_burst_and_ends_no_hold() -> None:
    """Ticks of a millisecond each made the traffic look a thousand times as large, and the pools grew to their
    maximum.
    """
    rising = RisingTraffic()
    rising.upon(poll(1000.0, arrived=0))
    held = prefill(held_until=450.0)
    looks = [
        rising.upon(replace(poll(400.0 + second, arrived=9 * second), pools=(held,), cache=cache(held_until=450.0)))
        for second in range(1, 50)
    ]
    gaps = [later.now - earlier.now for earlier, later in itertools.pairwise(looks)]
    assert gaps == [1.0] * len(gaps)
    for one in looks:
        assert one.cache is not None
        assert one.pools[0].held_until > one.now < one.cache.held_until


def test_gauges_are_what_traffic_calls_so() -> None:
    assert set(Traffic.__struct_fields__) >= GAUGES


@dataclass
class Recorder:
    """A scaler that keeps every poll's signals and decision."""

    policy: Scaler
    seen: list[tuple[ScalingSignals, ScalingDecision]] = field(default_factory=list)

    def decide(self, signals: ScalingSignals) -> ScalingDecision:
        self.seen.append((signals, self.policy.decide(signals)))
        return self.seen[-1][1]


def test_the_signals_of_virtual_time_lead_to_the_same_decisions_live() -> None:
    """A wave of prompts: the signals go through what the live driver does to them between the board and the policy."""
    system = config(autoscaler={"policy": "slo", "hold_s": 10.0}, prefill={"replicas": 1})
    virtual = Recorder(make_scaler("slo", system.slo, system.autoscaler))
    simulate(system, burst(300, every_s=0.02, prompt=8000), scaler=virtual)
    rising, live = RisingTraffic(), make_scaler("slo", system.slo, system.autoscaler)
    again = [live.decide(rising.upon(pickle.loads(pickle.dumps(signals)))) for signals, _ in virtual.seen]
    assert again == [decision for _, decision in virtual.seen]
    kinds = {change.kind.value for decision in again for change in decision.changes}
    assert {"burst", "forecast"} <= kinds, "it grew and shrank"
