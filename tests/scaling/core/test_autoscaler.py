"""The autoscaler on single ticks and short histories: which pool changes, and why."""

from collections.abc import Sequence

import pytest

from serving.config.scaling import AutoscalerConfig, SloConfig
from serving.scaling.core.autoscaler import Autoscaler, make_scaler
from serving.scaling.core.decision import PoolTarget, ScaleKind, ScalingDecision
from serving.scaling.core.request_count import RequestCountScaler
from serving.values.signals import PoolSignals, Traffic
from tests.scaling.core.looks import CONFIG, SLO, aggregated, cache, decode, look, prefill


def target(decision: ScalingDecision, pool: str) -> PoolTarget:
    return next(one for one in decision.targets if one.pool == pool)


def story(
    scaler: Autoscaler,
    seconds: int,
    pools: Sequence[PoolSignals],
    begin: int = 0,
    rate: int = 0,
    tokens: int = 1000,
    npus_free: int = 360,
    npus_total: int = 384,
    **traffic: float,
) -> ScalingDecision:
    """The same tick every second, with continuing traffic; the last decision."""
    decision = None
    for second in range(begin, begin + seconds):
        arrived = rate * second
        known = {"arrived": arrived, "arrived_tokens": arrived * tokens, "uncached_tokens": arrived * tokens}
        told = Traffic(**{**known, "finished": arrived, **traffic})  # type: ignore[arg-type]
        decision = scaler.decide(look(float(second), pools, told, npus_free=npus_free, npus_total=npus_total))
    assert decision is not None
    return decision


def test_the_configuration_names_the_scaler() -> None:
    assert isinstance(make_scaler("slo", SLO, CONFIG), Autoscaler)
    baseline = make_scaler("requests", SLO, AutoscalerConfig(requests_per_instance=3.0, npu_budget=40))
    assert isinstance(baseline, RequestCountScaler)
    assert (baseline.requests_per_instance, baseline.npu_budget) == (3.0, 40)


def test_the_first_look_changes_nothing_and_gives_reasons() -> None:
    decision = make_scaler("slo", SLO, CONFIG).decide(look(7.0, cache=cache()))
    assert decision.now == 7.0
    assert [one.pool for one in decision.targets] == ["prefill", "decode", "kvcache"]
    assert not decision.changes
    assert all(one.kind is ScaleKind.STAY and one.reason for one in decision.targets)


def test_no_pools_no_targets() -> None:
    scaler = Autoscaler(SLO, CONFIG)
    assert scaler.decide(look(0.0, ())).targets == scaler.decide(look(1.0, ())).targets == ()


def test_looks_at_the_same_time_count_nothing_twice() -> None:
    scaler = Autoscaler(SLO, CONFIG)
    story(scaler, 100, (prefill(), decode()), rate=10)
    again = scaler.decide(look(99.0, traffic=Traffic(arrived=10**6, arrived_tokens=10**9)))
    assert not again.changes


def test_both_pools_are_planned_from_the_same_traffic() -> None:
    pools = (prefill(2), decode(2, sequences=150))
    decision = story(Autoscaler(SLO, CONFIG), 120, pools, rate=15)
    assert target(decision, "prefill").target == 3, "15,000 of 10,000 tokens/s at 70 %"
    assert target(decision, "decode").target == 3, "150 of 100 sequences at 70 %"
    assert {one.kind for one in decision.targets} == {ScaleKind.FORECAST}
    assert "load 1.50 at 70% needs 3" in target(decision, "prefill").reason
    late = story(Autoscaler(SLO, CONFIG), 120, (prefill(1), decode(1, sequences=150)), rate=15)
    assert [one.target for one in late.targets] == [3, 3]
    assert target(late, "prefill").kind is ScaleKind.BURST, "one is less than they take"


def test_a_queue_is_answered_at_once() -> None:
    scaler = Autoscaler(SLO, CONFIG)
    story(scaler, 120, (prefill(), decode()), rate=10)
    pools = (prefill(queued_tokens=150_000, waiting=150, sequences=150), decode())
    decision = story(scaler, 1, pools, begin=120, rate=10)
    assert target(decision, "prefill").target == 3
    assert target(decision, "prefill").kind is ScaleKind.BURST
    assert "150000 tokens wait" in target(decision, "prefill").reason
    starting = (prefill(2, target=3, starting=1, queued_tokens=150_000, waiting=150), decode())
    decision = story(scaler, 3, starting, begin=121, rate=10)
    assert target(decision, "prefill").target == 3, "what is starting is not asked for again"


