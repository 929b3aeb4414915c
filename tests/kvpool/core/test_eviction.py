"""Eviction order under each policy; and pinned entries are visited once, not on every call."""

from random import Random

import pytest

from serving.errors import LedgerError
from serving.kvpool.core.eviction import EvictionPolicy, HeapOrder, make_policy
from serving.kvpool.core.queue_order import QueueOrder

POLICIES = ["lru", "lfu", "fifo", "cost"]


def filled(name: str, count: int = 4) -> EvictionPolicy:
    policy = make_policy(name)
    for version in range(count):
        policy.insert(version, nbytes=1 << 20, cost=1.0)
    return policy


def everything(policy: EvictionPolicy) -> list[int]:
    return policy.coldest(1000, lambda _version: True)


def test_lru_forgets_what_was_used_longest_ago() -> None:
    policy = filled("lru")
    policy.touch([0, 2])
    assert everything(policy) == [1, 3, 0, 2]


def test_fifo_does_not_care_about_use() -> None:
    policy = filled("fifo")
    policy.touch([0, 1])
    assert everything(policy) == [0, 1, 2, 3]


def test_lfu_forgets_what_was_used_least_and_of_equals_the_oldest() -> None:
    policy = filled("lfu")
    policy.touch([0, 0, 1, 3])
    assert everything(policy) == [2, 1, 3, 0]


def test_cost_forgets_large_cheap_ones_first() -> None:
    policy = make_policy("cost")
    policy.insert(1, nbytes=1 << 20, cost=1.0)
    policy.insert(2, nbytes=1 << 10, cost=1.0)
    policy.insert(3, nbytes=1 << 20, cost=2.0)
    assert everything(policy) == [1, 3, 2]
    policy.touch([1, 1])
    assert everything(policy) == [3, 1, 2]


def test_cost_ages_so_that_old_fame_ends() -> None:
    policy = make_policy("cost")
    policy.insert(0, nbytes=1, cost=5.0)
    policy.touch([0])  # worth 10
    for version in range(1, 10):
        policy.insert(version, nbytes=1, cost=1.0)
        assert policy.coldest(1, lambda _version: True) == [version]
        policy.remove(version)
    policy.insert(10, nbytes=1, cost=1.0)
    assert policy.coldest(1, lambda _version: True) == [0]


@pytest.mark.parametrize("name", POLICIES)
def test_the_limit_is_kept_and_asking_changes_nothing(name: str) -> None:
    policy = filled(name)
    assert policy.coldest(2, lambda _version: True) == [0, 1]
    assert everything(policy) == [0, 1, 2, 3]
    assert len(policy) == 4


@pytest.mark.parametrize("name", POLICIES)
def test_a_pinned_one_is_met_once_and_can_come_back(name: str) -> None:
    policy = filled(name)
    asked: list[int] = []

    def usable(version: int) -> bool:
        asked.append(version)
        return version > 1

    assert policy.coldest(1, usable) == [2]
    assert asked == [0, 1, 2]
    asked.clear()
    assert policy.coldest(1, usable) == [2]
    assert asked == [2]
    assert 0 in policy
    assert len(policy) == 4
    policy.put_back(0)
    policy.put_back(0)
    policy.put_back(3)  # it was never away
    assert everything(policy) == [0, 2, 3]
    policy.put_back(1)
    assert everything(policy) == [0, 1, 2, 3]
    policy.coldest(1, usable)
    policy.put_back(1)
    policy.put_back(0)
    assert policy.rank(0) < policy.rank(1) < policy.rank(2)
    assert len(policy) == 4
    assert everything(policy) == [0, 1, 2, 3]


@pytest.mark.parametrize(("name", "last"), [("lru", True), ("lfu", True), ("cost", True), ("fifo", False)])
def test_use_brings_one_back_that_was_set_aside(name: str, last: bool) -> None:
    policy = filled(name)
    assert policy.coldest(1, lambda version: version != 0) == [1]
    policy.touch([0])
    policy.put_back(0)
    assert everything(policy) == ([1, 2, 3, 0] if last else [0, 1, 2, 3])
    assert (policy.rank(0) > policy.rank(3)) == last


