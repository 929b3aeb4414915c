"""Missed SLOs, load targets and scale-down backoff."""

import pytest

from serving.config.scaling import SloConfig
from serving.scaling.core.demand import Outlook
from serving.scaling.core.pool_planner import FALL, FORGET_S, LEAST, MOST, RISE_PER_S, LoadTarget
from serving.scaling.core.prompt_work import PromptWork
from serving.scaling.core.scale_down_backoff import ScaleDownBackoff
from serving.scaling.core.slo_attribution import MEANT, SloAttribution, SloWindow
from serving.values.signals import PoolSignals, Traffic
from tests.scaling.core.looks import aggregated, decode, gains, look, needs, prefill


def test_a_promise_is_broken_when_chance_cannot_be_it() -> None:
    watch, seen = SloWindow(0.99), []
    assert SloWindow(0.99).share is None
    for met, missed in ((5, 4), (91, 0), (900, 0)):
        watch.add(met, missed, 1.0)
        seen.append((watch.answers, watch.broken))
    assert seen == [(9, False), (100, True), (1000, False)], "nine answers prove nothing"
    assert watch.share == 0.996
    watch.clear()
    assert watch.answers == 0


def test_a_promise_is_judged_by_the_last_minute() -> None:
    watch = SloWindow(0.99)
    watch.add(0, 50, 1.0)
    assert watch.broken
    for _ in range(60):
        watch.add(1, 0, 1.0)
    assert watch.share == 1.0
    assert not watch.broken


def test_a_bad_minute_in_an_hour_that_kept_the_promise_is_no_reason_to_grow() -> None:
    watch = SloWindow(0.99)
    watch.add(10_000, 0, 600.0)
    watch.clear()
    told = []
    for met, missed in ((80, 20), (0, 100)):
        watch.add(met, missed, 5.0)
        told.append(watch.broken)
    watch.clear()
    assert [*told, watch.broken] == [False, True, False]


def test_a_lesson_lowers_the_aim_and_is_forgotten() -> None:
    load_target = LoadTarget(0.7)
    assert load_target.utilisation == 0.7
    load_target.learn(0.6)
    assert load_target.utilisation == pytest.approx(0.57)
    load_target.learn(0.65)
    assert load_target.utilisation == pytest.approx(0.5415), "the aim was already lower than this load"
    for _ in range(20):
        load_target.learn(0.1)
    assert load_target.utilisation == pytest.approx(0.7 * LEAST)
    load_target.forget(FORGET_S)
    assert load_target.utilisation == pytest.approx(0.7 - 0.7 * (1 - LEAST) / 2.71828, rel=1e-3)


def test_promises_that_are_kept_raise_the_aim_as_long_as_fewer_break_than_may() -> None:
    load_target = LoadTarget(0.8)
    load_target.kept(0.8, 0.0, 1800.0)
    assert load_target.utilisation == pytest.approx(0.8 * (1 + 1800 * RISE_PER_S))
    risen = load_target.utilisation
    load_target.kept(0.8, 1.0, 1800.0)
    assert load_target.utilisation == risen, "just as many as may"
    load_target.kept(0.5, 0.0, 1800.0)
    load_target.kept(0.5, 9.0, 1800.0)
    assert load_target.utilisation == risen, "half empty instances say nothing"
    load_target.kept(0.84, 1.5, 600.0)
    assert load_target.utilisation == pytest.approx(risen - 0.8 * 0.5 * 600 * RISE_PER_S)
    before = load_target.utilisation
    load_target.kept(0.84, 50.0, 100.0)
    assert load_target.utilisation == pytest.approx(before - 0.8 * FALL * 100 * RISE_PER_S)


def test_the_aim_rises_and_falls_within_bounds() -> None:
    load_target = LoadTarget(0.8)
    for _ in range(100):
        load_target.kept(2.0, 0.0, 3600.0)
    assert load_target.utilisation == pytest.approx(0.8 * MOST)
    load_target.learn(0.9)
    assert load_target.utilisation == pytest.approx(0.9 * 0.95), "what broke them counts more than what was kept"
    for _ in range(100):
        load_target.kept(2.0, 9.0, 3600.0)
        load_target.forget(3600.0)
    assert load_target.utilisation == pytest.approx(0.8), "below what is configured only lessons lead"


def test_what_is_missed_is_counted_in_parts_of_what_may_be() -> None:
    blame = SloAttribution(SloConfig(attainment=0.99))
    assert blame.spent == 0.0
    blame.see(gains(ttft_met=1990, ttft_missed=10, tpot_met=1990, tpot_missed=10))
    assert blame.spent == pytest.approx(1 / MEANT), "a request must get both"
    blame.clear()
    assert blame.spent == pytest.approx(1 / MEANT), "a change of the pool is part of the trend"
    blame.see(gains(ttft_met=2000, tpot_met=2000))
    assert blame.spent == pytest.approx(0.5 / MEANT)
    for _ in range(600):
        blame.see(gains(tpot_met=1))
    assert blame.spent == 0.0, "that was long ago"


def test_only_loads_that_should_have_been_fine_teach() -> None:
    load_target = LoadTarget(0.7)
    assert load_target.new(0.6)
    assert not load_target.new(0.8), "the plan asks for more anyway"
    assert not load_target.new(0.2), "more instances are not what is missing"


def taken_back(regret: ScaleDownBackoff, at: float, size: int, load: float, later: float, noise: float = 0.0) -> None:
    """A step down at `at`, up again 100 s later, and the load observed from then on."""
    regret.shrank(at, size, load)
    regret.grew(at + 100.0)
    for second in range(100, 290, 10):
        regret.see(at + second, later, noise)


