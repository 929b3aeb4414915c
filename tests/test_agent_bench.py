"""The replay of `bench_agents`: times, and caches against naive ones."""

from pathlib import Path

import pytest

from serving.kvpool.core.eviction import make_policy
from serving.virtual.workload.open import open_workload
from tests.benchmarks.bench_agents import (
    Use,
    computed,
    hits_by_policy,
    hits_if_known,
    live_blocks,
    next_turns,
    next_uses,
    pool_of,
    replay,
)
from tests.cases.traces import AGENTS, asks, conversation, mooncake, written


def uses_of(folder: Path, text: str, block_tokens: int = 64) -> list[Use]:
    workload = open_workload(written(folder, text))
    return replay(list(workload.jobs or ()), workload.block_tokens, block_tokens)


@pytest.fixture
def uses(tmp_path: Path) -> list[Use]:
    """Thirty conversations whose prompts grow to twice a third of all that is live."""
    turns = [asks(40.0 * n, 640 + 320 * n) for n in range(12)]
    return uses_of(tmp_path, mooncake(*(conversation(f"c{n}", *turns[: 3 + n % 10]) for n in range(30))))


def test_the_replay_keeps_pauses_and_joins(tmp_path: Path) -> None:
    found = [use for use in uses_of(tmp_path, AGENTS) if use.stream[0] == 0]
    main = [use for use in found if use.stream == (0, 0)]
    assert main[1].at_s == pytest.approx(main[0].end_s + 3)
    assert main[2].at_s == pytest.approx(max(use.end_s for use in found if use.stream[1]) + 1)


def test_a_cache_that_knows_more_has_more_hits(uses: list[Use]) -> None:
    capacity = round(live_blocks(uses) / 3)
    lru = hits_by_policy(uses, capacity, make_policy("lru"))
    signals = hits_if_known(uses, capacity, next_turns(uses), supersedes=True)
    best = hits_if_known(uses, capacity, next_uses(uses))
    endless = hits_by_policy(uses, 1 << 30, make_policy("lru"))
    assert 0 < lru < signals <= best < endless
    assert endless == hits_if_known(uses, 1 << 30, next_uses(uses)) == naive(uses, 1 << 30)
    assert lru == naive(uses, capacity)


def naive(uses: list[Use], capacity: int) -> int:
    """Hits of a list in order of use."""
    order: list[int] = []
    hits = 0
    for use in uses:
        hits += next((place for place, block in enumerate(use.numbers) if block not in order), len(use.numbers))
        for block in reversed(use.numbers):
            if block in order:
                order.remove(block)
            elif len(order) >= capacity:
                order.pop(0)
            order.append(block)
    return hits


def test_an_ssd_tier_saves_computing(uses: list[Use]) -> None:
    live, asked = live_blocks(uses), sum(use.tokens for use in uses)
    without, with_ssd = (computed(uses, pool_of(live, 1 / 3, ssd, 1 << 20), 64) for ssd in (0.0, 2.0))
    assert with_ssd < without < asked
