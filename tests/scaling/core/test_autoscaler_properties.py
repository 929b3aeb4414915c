"""Properties of every history: bounds, budget, holds, replay, and more load never meaning fewer instances."""

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from serving.config.scaling import AutoscalerConfig, SloConfig
from serving.scaling.core.autoscaler import make_scaler
from serving.scaling.core.decision import ScaleKind, Scaler, ScalingDecision
from serving.scaling.core.demand import Demand, Outlook
from serving.scaling.core.pool_planner import PoolPlanner
from serving.scaling.core.prompt_work import PromptWork
from serving.values.signals import CacheSignals, PoolSignals, ScalingSignals, Traffic
from tests.scaling.core.looks import gains, needs, prefill

CONFIG = AutoscalerConfig(policy="slo", hold_s=20.0, idle_to_zero_s=30.0)
COUNT = st.integers(0, 6)
COUNTERS = tuple(name for name in Traffic.__struct_fields__ if name not in ("queued", "queued_tokens", "oldest_wait_s"))


@st.composite
def pools(draw: st.DrawFn, name: str, held: bool) -> PoolSignals:
    low = draw(st.integers(0, 2))
    target, running = draw(COUNT), draw(COUNT)
    total = running * 1000
    return PoolSignals(
        pool=name,
        target=target,
        running=running,
        starting=draw(COUNT),
        draining=draw(st.integers(0, 2)),
        npus_per_instance=4 if name == "prefill" else 8,
        queued_tokens=draw(st.integers(0, 500_000)),
        waiting=draw(st.integers(0, 50)),
        sequences=draw(st.integers(0, 600)),
        kv_blocks_used=draw(st.integers(0, total)),
        kv_blocks_total=total,
        tokens_per_s=draw(st.sampled_from([0.0, 1_000.0, 20_000.0])),
        max_sequences=draw(st.sampled_from([0.0, 16.0, 100.0])),
        low=low,
        high=draw(st.integers(max(1, low), 12)),
        held_until=1e9 if held and draw(st.booleans()) else 0.0,
    )


@st.composite
def caches(draw: st.DrawFn, totals: dict[str, int]) -> CacheSignals:
    running, low = draw(COUNT), draw(st.integers(0, 2))
    return CacheSignals(
        target=draw(COUNT),
        running=running,
        starting=draw(COUNT),
        draining=draw(COUNT),
        bytes_used=draw(st.integers(0, 1000 * running)),
        bytes_total=1000 * running,
        looked_up_tokens=totals["arrived_tokens"],
        hit_tokens=totals["arrived_tokens"] - totals["uncached_tokens"],
        evicted_bytes=totals["finished"],
        low=low,
        high=draw(st.integers(max(1, low), 8)),
    )


@st.composite
def histories(draw: st.DrawFn) -> list[ScalingSignals]:
    names = draw(st.sampled_from([("prefill", "decode"), ("aggregated",)]))
    held, cached = draw(st.booleans()), draw(st.booleans())
    now, totals, looks = 0.0, dict.fromkeys(COUNTERS, 0), []
    for _ in range(draw(st.integers(1, 8))):
        now += draw(st.sampled_from([0.0, 1.0, 7.0, 40.0]))
        for name in COUNTERS:
            totals[name] += draw(st.integers(0, 100_000 if "tokens" in name else 100))
        totals["uncached_tokens"] = min(totals["uncached_tokens"], totals["arrived_tokens"])
        waits = {"queued": draw(COUNT), "queued_tokens": draw(st.integers(0, 9999))}
        looks.append(
            ScalingSignals(
                now=now,
                pools=tuple(draw(pools(name, held)) for name in names),
                cache=draw(caches(totals)) if cached else None,
                traffic=Traffic(**totals, **waits, oldest_wait_s=draw(st.sampled_from([0.0, 0.5, 9.0]))),
                npus_free=draw(st.sampled_from([0, 4, 30, 300])),
                npus_total=draw(st.sampled_from([12, 40, 384])),
                start_s=draw(st.sampled_from([0.0, 5.0, 60.0])),
            )
        )
    return looks


def scaler(policy: str) -> Scaler:
    return make_scaler("slo" if policy == "slo" else "requests", SloConfig(), CONFIG)


