"""Number of parts of an instance that a load requires, and the policy's use of it."""

import pytest

from serving.scaling.core.autoscaler import Autoscaler
from serving.scaling.core.decode_work import DecodeWork, parts_for
from serving.scaling.core.demand import Outlook
from serving.values.signals import PoolSignals
from tests.scaling.core.looks import CONFIG, SLO, decode, gains, look, prefill

LINE = (0.0, 10.0, 40.0, 90.0)


@pytest.mark.parametrize(
    ("sequences", "parts"), [(0, 0.0), (5, 0.5), (10, 1.0), (25, 1.5), (90, 3.0), (140, 4.0), (-5, -0.5)]
)
def test_parts_lie_between_the_whole_ones_and_go_on_beyond_the_last(sequences: float, parts: float) -> None:
    assert parts_for(sequences, LINE) == pytest.approx(parts)


def pool(**more: float) -> PoolSignals:
    return decode(2, sequences=60, max_sequences=20.0, abilities=LINE, **more)


def test_a_load_is_counted_in_parts_by_what_they_do_together() -> None:
    work = DecodeWork()
    work.see(gains(10.0, arrived=20, finished=20), pool())
    demand = work.demand(pool(), Outlook(5.0, 2, 0, 0.0), coming=0, aim=1.0)
    assert demand.load == pytest.approx(2.4, abs=0.1)  # in proportion it would be 3
    assert work.now_instances(pool()) == pytest.approx(2.4)


def test_chance_is_counted_where_the_load_is() -> None:
    def noise(abilities: tuple[float, ...]) -> float:
        work = DecodeWork()
        for sequences in (60, 50, 70, 60):
            work.see(gains(10.0, arrived=20, finished=20), decode(2, sequences=sequences, abilities=abilities))
        return work.demand(decode(2, sequences=60, abilities=abilities), Outlook(5.0, 2, 0, 0.0), aim=1.0).noise

    assert noise(LINE) == pytest.approx(noise((0.0, 10.0)) / 5, rel=0.01)  # the third part does five times the first


def test_a_crowd_is_counted_by_the_same_line() -> None:
    outlook = Outlook(5.0, 2, 0, 0.0)
    assert DecodeWork().demand(pool(crowd=30.0), outlook, coming=0, aim=1.0).urgent == 0.0  # as 40 sequences in time
    urgent = DecodeWork().demand(pool(crowd=20.0), outlook, coming=0, aim=1.0).urgent
    assert urgent == pytest.approx(2.4)


def test_a_pool_s_own_start_decides_what_it_looks_ahead() -> None:
    def reason(start_s: float) -> str:
        crowded = decode(1, sequences=200, start_s=start_s)
        return Autoscaler(SLO, CONFIG).decide(look(0.0, (prefill(), crowded))).targets[1].reason

    assert "in 90 s" in reason(90.0)
    assert "in 5 s" in reason(0.0)