def test_a_burst_of_prefill_is_kept_in_proportion_while_decode_is_full() -> None:
    scaler = Autoscaler(SLO, CONFIG)
    story(scaler, 120, (prefill(), decode(sequences=130)), rate=10)
    pools = (prefill(queued_tokens=300_000, waiting=300, sequences=300), decode(sequences=200, waiting=5))
    decision = story(scaler, 1, pools, begin=120, rate=10)
    assert target(decision, "prefill").target == 2
    assert target(decision, "decode").kind is ScaleKind.BURST


def test_an_idle_pool_shrinks_to_its_least_with_patience() -> None:
    scaler = Autoscaler(SLO, CONFIG)
    assert not story(scaler, 120, (prefill(4), decode(4))).changes
    decision = story(scaler, 2, (prefill(4), decode(4, low=4)), begin=120)
    assert [one.target for one in decision.targets] == [2, 4]
    assert target(decision, "prefill").reason.endswith(
        "1 would have done for 120 s, but twice the 1 that are needed now stay"
    )
    decision = story(scaler, 62, (prefill(2), decode(4, low=2)), begin=122)
    assert [one.target for one in decision.targets] == [1, 2]


def test_zero_needs_permission_and_time_and_ends_with_the_first_request() -> None:
    scaler = Autoscaler(SLO, AutoscalerConfig(idle_to_zero_s=60.0))
    pools = (prefill(1, low=0), decode(1, low=1))
    assert not story(scaler, 60, pools).changes
    decision = story(scaler, 1, pools, begin=60)
    assert (target(decision, "prefill").target, target(decision, "prefill").kind) == (0, ScaleKind.ZERO)
    assert target(decision, "prefill").reason == "no request for 60 s, idle_to_zero_s is 60"
    assert target(decision, "decode").target == 1
    empty = (prefill(0, low=0), decode(1, low=1))
    decision = story(scaler, 1, empty, begin=61)
    assert (target(decision, "prefill").target, target(decision, "prefill").kind) == (0, ScaleKind.STAY)
    decision = story(scaler, 1, empty, begin=62, arrived=1, queued=1)
    assert (target(decision, "prefill").target, target(decision, "prefill").kind) == (1, ScaleKind.WAKE)
    assert target(decision, "prefill").reason.startswith("1 requests wait; ")


def test_a_system_that_begins_at_zero_wakes_for_somebody_only() -> None:
    scaler = Autoscaler(SLO, CONFIG)
    pools = (prefill(0, low=0), decode(0, low=0))
    assert [one.reason for one in story(scaler, 5, pools).targets] == ["0 requests wait"] * 2
    decision = story(scaler, 1, pools, begin=5, rejected=1, arrived=1)
    assert [one.kind for one in decision.targets] == [ScaleKind.WAKE] * 2
    assert decision.targets[0].reason.startswith("1 requests came since the last look; ")


def test_those_who_wait_are_counted_once_and_nobody_is_made_up() -> None:
    scaler = Autoscaler(SLO, CONFIG)
    decision = story(scaler, 1, (prefill(1), decode(0)))
    assert (decision.targets[1].target, decision.targets[1].kind) == (1, ScaleKind.FIT)
    assert decision.targets[1].reason.endswith("1 to 20 are allowed")
    decision = story(scaler, 1, (prefill(1, sequences=3, waiting=2), decode(0)), begin=1, queued=4)
    assert (decision.targets[1].target, decision.targets[1].kind) == (1, ScaleKind.WAKE)
    assert decision.targets[1].reason.startswith("7 requests wait; ")


def test_bounds_are_kept_even_by_pools_that_start_outside() -> None:
    decision = Autoscaler(SLO, CONFIG).decide(look(0.0, (prefill(1, low=3), decode(9, high=5))))
    assert [(one.target, one.kind) for one in decision.targets] == [(3, ScaleKind.FIT), (5, ScaleKind.FIT)]
    assert "3 to 20 are allowed" in decision.targets[0].reason


