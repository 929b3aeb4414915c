"""Victims when a pool shrinks: whole hosts are emptied, or, if none can be released, the fullest host loses one."""

from collections import Counter
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.ids import NodeId
from serving.scaling.core.leavers import Placed, emptied, leavers, leavers_of_the_fullest

HOSTS = [NodeId(name) for name in "abcd"]
SIZES = {"prefill": 2, "decode": 4, "kvcache": 0}
HEAD = HOSTS[0]


@st.composite
def placements(draw: st.DrawFn) -> list[Placed]:
    where = draw(st.lists(st.tuples(st.sampled_from(sorted(SIZES)), st.sampled_from(HOSTS)), max_size=9))
    return [Placed(pool, f"{pool}{at}", host, SIZES[pool], float(at)) for at, (pool, host) in enumerate(where)]


def of(pool: str, host: str, name: str, since: float = 0.0) -> Placed:
    return Placed(pool, name, NodeId(host), SIZES[pool], since)


def without_npus(names: tuple[str, ...], placed: list[Placed]) -> int:
    """Hosts except the head whose NPUs are all free after these have left, and were not before."""
    before = {one.host for one in placed if one.npus}
    after = {one.host for one in placed if one.npus and one.name not in names}
    return len(before - after - {HEAD})


@settings(max_examples=25)
@given(placed=placements(), pool=st.sampled_from(sorted(SIZES)), count=st.integers(0, 6))
def test_so_many_leave_and_no_other_choice_empties_more_hosts(placed: list[Placed], pool: str, count: int) -> None:
    own = [one.name for one in placed if one.pool == pool]
    names = leavers(pool, count, placed, {HEAD})
    assert len(set(names)) == len(names) == min(count, len(own))
    assert set(names) <= set(own)
    choices = list(combinations(own, len(names)))
    assert len(emptied(names, placed, {HEAD})) == max(len(emptied(choice, placed, {HEAD})) for choice in choices)


@settings(max_examples=25)
@given(placed=placements(), pool=st.sampled_from(["decode", "prefill"]))
def test_a_single_one_frees_a_hosts_npus_if_any_can(placed: list[Placed], pool: str) -> None:
    names = leavers(pool, 1, placed, {HEAD})
    best = max((without_npus((one.name,), placed) for one in placed if one.pool == pool), default=0)
    assert without_npus(names, placed) == best


@settings(max_examples=25)
@given(placed=placements(), pool=st.sampled_from(sorted(SIZES)), count=st.integers(0, 6))
def test_the_head_gives_its_own_last(placed: list[Placed], pool: str, count: int) -> None:
    names = leavers(pool, count, placed, {HEAD})
    if any(one.name in names and one.host == HEAD for one in placed):
        assert all(one.name in names for one in placed if one.pool == pool and one.host != HEAD)


@settings(max_examples=25)
@given(placed=placements(), pool=st.sampled_from(sorted(SIZES)), count=st.integers(0, 6), seed=st.randoms())
def test_the_order_in_which_replicas_are_listed_says_nothing(
    placed: list[Placed], pool: str, count: int, seed: object
) -> None:
    shuffled = list(placed)
    seed.shuffle(shuffled)  # type: ignore[attr-defined]
    assert sorted(leavers(pool, count, shuffled, {HEAD})) == sorted(leavers(pool, count, placed, {HEAD}))


def test_what_one_replica_and_two_empty() -> None:
    placed = [
        of("decode", "b", "b1", 1.0), of("decode", "b", "b2", 2.0), of("prefill", "b", "p"),
        of("decode", "c", "c1"), of("decode", "c", "c2", 3.0), of("decode", "d", "d1"), of("kvcache", "d", "k"),
    ]  # fmt: skip
    assert leavers("decode", 1, placed) == ("d1",), "its host keeps a memory server only"
    assert sorted(leavers("decode", 2, placed)) == ["c1", "c2"], "this host keeps nothing"
    assert emptied(("c1", "c2"), placed) == (NodeId("c"),)
    assert leavers("kvcache", 1, placed) == ("k",)


def test_of_equals_the_newest_leaves() -> None:
    placed = [of("decode", "b", "old", 1.0), of("decode", "b", "new", 2.0), of("prefill", "b", "p")]
    assert leavers("decode", 1, placed) == ("new",)


@settings(max_examples=25)
@given(placed=placements(), pool=st.sampled_from(sorted(SIZES)), count=st.integers(0, 6))
def test_where_no_host_can_be_given_back_no_other_choice_leaves_a_pool_more_even(
    placed: list[Placed], pool: str, count: int
) -> None:
    own = {one.name: one.host for one in placed if one.pool == pool}
    names = leavers_of_the_fullest(pool, count, placed)
    assert len(set(names)) == len(names) == min(count, len(own))

    def most_on_a_host(gone: tuple[str, ...]) -> int:
        return max(Counter(host for name, host in own.items() if name not in gone).values(), default=0)

    assert most_on_a_host(names) == min(map(most_on_a_host, combinations(own, len(names))))


def test_a_replica_leaves_the_host_that_has_two() -> None:
    placed = [of("decode", "b", "b1"), of("decode", "b", "b2", 1.0), of("decode", "c", "c1", 2.0)]
    assert leavers_of_the_fullest("decode", 1, placed) == ("b2",)
    assert leavers_of_the_fullest("decode", 2, placed) == ("b2", "c1")
    assert leavers("decode", 1, placed) == ("c1",)
