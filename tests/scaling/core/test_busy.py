"""Busy shares of instances, from monotonic counters."""

import pytest

from serving.scaling.core.cluster_snapshot import ClusterSnapshot
from serving.scaling.core.history import BUSY_WINDOW_S, BusyShares
from tests.scaling.live.case import member


def look(shares: BusyShares, at: float, busy_s: float, incarnation: str = "1", **facts: float) -> None:
    shares.observe(ClusterSnapshot(at, members={"d1": member("d1", "decode", incarnation, busy_s=busy_s, **facts)}))


def test_the_share_is_of_the_last_seconds() -> None:
    shares = BusyShares()
    look(shares, 100.0, 7.0)
    assert shares.share("d1") is None, "one look says nothing"
    look(shares, 102.0, 8.0)
    assert shares.share("d1") == pytest.approx(0.5)
    for second in range(3, 20):
        look(shares, 100.0 + second, 8.0)
    assert shares.share("d1") == 0.0, f"what it did is longer ago than {BUSY_WINDOW_S} s"
    assert shares.share("d2") is None


def test_another_process_begins_anew() -> None:
    shares = BusyShares()
    look(shares, 100.0, 7.0)
    look(shares, 101.0, 8.0)
    look(shares, 102.0, 0.5, "2")
    assert shares.share("d1") is None
    shares.observe(ClusterSnapshot(103.0))
    look(shares, 104.0, 9.0)
    assert shares.share("d1") is None, "it was gone in between"


def test_time_that_runs_faster_is_no_more_than_all_of_it() -> None:
    shares = BusyShares()
    look(shares, 100.0, 0.0, time_scale=10.0)
    look(shares, 101.0, 4.0, time_scale=10.0)
    assert shares.share("d1") == pytest.approx(0.4)
    look(shares, 102.0, 90.0, time_scale=10.0)
    assert shares.share("d1") == 1.0
