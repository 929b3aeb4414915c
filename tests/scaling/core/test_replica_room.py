"""Number of replicas that fit: each whole on one node, together with all other replicas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.scaling.core.cluster_snapshot import SeenDeployment, SeenNode
from serving.scaling.core.replica_room import ReplicaSize, fits, offered, shortage, used
from serving.values.scaling_operations import MOST_REPLICAS
from tests.scaling.live.case import DRAINING, STARTING, deployment, nodes, replica, started

SIZES = {"prefill": ReplicaSize(2, 128), "decode": ReplicaSize(4, 256), "kvcache": ReplicaSize(0, 64)}


@pytest.mark.parametrize(
    ("pool", "most"),
    [("decode", 3), ("prefill", 6), ("kvcache", 26)],  # a: 2 NPUs left, b: 8; (1024 - 384) / 64 + 1024 / 64
)
def test_one_of_each_runs(pool: str, most: int) -> None:
    assert fits(pool, SIZES, started(), nodes()) == most


def test_npus_of_different_nodes_do_not_add_up() -> None:
    there = {"prefill": deployment(2, replica("p1", "a"), replica("p2", "b"))}
    assert fits("decode", SIZES, {**there, "decode": deployment(0)}, nodes(2, npus=6)) == 2
    assert fits("decode", SIZES, {**there, "decode": deployment(0)}, nodes(2, npus=5)) == 0, "3 and 3 are free"


def test_memory_bounds_as_well() -> None:
    assert fits("decode", SIZES, {"decode": deployment(0)}, nodes(1, npus=384, memory_mib=600)) == 2


def test_who_leaves_takes_no_room() -> None:
    staying = deployment(1, replica("d1"), replica("d2", "b", DRAINING), replica("d3", "b", DRAINING))
    assert fits("decode", SIZES, {**started(), "decode": staying}, nodes()) == 3


def test_a_lowered_target_makes_room_at_once() -> None:
    four = deployment(4, *(replica(f"p{i}", "a") for i in range(4)))
    alone = {"prefill": four, "decode": deployment(0)}
    assert fits("decode", SIZES, alone, nodes(1)) == 0
    assert fits("decode", SIZES, {**alone, "prefill": SeenDeployment(2, four.replicas)}, nodes(1)) == 1


def test_others_that_are_asked_for_have_their_room_kept() -> None:
    wanted = {"prefill": deployment(4, replica("p1"), replica("p2", None, STARTING)), "decode": deployment(0)}
    assert fits("decode", SIZES, wanted, nodes(1)) == 0
    assert fits("prefill", SIZES, wanted, nodes(1)) == 4


def test_replicas_of_a_lost_node_need_another_place() -> None:
    lost = {"decode": deployment(2, replica("d1", "a"), replica("d2", "gone"))}
    assert fits("decode", SIZES, lost, nodes(1)) == 2, "one is placed, and the lost one fits beside it"
    assert fits("prefill", SIZES, {**lost, "prefill": deployment(0)}, nodes(1)) == 0, "its new place is kept"


def test_never_more_than_the_configuration_allows() -> None:
    assert fits("kvcache", SIZES, {"kvcache": deployment(0)}, nodes(1, memory_mib=10**6)) == MOST_REPLICAS


FULL = deployment(3, *(replica(f"p{i}", "a") for i in range(3)))
"""Six of eight NPUs and 384 MiB."""


@pytest.mark.parametrize(
    ("pool", "there", "offering", "said"),
    [
        ("decode", {"prefill": FULL, "decode": deployment(0)}, nodes(1),
         "an instance needs 4 NPUs whole on one node, 2 are free"),
        ("prefill", {"prefill": FULL}, nodes(1, npus=7), "an instance needs 2 NPUs whole on one node, 1 is free"),
        ("decode", {"prefill": FULL, "decode": deployment(0)}, nodes(2),
         "an instance needs 4 NPUs whole on one node, at most 2 are free on any then"),
        ("decode", {"prefill": FULL, "decode": deployment(0)}, nodes(1, npus=16, memory_mib=600),
         "an instance needs 256 MiB of UB memory whole on one node, 216 MiB are free"),
        ("decode", {"decode": deployment(0)}, nodes(1, memory_mib=400),
         "an instance needs 256 MiB of UB memory whole on one node, 144 MiB are free then"),
        ("kvcache", {"prefill": FULL, "kvcache": deployment(0)}, nodes(1, memory_mib=400),
         "a memory server needs 64 MiB of UB memory whole on one node, 16 MiB are free"),
        ("decode", {"prefill": FULL, "decode": deployment(0)}, nodes(1, memory_mib=400),
         "an instance needs 4 NPUs and 256 MiB of UB memory whole on one node, 2 NPUs and 16 MiB are free"),
        ("decode", {"decode": deployment(0)}, (),
         "an instance needs 4 NPUs and 256 MiB of UB memory whole on one node, 0 NPUs and 0 MiB are free"),
        ("decode", {"prefill": deployment(1, replica("p1", None, STARTING)), "decode": deployment(0)}, nodes(1, npus=5),
         "an instance needs 4 NPUs whole on one node, 3 are free beside 1 replica still to be placed"),
    ],
)  # fmt: skip
def test_a_shortage_is_told_in_numbers(
    pool: str, there: dict[str, SeenDeployment], offering: tuple[SeenNode, ...], said: str
) -> None:
    assert shortage(pool, SIZES, there, offering) == said


def test_the_most_that_is_allowed_is_a_shortage_too() -> None:
    said = shortage("kvcache", SIZES, {"kvcache": deployment(0)}, nodes(1, memory_mib=10**6))
    assert said == f"{MOST_REPLICAS} are the most of any pool"


def test_use_counts_those_that_leave() -> None:
    leaving = {**started(), "decode": deployment(0, replica("d1", "a", DRAINING), replica("d2", None, STARTING))}
    assert used(SIZES, leaving) == ReplicaSize(2 + 4, 128 + 256 + 64)
    assert offered(nodes()) == ReplicaSize(16, 2048)


@given(free=st.lists(st.integers(0, 9), min_size=1, max_size=4), decodes=st.integers(0, 3), prefills=st.integers(0, 4))
def test_what_fits_can_be_packed_and_one_more_cannot(free: list[int], decodes: int, prefills: int) -> None:
    """Compared with a search that tries every placement."""
    there = {"decode": deployment(decodes), "prefill": deployment(prefills)}
    offering = tuple(type(node)(node.node, npus, 10_000) for node, npus in zip(nodes(len(free)), free, strict=True))
    most = fits("decode", SIZES, there, offering)
    if packable(free, most, prefills):
        assert not packable(free, most + 1, prefills)
    else:
        assert most == 0, "nothing more fits where the others do not"


def packable(free: list[int], fours: int, twos: int) -> bool:
    """Whether this many instances of four and of two NPUs fit."""
    if fours:
        return any(
            npus >= 4 and packable([*free[:i], npus - 4, *free[i + 1 :]], fours - 1, twos)
            for i, npus in enumerate(free)
        )
    return sum(npus // 2 for npus in free) >= twos
