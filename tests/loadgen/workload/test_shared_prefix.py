"""Tenants share exactly the tree's prefixes, in the configured proportions."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.plan import PromptMessage
from loadgen.workload.lengths import lengths
from loadgen.workload.shared_prefix import SharedPrefix
from loadgen.workload.words import Words

WORDS = Words(tuple(f" w{number}" for number in range(997)))
SHORT = lengths("3")


def prompts(source: SharedPrefix, count: int, seed: int = 1) -> list[tuple[int, list[str]]]:
    """(tenant, words) of this many first prompts."""
    rng = np.random.default_rng(seed)
    asker = source.open(rng)
    questions = [asker.first(rng, None) for _ in range(count)]
    return [(int(q.tenant.removeprefix("tenant-")), str(q.prompt).split()) for q in questions]


def common(one: list[str], other: list[str]) -> int:
    """Length of the common prefix."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def shared_by_tree(source: SharedPrefix, one: int, other: int) -> int:
    """Tokens in the common prefix of two tenants' system prompts: those of the levels from the root to their branch."""
    branching = source.branching or next(b for b in itertools.count(1) if b**source.depth >= source.tenants)
    levels = np.array_split(range(source.system_prompt_tokens), source.depth)
    height = range(source.depth - 1, -1, -1)
    return sum(
        len(level)
        for level, below in zip(levels, height, strict=True)
        if one // branching**below == other // branching**below
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), st.one_of(st.none(), st.integers(1, 4)), st.integers(8, 40))
def test_shared_beginnings_are_those_of_the_tree(
    tenants: int, depth: int, branching: int | None, n_tokens: int
) -> None:
    source = SharedPrefix(WORDS, SHORT, tenants, n_tokens, depth, branching)
    drawn = prompts(source, 40)
    for (one, first), (other, second) in itertools.combinations(drawn[:20], 2):
        shared = shared_by_tree(source, one, other)
        assert common(first, second) >= shared
        # Two random words are the same once in a thousand times, so that a little more can be shared by chance.
        assert common(first, second) <= shared + 2
    assert all(len(words) == n_tokens + 3 for _, words in drawn)


def shared_with(source: SharedPrefix, tenant: int) -> list[int]:
    """Words that each tenant's system prompt shares with one tenant's."""
    first = dict(reversed(prompts(source, 200)))
    length = source.system_prompt_tokens
    return [common(first[tenant][:length], first[other][:length]) for other in range(source.tenants)]


def test_depth_and_branching_decide_who_shares() -> None:
    source = SharedPrefix(WORDS, SHORT, tenants=8, system_prompt_tokens=12, depth=3)
    assert shared_with(source, 0) == [12, 8, 4, 4, 0, 0, 0, 0]
    assert shared_with(source, 6)[7] == 8
    assert shared_with(SharedPrefix(WORDS, SHORT, tenants=5), 2) == [0, 0, 256, 0, 0]
    source = SharedPrefix(WORDS, SHORT, tenants=6, system_prompt_tokens=10, depth=2, branching=3)
    assert shared_with(source, 0) == [10, 5, 5, 0, 0, 0]


@pytest.mark.parametrize("zipf", [0.0, 1.0, 2.5])
def test_popularity_follows_zipf(zipf: float) -> None:
    drawn = Counter(tenant for tenant, _ in prompts(SharedPrefix(WORDS, SHORT, 6, 6, zipf=zipf), 6000))
    weights = np.arange(1, 7.0) ** -zipf
    expected = 6000 * weights / weights.sum()
    chi2 = sum((drawn[tenant] - expected[tenant]) ** 2 / expected[tenant] for tenant in range(6))
    assert chi2 < 20.5  # 0.1 % level of 5 degrees of freedom


def test_seeds_roles_and_room() -> None:
    source = SharedPrefix(WORDS, SHORT, tenants=1, system_prompt_tokens=9)
    (_, one), (_, same), (_, other) = (prompts(source, 1, seed)[0] for seed in (1, 1, 2))
    assert one == same
    assert one[:9] != other[:9]
    rng = np.random.default_rng(0)
    asker = SharedPrefix(WORDS, SHORT, system_prompt_tokens=6, depth=2, system_role=True).open(rng)
    first = asker.first(rng, None)
    assert [len(part.content.split()) for part in first.prompt if isinstance(part, PromptMessage)] == [6, 3]
    assert (len(str(asker.later(rng).prompt).split()), asker.later(rng).tokens) == (3, 3)
    rng = np.random.default_rng(0)
    asker = SharedPrefix(WORDS, SHORT).open(rng)
    with pytest.raises(UsageError, match="leaves no room"):
        asker.first(rng, 256)
    assert asker.first(rng, 257).tokens == 257


@pytest.mark.parametrize(
    ("settings_", "match"),
    [
        ({"tenants": 0}, "at least one"),
        ({"depth": 0}, "at least one"),
        ({"branching": 0}, "at least one"),
        ({"system_prompt_tokens": 2, "depth": 3}, "cannot be split"),
        ({"zipf": -0.5}, "zipf"),
        ({"zipf": float("nan")}, "zipf"),
    ],
)
def test_impossible_trees_are_refused(settings_: dict[str, float], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        SharedPrefix(WORDS, SHORT, **settings_)  # type: ignore[arg-type]
