"""Reports of gateways and snapshots of polls, as signals."""

from serving.scaling.core.board_views import Observations
from serving.values.signals import Traffic
from serving.values.traffic import GatewayReport
from tests.scaling.live.case import EMPTY, config


def test_requests_that_begin_to_wait_for_an_empty_pool_are_news_once() -> None:
    seen = Observations(config(), 1000.0)

    def news(gateway: str, now: float, *, starved: bool = True) -> bool:
        return seen.report(GatewayReport(gateway, Traffic(queued=1), 1, EMPTY, EMPTY, starved=starved), now)

    assert [news("g", 1000.0), news("g", 1000.5), news("h", 1001.0)] == [True, False, True]
    assert not news("g", 1001.5, starved=False)
    assert news("g", 1002.0)
    news("g", 1100.0)
    assert news("h", 1100.5), "one that fell silent begins anew"