def test_a_held_pool_stands_and_the_plan_works_around_it() -> None:
    scaler = Autoscaler(SLO, CONFIG)
    pools = (prefill(1), decode(4, sequences=10, held_until=500.0))
    decision = story(scaler, 200, pools, rate=30, npus_free=4, npus_total=40)
    held = target(decision, "decode")
    assert (held.target, held.kind) == (4, ScaleKind.HELD)
    assert held.reason.startswith("held for 301 s more; ")
    cut = target(decision, "prefill")
    assert (cut.target, cut.kind) == (2, ScaleKind.FORECAST) or cut.kind is ScaleKind.FIT
    assert cut.target == 2
    assert "5 wanted, 2 fit: 40 NPUs for all pools, 4 of 40 NPUs are free" in cut.reason


def first_shrink(held: range) -> int:
    """Time at which decode, with 9 instances, first shrinks after its load fell at 960 s."""
    scaler, size, arrived = Autoscaler(SLO, CONFIG), 9, 0
    for second in range(1500):
        rate = 28 if second < 960 else 12
        arrived += rate
        known = {"arrived": arrived, "arrived_tokens": arrived * 100, "uncached_tokens": arrived * 100}
        told = Traffic(**known, finished=max(0, arrived - 20 * rate), ttft_met=arrived, tpot_met=arrived)
        pool = decode(size, sequences=20 * rate, held_until=float(held.stop) if second in held else 0.0)
        size = target(scaler.decide(look(float(second), (prefill(1), pool), told)), "decode").target
        if second > 900 and size < 8:
            return second
    raise AssertionError("it never shrank")


def test_after_a_hold_a_pool_shrinks_no_sooner_than_without_it() -> None:
    """It shrank at the first free tick, with the reason that less would have been enough for all the time."""
    assert first_shrink(range(400, 1000)) >= first_shrink(range(0)) >= 960 + CONFIG.hold_s


@pytest.mark.parametrize(("held", "target"), [("prefill", 6), ("decode", 3)])
def test_a_hold_of_all_npus_does_not_close_the_other_pool(held: str, target: int) -> None:
    """Decode was set to 0 with all its streams, because prefill was held at more than the budget."""
    before = {"prefill": 2, "decode": 2} | {held: target}
    until = {name: 1e9 if name == held else 0.0 for name in before}
    pools = (
        prefill(before["prefill"], held_until=until["prefill"]),
        decode(before["decode"], sequences=60, held_until=until["decode"]),
    )
    decision = story(Autoscaler(SLO, CONFIG), 100, pools, rate=5, npus_free=0, npus_total=24)
    assert {one.pool: one.target for one in decision.targets} == {"prefill": 1, "decode": 1} | {held: target}


def test_a_held_pool_without_a_place_takes_nothing_from_the_other() -> None:
    pools = (prefill(2), decode(1, target=3, starting=2, sequences=60, held_until=1e9))
    decision = story(Autoscaler(SLO, CONFIG), 100, pools, rate=10, npus_free=0, npus_total=16)
    assert [one.target for one in decision.targets] == [2, 3]


def test_no_growth_without_npus() -> None:
    decision = story(Autoscaler(SLO, CONFIG), 120, (prefill(1), decode(1, sequences=10)), rate=15, npus_free=0)
    assert (target(decision, "prefill").target, target(decision, "prefill").kind) == (1, ScaleKind.STAY)
    assert "3 wanted, 1 fit" in target(decision, "prefill").reason


def test_the_budget_of_the_configuration_counts() -> None:
    scaler = Autoscaler(SLO, AutoscalerConfig(npu_budget=20))
    assert target(story(scaler, 120, (prefill(1), decode(1)), rate=15), "prefill").target == 3
    scaler = Autoscaler(SLO, AutoscalerConfig(npu_budget=16))
    cut = target(story(scaler, 120, (prefill(1), decode(1)), rate=15), "prefill")
    assert cut.target == 2
    assert "3 wanted, 2 fit: 16 NPUs for all pools, 360 of 384 NPUs are free, npu_budget is 16" in cut.reason