def test_a_step_that_was_taken_back_wants_a_clearly_lower_load() -> None:
    regret = ScaleDownBackoff()
    regret.grew(0.0)
    regret.see(0.0, 1.0, 0.0)
    assert regret.least(0.0, 1.0) == 0
    taken_back(regret, 100.0, 3, 2.0, later=2.2)
    assert regret.least(400.0, 1.9) == 4
    assert regret.least(400.0, 1.7) == 0
    taken_back(regret, 400.0, 3, 1.7, later=1.9)
    assert regret.least(700.0, 1.6) == 4
    assert regret.least(700.0, 1.5) == 0
    assert regret.least(700.0 + 5 * 3600, 1.9) == 0


def test_what_is_nearly_as_small_is_nearly_as_wrong() -> None:
    regret = ScaleDownBackoff()
    taken_back(regret, 0.0, 20, 14.0, later=15.0)
    assert regret.least(300.0, 12.0) == 0
    assert regret.least(300.0, 12.7) == 21
    assert regret.least(300.0, 14.0) == 23
    assert regret.least(300.0, 30.0) == 25


def test_whether_it_was_wrong_shows_when_the_smooth_load_has_caught_up() -> None:
    regret = ScaleDownBackoff()
    regret.shrank(0.0, 3, 2.0)
    regret.grew(100.0)
    regret.see(101.0, 2.0, 0.0)
    assert regret.least(101.0, 2.0) == 0, "nobody knows yet"
    for second in range(110, 290, 10):
        regret.see(second, 2.6, 0.0)
    assert regret.least(290.0, 2.0) == 0, "there was more traffic"
    taken_back(regret, 1000.0, 3, 2.0, later=2.6, noise=0.2)
    assert regret.least(1300.0, 2.0) == 4, "no more than chance brings"


def test_the_next_step_down_judges_the_one_before() -> None:
    regret = ScaleDownBackoff()
    regret.shrank(0.0, 3, 2.0)
    regret.grew(60.0)
    regret.see(61.0, 2.0, 0.0)
    regret.shrank(120.0, 3, 2.0)
    assert regret.least(120.0, 2.0) == 4


def test_a_step_long_ago_and_a_pool_without_load_are_no_regret() -> None:
    regret = ScaleDownBackoff()
    regret.shrank(0.0, 3, 2.0)
    regret.grew(8000.0)
    regret.see(8300.0, 2.0, 0.0)
    assert regret.least(8300.0, 2.0) == 0
    taken_back(regret, 9000.0, 1, 0.0, later=0.0)
    assert regret.least(9300.0, 0.5) == 0


def judge(
    blame: SloAttribution, pool: PoolSignals, load: float | None, long_waits: bool = True, coming: int = 0
) -> str:
    prompts = PromptWork(2.0)
    for _ in range(10):
        prompts.see(gains(), pool, Traffic(queued_tokens=10**9 if long_waits else 0, queued=1))
    pools = (pool,) if pool.pool == "aggregated" else (pool, decode()) if pool.pool == "prefill" else (prefill(), pool)
    outlook = Outlook(5.0, pool.running, coming, 5.0)
    demand = needs(load)
    load_target = LoadTarget(0.7)
    found = blame.find(look(1000.0, pools), pools[pools.index(pool)], outlook, demand, load_target, prompts)
    assert (load_target.utilisation < 0.7) == (bool(found) and load is not None)
    return found


def broken(ttft: bool = False, tpot: bool = False) -> SloAttribution:
    blame = SloAttribution(SloConfig())
    blame.see(gains(ttft_met=80, ttft_missed=20 * ttft, tpot_met=80, tpot_missed=20 * tpot))
    return blame


def test_first_tokens_are_laid_to_prefill_and_later_ones_to_decode() -> None:
    assert judge(broken(ttft=True), prefill(), 1.2) == "first tokens within 2 s: 80.0% of 100, 99.5% are needed"
    assert judge(broken(ttft=True), decode(), 1.2) == ""
    assert judge(broken(tpot=True), decode(), 1.2) == "tokens within 50 ms: 80.0% of 100, 99.5% are needed"
    assert judge(broken(tpot=True), prefill(), 1.2) == ""
    assert judge(broken(), prefill(), 1.2) == ""
    assert "first tokens" in judge(broken(ttft=True), aggregated(), 1.2)
    assert "tokens within 50 ms" in judge(broken(tpot=True), aggregated(), 1.2)


def test_each_promise_may_cost_half_of_those_who_may_go_without() -> None:
    """1.2 % may be chance where 1 % may miss; but waits must leave part of the budget to slow tokens."""
    for missed, why in ((12, True), (4, False)):
        blame = SloAttribution(SloConfig(attainment=0.99))
        blame.see(gains(ttft_met=1000 - missed, ttft_missed=missed))
        assert bool(judge(blame, prefill(), 1.2)) == why


def test_nobody_is_blamed_whom_company_would_not_help() -> None:
    assert judge(broken(ttft=True), prefill(), 1.2, long_waits=False) == ""
    assert judge(broken(ttft=True), prefill(), 1.2, coming=1) == ""
    assert judge(broken(ttft=True), prefill(0), 1.2) == ""
    assert judge(broken(tpot=True), decode(), 0.2) == ""
    assert judge(broken(tpot=True), decode(), 3.0) == ""
    assert judge(broken(tpot=True), decode(), None) != ""


def test_what_was_found_is_forgotten() -> None:
    blame = broken(tpot=True)
    assert judge(blame, decode(), 1.2)
    assert judge(blame, decode(), 1.2) == ""
    blame = broken(tpot=True)
    blame.clear()
    assert judge(blame, decode(), 1.2) == ""
