"""Counters of several gateways are summed, also when one of them is replaced."""

import pytest

from serving.config.scaling import SloConfig
from serving.scaling.core.gateways import SILENCE_S, WINDOW_S, Gateways
from serving.values.signals import Traffic
from serving.values.traffic import BOUNDS_S, BoardReply, GatewayReport, bucket_of

EMPTY = (0,) * (len(BOUNDS_S) + 1)
SLO = SloConfig()


def buckets(seconds: float, count: int) -> tuple[int, ...]:
    return tuple(count if i == bucket_of(seconds) else 0 for i in range(len(EMPTY)))


def report(
    gateway: str, running: int = 0, ttft: tuple[int, ...] = EMPTY, *, known: bool = False, **traffic: float
) -> GatewayReport:
    counted = Traffic(**traffic)  # type: ignore[arg-type] # whole numbers
    return GatewayReport(gateway, counted, running, ttft, EMPTY, known=known)


def test_gateways_add_up() -> None:
    gateways = Gateways()
    gateways.report(report("a", 2, arrived=5, queued=1, queued_tokens=10, oldest_wait_s=3.0), now=1.0)
    gateways.report(report("b", 1, arrived=7, queued=2, queued_tokens=5, oldest_wait_s=1.0), now=1.0)
    assert gateways.traffic(1.0) == Traffic(arrived=12, queued=3, queued_tokens=15, oldest_wait_s=3.0)
    assert gateways.running(1.0) == 3


def test_a_gateway_is_told_of_the_others() -> None:
    gateways = Gateways()
    gateways.report(report("a", 5, queued=1), now=1.0)
    assert gateways.news("a", {"decode": 2}, 1.0) == BoardReply({"decode": 2})
    gateways.report(report("b", 3, queued=2), now=1.0)
    gateways.report(report("c", 4, queued=0), now=1.0)
    assert gateways.news("a", {}, 1.0) == BoardReply({}, others=2, others_running=1 + 4, others_queued=2)
    assert gateways.news("a", {}, 1.0 + SILENCE_S) == BoardReply({}), "silent ones are gone"


def test_a_gateway_that_is_replaced_leaves_its_totals() -> None:
    gateways = Gateways()
    gateways.report(report("a", 4, arrived=5, queued=3), now=1.0)
    gateways.report(report("b", 1, arrived=1), now=2.0 + SILENCE_S)
    assert gateways.traffic(2.0 + SILENCE_S) == Traffic(arrived=6), "what waited in it is gone with it"
    assert gateways.running(2.0 + SILENCE_S) == 1


def test_a_board_that_is_started_again_takes_no_lifetime_for_a_burst() -> None:
    gateways = Gateways()
    gateways.mark(0.0)
    gateways.report(report("a", 3, buckets(5.0, 900), known=True, arrived=1000, ttft_missed=900, queued=2), now=1.0)
    assert gateways.traffic(1.0) == Traffic(queued=2)
    assert gateways.last_minute(SLO, 1.0)["ttft_attained"] is None
    gateways.report(report("a", 3, buckets(5.0, 900), known=True, arrived=1004, ttft_missed=900, queued=2), now=2.0)
    assert gateways.traffic(2.0) == Traffic(arrived=4, queued=2)


def test_the_last_minute_forgets_what_was_before() -> None:
    gateways = Gateways()
    gateways.mark(0.0)
    gateways.report(report("a", ttft=buckets(5.0, 10), arrived=10, ttft_missed=10), now=1.0)
    for second in range(1, 100):
        gateways.mark(float(second))
    assert gateways.last_minute(SLO, 99.0)["ttft_attained"] is None
    both = tuple(old + new for old, new in zip(buckets(5.0, 10), buckets(0.1, 30), strict=True))
    gateways.report(report("a", ttft=both, arrived=40, ttft_missed=10, ttft_met=30), now=100.0)
    told = gateways.last_minute(SLO, 100.0)
    assert told["ttft_attained"] == 1.0
    assert told["ttft_p50_s"] == pytest.approx(0.1, rel=0.25)
    assert told["tpot_p50_s"] is None
    assert told["tpot_attained"] is None
    assert told["requests_per_s"] == pytest.approx(30 / WINDOW_S, rel=0.05)
    assert (told["ttft_s"], told["tpot_s"], told["attainment"]) == (SLO.ttft_s, SLO.tpot_s, SLO.attainment)


def test_the_first_minute_counts_from_its_beginning() -> None:
    gateways = Gateways()
    gateways.mark(0.0)
    gateways.report(report("a", arrived=20, ttft_met=15, ttft_missed=5), now=10.0)
    gateways.mark(10.0)
    told = gateways.last_minute(SLO, 10.0)
    assert told["ttft_attained"] == 0.75
    assert told["requests_per_s"] == pytest.approx(2.0)


def test_nothing_was_heard_yet() -> None:
    told = Gateways().last_minute(SLO, 5.0)
    assert told["ttft_p99_s"] is None
    assert told["requests_per_s"] == 0.0
