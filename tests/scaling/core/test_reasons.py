"""Every reason of every scaler has the deciding number, next to its limit."""

import random
import re
from collections.abc import Generator, Sequence
from typing import Any, Literal

import pytest

from serving.config.scaling import AutoscalerConfig
from serving.scaling.core.autoscaler import make_scaler
from serving.scaling.core.decision import PoolTarget, ScaleKind
from serving.scaling.core.pool_planner import PoolPlanner
from serving.values.signals import ScalingSignals, Traffic
from tests.scaling.core.looks import SLO, cache, decode, look, needs, prefill

NUMBER = re.compile(r"\d+(?:\.\d+)?")


Walk = Generator[ScalingSignals, Sequence[PoolTarget], None]


def walk(seed: int, seconds: int) -> Walk:
    """Ticks of a system whose traffic, hardware and bounds change at random every 40 s; it executes all commands."""
    rng = random.Random(seed)
    sizes = {"prefill": 2, "decode": 2, "kvcache": 2}
    arrived = missed = hits = evicted = 0
    for second in range(seconds):
        if second % 40 == 0:
            rate, late, stay = rng.choice((0, 0, 5, 40, 200)), rng.random() < 0.3, rng.choice((1, 4, 20))
            low, high = rng.choice(((0, 20), (1, 20), (3, 6)))
            npus, fill, useful = rng.choice((20, 30, 384)), rng.choice((0.2, 0.95)), rng.random()
            held = second + 20.0 if rng.random() < 0.1 else 0.0
        arrived, missed = arrived + rate, missed + rate * late
        hits, evicted = hits + round(1000 * useful), evicted + 1000 * (fill > 0.9)
        counts = {"arrived": arrived, "finished": max(0, arrived - rate), "queued": rate // 10}
        tokens = dict.fromkeys(("arrived_tokens", "uncached_tokens"), 1000 * arrived)
        kept = dict.fromkeys(("ttft_met", "tpot_met"), arrived - missed)
        traffic = Traffic(**counts, **tokens, **kept, ttft_missed=missed, tpot_missed=missed)
        bounds: dict[str, Any] = {"low": low, "high": high, "held_until": held}
        inside, blocks = rate * stay, min(5 * rate * stay, 1000 * sizes["decode"])
        pools = (
            prefill(sizes["prefill"], waiting=rate, queued_tokens=4000 * rate, sequences=rate, **bounds),
            decode(sizes["decode"], sequences=inside, kv_blocks_used=blocks, **bounds),
        )
        found = {"looked_up_tokens": 1000 * (second + 1), "hit_tokens": hits, "evicted_bytes": evicted}
        used = round(fill * 1000 * sizes["kvcache"])
        servers = cache(sizes["kvcache"], bytes_used=used, **found, low=min(low, 2), high=4)
        free = max(0, npus - 4 * sizes["prefill"] - 8 * sizes["decode"])
        sizes |= {
            one.pool: one.target for one in (yield look(float(second), pools, traffic, free, npus, cache=servers))
        }


def decisions(policy: Literal["requests", "slo"], seed: int, seconds: int = 700) -> list[PoolTarget]:
    config = AutoscalerConfig(policy=policy, hold_s=30.0, idle_to_zero_s=25.0, requests_per_instance=10.0)
    scaler, found, looks = make_scaler(policy, SLO, config), list[PoolTarget](), walk(seed, seconds)
    signals = next(looks)
    while True:
        decision = scaler.decide(signals)
        found += decision.targets
        try:
            signals = looks.send(decision.targets)
        except StopIteration:
            return found


@pytest.mark.parametrize("policy", ["requests", "slo"])
@pytest.mark.parametrize("seed", range(2))
def test_every_change_has_the_number_that_decided_and_its_limit(policy: Literal["requests", "slo"], seed: int) -> None:
    told = decisions(policy, seed)
    kinds = {one.kind for one in told if one.before != one.target}
    assert len(kinds) >= 2, "the walk shows something"
    for one in told:
        numbers = NUMBER.findall(one.reason)
        assert numbers, one
        if one.before != one.target:
            assert len(numbers) >= 2 or one.kind is ScaleKind.WAKE, f"no limit beside the value: {one}"
        if one.kind is ScaleKind.FIT or "allowed" in one.reason:
            assert re.search(r"\d+ wanted, \d+ fit: \d+ NPUs|\d+ to \d+ (servers )?are allowed", one.reason), one
        if one.kind is ScaleKind.ZERO:
            assert re.fullmatch(r"no request for \d+ s, idle_to_zero_s is 25", one.reason), one


def asked(planner: PoolPlanner, now: float, load: float, size: int, **more: int) -> str:
    pool = prefill(size, **more)
    planner.outlook(now, pool, 5.0)
    return planner.wanted(now, pool, needs(load)).reason


@pytest.mark.parametrize(
    ("size", "low", "load", "reason"),
    [
        (9, 1, 4.9, "load: load 4.90 at 70%; 7 would have done for 60 s"),
        (9, 1, 2.0, "load: load 2.00 at 70%; 3 would have done for 60 s, but no more than 3 of 9 leave at a time"),
        (9, 1, 0.2, "load: load 0.20 at 70%; 1 would have done for 60 s, but twice the 1 that are needed now stay"),
        (4, 3, 1.0, "load: load 1.00 at 70%; 2 would have done for 60 s, 3 to 20 are allowed"),
    ],
)
def test_a_step_down_says_what_bounded_it(size: int, low: int, load: float, reason: str) -> None:
    planner = PoolPlanner(0.7, 60.0)
    told = [asked(planner, float(now), load, size, low=low) for now in range(70)]
    assert reason in told


def test_a_size_that_was_regretted_is_said_with_its_load() -> None:
    planner = PoolPlanner(0.7, 60.0)
    planner._backoff._limits[5] = (2.5, 0.0)
    told = [asked(planner, float(now), 2.8, 9) for now in range(70)]
    assert told[-1] == (
        "load: load 2.80 at 70%; 4 would have done for 60 s, "
        "but fewer than 6 were too small at a load of 2.50 or more before"
    )