@pytest.mark.parametrize("name", POLICIES)
def test_one_that_is_set_aside_can_be_removed(name: str) -> None:
    policy = filled(name)
    policy.coldest(4, lambda version: version != 0)
    policy.remove(0)
    policy.remove(0)
    policy.put_back(0)
    policy.touch([0])
    assert 0 not in policy
    assert everything(policy) == [1, 2, 3]


@pytest.mark.parametrize("name", POLICIES)
def test_a_version_that_returns_is_new(name: str) -> None:
    policy = filled(name)
    policy.touch([0])
    policy.remove(0)
    policy.insert(0, nbytes=1 << 20, cost=1.0)
    assert sorted(everything(policy)) == [0, 1, 2, 3]
    assert everything(policy)[-1] == 0


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_refused(name: str) -> None:
    policy = filled(name)
    with pytest.raises(LedgerError, match="twice"):
        policy.insert(0, nbytes=1, cost=1.0)
    with pytest.raises(LedgerError, match="not in the order"):
        policy.rank(99)


def test_only_four_policies_exist() -> None:
    with pytest.raises(LedgerError, match="no eviction policy"):
        make_policy("random")


@pytest.mark.parametrize("name", POLICIES)
def test_ranks_and_order_agree_after_anything(name: str) -> None:
    chance = Random(name)
    policy = make_policy(name)
    alive: list[int] = []
    pinned: set[int] = set()
    for step in range(3000):
        match chance.choice(("insert", "touch", "touch", "remove", "pin", "unpin", "ask")):
            case "insert":
                policy.insert(step, nbytes=chance.choice([1, 3, 700]), cost=chance.choice([1.0, 2.0]))
                alive.append(step)
            case "touch":
                policy.touch(chance.choices(alive, k=3) if alive else [])
            case "remove" if alive:
                gone = alive.pop(chance.randrange(len(alive)))
                pinned.discard(gone)
                policy.remove(gone)
            case "pin" if alive:
                pinned.add(chance.choice(alive))
            case "unpin" if pinned:
                policy.put_back(pinned.pop())
            case "ask":
                order = policy.coldest(1000, lambda version: version not in pinned)
                assert sorted(order) == sorted(set(alive) - pinned)
                assert len(policy) == len(alive)
                assert all(version in policy for version in alive)
                assert order == sorted(order, key=policy.rank)


@pytest.mark.parametrize("name", ["lfu", "cost"])
def test_many_outdated_items_are_put_right_at_once(name: str) -> None:
    policy = filled(name, 4000)
    assert isinstance(policy, HeapOrder)
    policy.touch(range(1, 4000))
    assert policy.coldest(3, lambda _version: True) == [0, 1, 2]
    for version in range(3990):
        policy.remove(version)
    assert len(policy._heap) <= 2 * len(policy) + HeapOrder.REBUILD_AFTER
    assert everything(policy) == list(range(3990, 4000))


def test_many_uses_keep_the_order_and_no_void_places() -> None:
    policy = filled("lru")
    assert policy.coldest(1, lambda version: version != 0) == [1]
    for _ in range(3000):
        policy.touch([3, 1])
    assert isinstance(policy, QueueOrder)
    assert len(policy._log) < 3000
    assert everything(policy) == [2, 3, 1]
    policy.put_back(0)
    assert everything(policy) == [0, 2, 3, 1]


@pytest.mark.parametrize("name", ["lru", "fifo", "lfu", "cost"])
def test_two_versions_exchange_their_places_cooled_or_not(name: str) -> None:
    policy = make_policy(name)
    for version in range(5):
        policy.insert(version, nbytes=1, cost=1.0)
    policy.cool(3)
    assert policy.coldest(5, lambda _version: True) == [3, 0, 1, 2, 4]
    policy.swap(3, 1)
    policy.swap(0, 4)
    assert policy.coldest(5, lambda _version: True) == [1, 4, 3, 2, 0]
    policy.coldest(1, lambda version: version != 1)  # sets it aside
    policy.swap(1, 2)
    assert policy.coldest(5, lambda _version: True) == [2, 4, 3, 0]
    policy.put_back(1)
    assert policy.coldest(5, lambda _version: True) == [2, 4, 3, 1, 0]