def check(signals: ScalingSignals, decision: ScalingDecision, policy: str) -> None:
    """Check one tick."""
    assert [target.pool for target in decision.targets[: len(signals.pools)]] == [pool.pool for pool in signals.pools]
    free_to_change = []
    for pool, target in zip(signals.pools, decision.targets, strict=False):
        assert target.before == pool.target
        assert target.reason
        if pool.held_until > signals.now:
            assert (target.target, target.kind) == (pool.target, ScaleKind.HELD)
            continue
        free_to_change.append((pool, target.target))
        assert 0 <= target.target <= pool.high
        assert (target.kind is ScaleKind.STAY) == (target.target == pool.target)
    taken = {
        pool.pool: target.target * pool.npus_per_instance
        for pool, target in zip(signals.pools, decision.targets, strict=False)
    }
    held = sum(taken[pool.pool] for pool in signals.pools if pool.held_until > signals.now)
    kept = sum(min(pool.low, pool.target) * pool.npus_per_instance for pool, _ in free_to_change) if held else 0
    frozen = [pool for pool in signals.pools if pool.held_until > signals.now]
    placed = sum(min(pool.target, pool.running) * pool.npus_per_instance for pool in frozen)
    assert sum(taken.values()) - held <= max(signals.npus_total - placed, kept), "what a hold lacks is nobody's"
    if held and policy == "slo":
        assert all(size >= min(pool.low, pool.target, pool.running) for pool, size in free_to_change if pool.low)
    least = sum(pool.low * pool.npus_per_instance for pool, _ in free_to_change)
    planned = sum(pool.target * pool.npus_per_instance for pool in signals.pools)
    claimed = sum(pool.starting * pool.npus_per_instance for pool in signals.pools) + planned
    if least + held <= min(signals.npus_total, planned) and claimed - planned <= signals.npus_free:
        assert all(size >= pool.low for pool, size in free_to_change) or _missing(signals) > signals.npus_free
    grown = sum(max(0, size - pool.target) * pool.npus_per_instance for pool, size in free_to_change)
    given = sum(max(0, pool.target - size) * pool.npus_per_instance for pool, size in free_to_change)
    leaving = sum(pool.draining * pool.npus_per_instance for pool in signals.pools)
    assert grown <= signals.npus_free + leaving + given
    if signals.cache is not None:
        assert signals.cache.low <= decision.targets[-1].target <= signals.cache.high


def _missing(signals: ScalingSignals) -> int:
    return sum(max(0, pool.target - pool.running) * pool.npus_per_instance for pool in signals.pools)


@settings(max_examples=20)
@given(histories(), st.sampled_from(["slo", "requests"]))
def test_bounds_budget_and_holds(looks: list[ScalingSignals], policy: str) -> None:
    one = scaler(policy)
    for signals in looks:
        decision = one.decide(signals)
        if policy == "slo" or signals.cache is None:
            check(signals, decision, policy)


@settings(max_examples=20)
@given(histories(), st.sampled_from(["slo", "requests"]))
def test_the_same_signals_give_the_same_decisions(looks: list[ScalingSignals], policy: str) -> None:
    first, second = scaler(policy), scaler(policy)
    assert [first.decide(signals) for signals in looks] == [second.decide(signals) for signals in looks]


def wanted(demand: Demand, target: int) -> int:
    planner = PoolPlanner(0.7, 20.0)
    pool, answers = prefill(target), []
    for now in (0.0, 15.0, 30.0):
        planner.outlook(now, pool, 5.0)
        answers.append(planner.wanted(now, pool, demand).target)
    return answers[-1]


LOAD = st.floats(0.0, 12.0)


@given(LOAD, LOAD, st.floats(0.0, 2.0), LOAD, st.floats(0.0, 15.0), st.integers(1, 15))
def test_more_load_never_means_fewer_instances(
    load: float, more: float, noise: float, steady: float, urgent: float, target: int
) -> None:
    less = wanted(needs(load, urgent, noise, steady=steady), target)
    assert less <= wanted(needs(load + more, urgent, noise, steady=steady + more), target)
    assert less <= wanted(needs(load, urgent + more, noise, steady=steady), target)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 4), st.integers(1, 4))
def test_a_longer_queue_is_never_less_urgent(queue: int, more: int, coming: int, running: int) -> None:
    work, outlook = PromptWork(2.0), Outlook(5.0, running, coming, 2.0)
    for _ in range(30):
        work.see(gains(arrived=5, arrived_tokens=5_000, uncached_tokens=5_000), prefill(), Traffic())
    short = work.demand(prefill(running, queued_tokens=queue), Traffic(), outlook).urgent
    assert short <= work.demand(prefill(running, queued_tokens=queue + more), Traffic(), outlook).urgent
    sooner = Outlook(5.0, running, coming + 1, 2.0)
    assert work.demand(prefill(running, queued_tokens=queue), Traffic(), sooner).urgent <= short


def sizes(rate: float, slope: float, high: int = 50) -> list[int]:
    """Targets of a prefill pool whose requests of 1,000 tokens arrive evenly, at a rate that has risen for 200 s."""
    work, planner, target, all_targets = PromptWork(2.0), PoolPlanner(1.0, 60.0), 1, []
    for now in range(400):
        come = round(1000 * (rate + slope * min(now, 200)))
        pool = prefill(target, high=high)
        work.see(gains(arrived=come // 1000, arrived_tokens=come, uncached_tokens=come), pool, Traffic())
        outlook = planner.outlook(float(now), pool, 35.0)
        target = planner.wanted(float(now), pool, work.demand(pool, Traffic(), outlook)).target
        all_targets.append(target)
    return all_targets


@settings(max_examples=5, phases=[Phase.generate])
@given(st.floats(0.0, 60.0), st.floats(0.0, 0.5), st.floats(1.0, 3.0), st.integers(1, 20))
def test_more_traffic_never_means_fewer_instances_and_even_traffic_no_changes(
    rate: float, slope: float, more: float, high: int
) -> None:
    less, greater = sizes(rate, slope), sizes(rate * more, slope * more)
    assert less[-1] <= greater[-1]
    assert less[-1] >= (rate + 200 * slope) / 10.0 - 0.01, "an instance computes ten requests a second"
    assert len(set(sizes(rate, 0.0)[200:])) == 1
    assert all(1 <= size <= high for size in sizes(rate, slope, high))
