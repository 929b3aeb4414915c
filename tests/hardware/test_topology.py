"""Topology: identities, distances and planes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.errors import TopologyError
from hardware.spec import Plane
from hardware.spec.catalog import CLOUDMATRIX384
from hardware.topology import CpuId, DieId, NodeId, NpuId, PathKind, Topology

SUPERNODE = Topology(CLOUDMATRIX384)
TWO_SUPERNODES = Topology(CLOUDMATRIX384, nodes=96)
DIES = tuple(TWO_SUPERNODES.die_ids())
ranks = st.integers(min_value=0, max_value=96 * 16 - 1)


def test_topologies_have_the_published_counts() -> None:
    assert len(list(SUPERNODE.node_ids())) == 48
    assert len(list(SUPERNODE.npu_ids())) == 384
    assert len(list(SUPERNODE.die_ids())) == 768
    assert len(list(SUPERNODE.cpu_ids())) == 192
    assert (SUPERNODE.supernodes, TWO_SUPERNODES.supernodes) == (1, 2)
    assert Topology(CLOUDMATRIX384, nodes=49).supernodes == 2
    small = Topology(CLOUDMATRIX384, nodes=1)
    assert [str(node) for node in small.node_ids()] == ["n0"]
    assert [str(npu) for npu in small.npu_ids()] == [f"n0.npu{index}" for index in range(8)]
    assert [str(die) for die in small.die_ids(NpuId(0, 7))] == ["n0.npu7.die0", "n0.npu7.die1"]
    assert [str(cpu) for cpu in small.cpu_ids(0)] == ["n0.cpu0", "n0.cpu1", "n0.cpu2", "n0.cpu3"]
    assert list(small.npu_ids(0)) == list(small.npu_ids())
    dies = list(SUPERNODE.die_ids())
    assert dies == sorted(dies)
    with pytest.raises(TopologyError, match="at least one node"):
        Topology(CLOUDMATRIX384, nodes=0)


@given(ranks)
def test_names_are_parsed_back(rank: int) -> None:
    die = DIES[rank]
    assert DieId.parse(str(die)) == die
    assert NpuId.parse(str(die.npu)) == die.npu


@given(ranks, ranks)
def test_distance_is_symmetric(left: int, right: int) -> None:
    one, other = DIES[left], DIES[right]
    assert TWO_SUPERNODES.path(one, other) is TWO_SUPERNODES.path(other, one)
    for plane in Plane:
        assert TWO_SUPERNODES.joins(plane, one, other) == TWO_SUPERNODES.joins(plane, other, one)


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("n0.npu0.die0", PathKind.SAME_DIE),
        ("n0.npu0.die1", PathKind.SAME_NPU),
        ("n0.npu1.die0", PathKind.INTRA_NODE),
        ("n47.npu0.die0", PathKind.INTER_NODE),
        ("n48.npu0.die0", PathKind.INTER_SUPERNODE),
    ],
)
def test_path_kinds(target: str, kind: PathKind) -> None:
    assert TWO_SUPERNODES.path(DieId(NpuId(0, 0), 0), DieId.parse(target)) is kind


def test_planes_join_what_the_paper_says_and_others_are_refused() -> None:
    npu, far_npu, foreign_npu = NpuId(0, 0), NpuId(47, 7), NpuId(48, 0)
    cpu, far_cpu, foreign_cpu = CpuId(0, 0), CpuId(47, 3), CpuId(48, 0)
    joining = TWO_SUPERNODES.planes_joining
    assert joining(npu, far_npu) == (Plane.UB, Plane.RDMA)
    assert joining(npu, foreign_npu) == (Plane.RDMA,)
    assert joining(npu, far_cpu) == (Plane.UB,)
    assert joining(cpu, far_cpu) == (Plane.UB, Plane.VPC)
    assert joining(cpu, foreign_cpu) == (Plane.VPC,)
    assert joining(npu, foreign_cpu) == ()
    TWO_SUPERNODES.require_plane(Plane.RDMA, NpuId(0, 0), NpuId(48, 0))
    with pytest.raises(TopologyError, match="planes that do: rdma"):
        TWO_SUPERNODES.require_plane(Plane.UB, NpuId(0, 0), NpuId(48, 0))
    with pytest.raises(TopologyError, match="planes that do: none"):
        TWO_SUPERNODES.require_plane(Plane.VPC, NpuId(0, 0), CpuId(48, 0))
    ends: list[NodeId | NpuId | DieId | CpuId] = [NodeId(48), NpuId(48, 0), DieId(NpuId(48, 0), 1), CpuId(48, 0)]
    assert {TWO_SUPERNODES.supernode_of(end) for end in ends} == {1}


@pytest.mark.parametrize(
    "die",
    [DieId(NpuId(48, 0), 0), DieId(NpuId(0, 8), 0), DieId(NpuId(0, 0), 2), DieId(NpuId(-1, 0), 0)],
)
def test_a_die_outside_is_refused_everywhere(die: DieId) -> None:
    inside = DieId(NpuId(0, 0), 0)
    with pytest.raises(TopologyError, match="does not exist"):
        SUPERNODE.path(inside, die)
    with pytest.raises(TopologyError, match="does not exist"):
        SUPERNODE.path(die, inside)
    with pytest.raises(TopologyError, match="does not exist"):
        SUPERNODE.joins(Plane.UB, inside, die)


def test_other_ends_outside_and_names_of_another_form_are_refused() -> None:
    with pytest.raises(TopologyError, match="go from 0 to 3"):
        SUPERNODE.joins(Plane.VPC, CpuId(0, 0), CpuId(0, 4))
    with pytest.raises(TopologyError, match="go from 0 to 7"):
        list(SUPERNODE.die_ids(NpuId(0, 8)))
    for listing in (SUPERNODE.npu_ids, SUPERNODE.cpu_ids):
        with pytest.raises(TopologyError, match="nodes 0 to 47"):
            list(listing(48))
    with pytest.raises(TopologyError, match="nodes 0 to 47"):
        SUPERNODE.supernode_of(NodeId(48))
    for name in ("n0.npu0.die0", "npu0", "n0.cpu1", ""):
        with pytest.raises(TopologyError, match="no NPU name"):
            NpuId.parse(name)
    for name in ("n0.npu0", "n0.npu0.die", "x"):
        with pytest.raises(TopologyError, match="no die name"):
            DieId.parse(name)