def test_prefill_yields_when_decode_lost_its_npus() -> None:
    """A node with the only decode instance dies: prefill gives up NPUs for decode."""
    scaler = Autoscaler(SLO, CONFIG)
    full = (prefill(4), decode(2, sequences=130))
    story(scaler, 120, full, rate=25, npus_free=0, npus_total=32)
    lost = (prefill(4), decode(1, target=2, starting=1, sequences=130))
    decision = story(scaler, 1, lost, begin=120, rate=25, npus_free=0, npus_total=24)
    yielded, kept = decision.targets
    assert (yielded.target, yielded.kind) == (2, ScaleKind.YIELD)
    assert yielded.reason.startswith(
        "4 wanted, 2 fit: 24 NPUs for all pools, 0 of 24 NPUs are free; decode comes first"
    )
    assert (kept.target, kept.kind) == (2, ScaleKind.STAY)
    after = (prefill(2, draining=2), lost[1])
    assert not story(scaler, 20, after, begin=121, rate=25, npus_free=0, npus_total=24).changes


def test_prefill_yields_to_decode_that_finds_no_place() -> None:
    scaler = Autoscaler(SLO, CONFIG)
    pools = (prefill(4), decode(2, target=3, starting=1, sequences=190))
    story(scaler, 60, (prefill(4), decode(2, sequences=130)), rate=25, npus_free=0, npus_total=32)
    decision = story(scaler, 2, pools, begin=60, rate=25, npus_free=0, npus_total=32)
    assert (decision.targets[0].target, decision.targets[0].kind) == (2, ScaleKind.YIELD)
    assert "instances of 8 NPUs have no place" in decision.targets[0].reason
    assert decision.targets[1].target == 3


def test_decode_gives_up_what_has_no_place_when_prefill_is_down_to_its_least() -> None:
    scaler = Autoscaler(SLO, CONFIG)
    pools = (prefill(1), decode(1, target=2, starting=1, sequences=120))
    decision = story(scaler, 40, pools, npus_free=0, npus_total=12)
    assert (decision.targets[1].target, decision.targets[1].kind) == (1, ScaleKind.FIT)
    assert "2 wanted, 1 fit" in decision.targets[1].reason


@pytest.mark.parametrize(("ttft", "tpot", "grows"), [(True, False, "prefill"), (False, True, "decode")])
def test_broken_promises_grow_the_pool_at_fault(ttft: bool, tpot: bool, grows: str) -> None:
    """Loads look fine, but SLOs are missed: the pool gets an instance and a lower load target from then on."""
    scaler = Autoscaler(SloConfig(), CONFIG)
    pools = (prefill(queued_tokens=25_000, waiting=9), decode(sequences=110))
    story(scaler, 100, pools, rate=12)
    grown = None
    for second in range(100, 160):
        kept = 10 * (second - 100)
        broken = {"ttft_met": kept, "tpot_met": kept, "ttft_missed": kept * ttft, "tpot_missed": kept * tpot}
        decision = story(scaler, 1, pools, begin=second, rate=12, **broken)
        if decision.changes:
            grown = decision.changes[0]
            break
    assert grown is not None
    assert (grown.pool, grown.target, grown.kind) == (grows, 3, ScaleKind.BURST)
    assert "99.5% are needed" in grown.reason


def test_one_pool_may_do_both() -> None:
    decision = story(Autoscaler(SLO, CONFIG), 120, (aggregated(1, sequences=60),), rate=6)
    assert (target(decision, "aggregated").target, len(decision.targets)) == (2, 1), "0.6 + 0.6 at 70 %"
    assert "uncached tokens/s" in decision.targets[0].reason
    assert "sequences ahead" in decision.targets[0].reason


def test_nothing_known_nothing_done() -> None:
    pools = (prefill(tokens_per_s=0.0), decode(max_sequences=0.0, kv_blocks_total=0))
    decision = story(Autoscaler(SLO, CONFIG), 400, pools, rate=50)
    assert not decision.changes
    assert [one.reason for one in decision.targets] == [
        "the speed of prefill is not known yet: 2 stay",
        "what decode can take is not known yet: 2 stay",
    ]
    late = story(Autoscaler(SLO, CONFIG), 10, pools, rate=50, queued=9, oldest_wait_s=9.0)
    assert (late.targets[0].target, late.targets[0].kind) == (3, ScaleKind.BURST)
