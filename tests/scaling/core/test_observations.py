"""Reports of gateways and snapshots of polls, as signals."""

from serving.scaling.core.board_views import IDLE_AFTER_S, Observations
from serving.scaling.core.fleet import ScalingFleet
from serving.scaling.core.signals import sizes_of
from serving.values.signals import Traffic
from serving.values.traffic import GatewayReport
from tests.scaling.core.fleet_case import FleetCase
from tests.scaling.live.case import EMPTY, FakeCluster, config


def test_requests_that_begin_to_wait_for_an_empty_pool_are_news_once() -> None:
    seen = Observations(config(), 1000.0)

    def news(gateway: str, now: float, *, starved: bool = True) -> bool:
        return seen.report(GatewayReport(gateway, Traffic(queued=1), 1, EMPTY, EMPTY, starved=starved), now)

    assert [news("g", 1000.0), news("g", 1000.5), news("h", 1001.0)] == [True, False, True]
    assert not news("g", 1001.5, starved=False)
    assert news("g", 1002.0)
    news("g", 1100.0)
    assert news("h", 1100.5), "one that fell silent begins anew"


def test_the_cluster_is_polled_less_often_without_requests_while_no_replica_moves() -> None:
    seen, case = Observations(config(), 1000.0), FleetCase(FakeCluster())

    def period_s(now: float, fleet: ScalingFleet = case.fleet) -> float:
        return seen.poll_period_s(fleet, now)

    assert [period_s(1000.0), period_s(1001.0 + IDLE_AFTER_S)] == [1.0, 3.0]
    seen.report(GatewayReport("g", Traffic(), 1, EMPTY, EMPTY), 1100.0)
    seen.report(GatewayReport("g", Traffic(), 0, EMPTY, EMPTY), 1104.0)
    assert [period_s(1104.0), period_s(1101.0 + IDLE_AFTER_S)] == [1.0, 3.0]
    assert period_s(2000.0, ScalingFleet(config().autoscaler, sizes_of(config()))) == 0.3, "before the first poll"
