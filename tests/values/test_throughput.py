"""Measured speed of an instance, and its validity over time."""

import pytest

from serving.gateway.core.route_decision import InstanceView
from serving.gateway.core.router import route_prefill
from serving.ids import NodeId, ReplicaId
from serving.values.throughput import FORGET_HALF_LIVES, UNKNOWN_RETRY_S, BusyThroughput, retry_after_s


def test_recent_steps_count_for_more() -> None:
    rate = BusyThroughput(half_life_s=1.0)
    assert rate.tokens_per_s == 0
    rate.observe(100, 1.0)
    assert rate.tokens_per_s == 100
    rate.observe(400, 1.0)
    assert rate.tokens_per_s == pytest.approx((50 + 400) / 1.5)
    for _ in range(100):
        rate.observe(20, 0.1)
    rate.observe(0, 0.0)
    assert rate.tokens_per_s == pytest.approx(200.0, rel=0.01)


def test_a_retry_is_told_within_sensible_bounds() -> None:
    assert retry_after_s(100, 0.0) == UNKNOWN_RETRY_S
    assert retry_after_s(100, 50.0) == 2.0
    assert retry_after_s(1, 1e9) == pytest.approx(0.1)
    assert retry_after_s(10**9, 1.0) == 60.0


def test_an_idle_instance_that_looked_slow_is_asked_again_in_the_end() -> None:
    paused, usual = BusyThroughput(), BusyThroughput()
    paused.observe(20, 2.0)
    usual.observe(20, 0.002)
    forgotten_s = FORGET_HALF_LIVES * paused.half_life_s

    def chosen(idle_s: float) -> set[str]:
        views = [
            InstanceView(ReplicaId(name), "prefill", NodeId("n"), 0, 0, 9, 9, tokens_per_s=rate.known_after(idle))
            for name, rate, idle in (("paused", paused, idle_s), ("usual", usual, 0.0))
        ]
        return {route_prefill(views, 20, turn, 1.0).replica for turn in range(4)}

    assert chosen(0.0) == chosen(0.99 * forgotten_s) == {"usual"}
    assert chosen(forgotten_s) == {"paused", "usual"}
