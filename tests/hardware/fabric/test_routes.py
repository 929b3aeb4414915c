"""Links and routes of the CloudMatrix384 topology."""

import pytest

from hardware.errors import TopologyError
from hardware.fabric import Fabric, FabricError, TransferId
from hardware.fabric.routes import Direction, LinkId, link_id, rdma_links, route, source_rank, ub_links, ub_measure
from hardware.spec.catalog import CLOUDMATRIX384
from hardware.spec.plane import Plane
from hardware.topology import CpuId, DieId, NodeId, NpuId, Topology

TOPOLOGY = Topology(CLOUDMATRIX384)
DIES = tuple(TOPOLOGY.die_ids())


def test_ports_have_two_links_and_a_route_goes_out_of_one_and_into_another() -> None:
    ports = (*rdma_links(TOPOLOGY, DIES), *ub_links(TOPOLOGY, TOPOLOGY.npu_ids(), TOPOLOGY.cpu_ids()))
    links = {link.name: link for link in ports}
    assert len(links) == 2 * (768 + 384 + 192)
    for name, rate in {"rdma/n47.npu7.die1/in": 25e9, "ub/n0.npu0/out": 392e9, "ub/n3.cpu2/in": 160e9}.items():
        assert links[LinkId(name)].bytes_per_s == rate
        assert links[LinkId(name)].plane == name.split("/")[0]
    die, other = DieId(NpuId(0, 0), 0), DieId(NpuId(2, 5), 1)
    assert route(Plane.RDMA, die, other) == ("rdma/n0.npu0.die0/out", "rdma/n2.npu5.die1/in")
    assert route(Plane.UB, CpuId(1, 3), die) == ("ub/n1.cpu3/out", "ub/n0.npu0/in")
    assert route(Plane.VPC, NodeId(0), NodeId(1)) == ("vpc/n0/out", "vpc/n1/in")
    assert link_id(Plane.RDMA, die, Direction.IN) == "rdma/n0.npu0.die0/in"
    die, twin = DIES[0], DIES[1]
    with pytest.raises(FabricError, match="one port on the ub plane"):
        route(Plane.UB, die, twin)
    assert len(route(Plane.RDMA, die, twin)) == 2


def test_source_ranks_are_those_of_the_published_map() -> None:
    ranks = [source_rank(rank, 320, 32) for rank in range(320)]
    assert (ranks[9], ranks[10], ranks[319]) == (0, 1, 31)
    for decode, prefill in ((320, 32), (32, 32), (64, 16), (8, 1)):
        group = decode // prefill
        assert [source_rank(rank, decode, prefill) for rank in range(decode)] == [
            rank // group for rank in range(decode)
        ]
    ranks = [source_rank(rank, 288, 32 + 8) for rank in range(288)]
    sizes = {ranks.count(source) for source in range(40)}
    assert sizes == {7, 8}
    with pytest.raises(FabricError, match="no decode rank 320 of 320"):
        source_rank(320, 320, 32)
    with pytest.raises(FabricError, match="with 0 prefill ranks"):
        source_rank(0, 1, 0)


def test_a_handoff_of_a_4k_prompt_takes_the_published_time_and_ten_on_one_source_ten_times_that() -> None:
    routes = [route(Plane.RDMA, DIES[source_rank(rank, 320, 32)], DIES[32 + rank]) for rank in range(320)]
    assert len({out for out, _ in routes}) == 32
    fabric = Fabric(rdma_links(TOPOLOGY, DIES))
    kv_bytes = 4096 * 70_272
    assert fabric.start(0, TransferId("t0"), routes[0], kv_bytes, 5.5e-6) == pytest.approx(11.5e-3, rel=0.01)
    for rank in range(1, 10):
        fabric.start(0, TransferId(f"t{rank}"), routes[rank], kv_bytes, 5.5e-6)
    assert fabric.start(0, TransferId("t10"), routes[10], kv_bytes) == pytest.approx(11.5e-3, rel=0.01)
    fabric.check()
    for end_s, name in ((11.5e-3, "t10"), (115.1e-3, "t0")):
        first = fabric.next_end()
        assert first is not None
        assert first[0] == pytest.approx(end_s, rel=0.01)
        assert first[1] == name
        fabric.finish(*first)


def test_ub_transfers_are_as_fast_as_measured() -> None:
    die = DIES[0]
    near, far = DIES[2], DIES[16]
    got = [
        ub_measure(TOPOLOGY, die, end, write=write).bytes_per_s / 1e9
        for end in (near, far, CpuId(0, 0), CpuId(1, 0))
        for write in (False, True)
    ]
    assert got == [167, 137, 164, 135, 151, 110, 147, 107]
    assert ub_measure(TOPOLOGY, die, CpuId(1, 0)).latency_s == pytest.approx(1.7e-6)
    two = Topology(CLOUDMATRIX384, nodes=96)
    with pytest.raises(TopologyError, match="does not join"):
        ub_measure(two, die, CpuId(50, 0))
