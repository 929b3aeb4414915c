"""Loads from the SSD tier in virtual time: a fetch waits for them, not for ever, and a prefetch is ahead of it."""

from typing import Any

import pytest

from hardware.spec.catalog import CLOUDMATRIX384
from hardware.topology import Topology
from serving.gateway.core.kv_hints import SessionName
from serving.gateway.core.settings import GatewaySettings
from serving.ids import BlockId, ReplicaId, SequenceId
from serving.instance.core.events import FetchOrder
from serving.values.pool_outcome import FetchReport, MissReason
from serving.virtual.event_queue import EventQueue
from serving.virtual.gateway import VirtualGateway
from serving.virtual.journal_book import Book
from serving.virtual.memory_pool import VirtualPool
from serving.virtual.movers import LOOKUP_S, VirtualMovers
from serving.virtual.network import Network
from serving.virtual.pauses import SessionTurn
from serving.virtual.ports import Directory
from tests.virtual.core.case import config
from tests.virtual.core.memory_case import MIB, chain, pool_of, run_to

LOAD_S = 0.01
"""One block of 1 MiB, at the pool's 100 MiB/s."""
BLOCKS = 8


def on_ssd() -> VirtualPool:
    """One server, on whose SSD all blocks of chain 0 are; newer chains fill its memory, and are on SSD as well."""
    pool = pool_of(servers=1, blocks=32, ssd_mib=1000, write_through=True, prefetch_share=0.5)
    for number in range(5):
        assert pool.store("default", chain(number), 1, 10.0 * number).stored == BLOCKS
        run_to(pool, 10.0 * number + 9.0)
    return pool


def fetched(
    pool: VirtualPool, get_timeout_s: float = 1.0, pool_bytes_per_s: float = 1e15, count: int = BLOCKS
) -> tuple[float, FetchReport]:
    """Fetch chain 0 at 100 s. Returns: how long it took, and its report."""
    queue, topology = EventQueue(), Topology(CLOUDMATRIX384)
    network = Network(queue, topology, pool_bytes_per_s)
    network.join(ReplicaId("p"), tuple(topology.die_ids())[:2], 1)
    movers = VirtualMovers(network, pool, MIB // 512, 512, get_timeout_s)
    ended: list[tuple[float, FetchReport]] = []

    def done(outcome: Any) -> None:
        ended.append((queue.now - 100.0, outcome[1]))

    blocks = tuple(map(BlockId, range(count)))
    order = FetchOrder(SequenceId("s"), "default", tuple(chain(0, count)), blocks)
    queue.at(100.0, lambda _: movers.fetch(order, ReplicaId("p"), done), None)
    queue.run(200.0, 100_000)
    pool.check()
    return ended[0]


def test_a_fetch_waits_for_its_loads() -> None:
    pool = on_ssd()
    took_s, report = fetched(pool)
    assert (report.blocks, report.from_ssd, report.lost_blocks) == (BLOCKS, BLOCKS, 0)
    assert took_s == pytest.approx(BLOCKS * LOAD_S, abs=0.002)
    again_s, report = fetched(pool)
    assert (report.blocks, report.from_ssd) == (BLOCKS, 0)
    assert again_s == pytest.approx(LOOKUP_S, abs=1e-4)


def test_blocks_are_read_while_others_are_loaded() -> None:
    took_s, report = fetched(on_ssd(), pool_bytes_per_s=100 * MIB)  # a block is copied as fast as it is loaded
    assert (report.blocks, report.from_ssd) == (BLOCKS, BLOCKS)
    assert took_s == pytest.approx((BLOCKS + 1) * LOAD_S, abs=0.002), "only the first load and the last copy are alone"


def test_a_prefix_longer_than_memory_is_read_whole() -> None:
    pool = pool_of(servers=1, blocks=8, ssd_mib=1000, write_through=True)
    for place in range(0, 24, 4):
        assert pool.store("default", chain(0, 24)[place : place + 4], 1, 4.0 * place).stored == 4
        run_to(pool, 4.0 * place + 3.0)
    _took_s, report = fetched(pool, count=24)
    assert (report.blocks, report.lost_blocks) == (24, 0)


def test_what_is_not_loaded_in_time_is_lost() -> None:
    took_s, report = fetched(on_ssd(), get_timeout_s=3.5 * LOAD_S)
    assert took_s == pytest.approx(3.5 * LOAD_S, abs=0.002)
    assert (report.blocks, report.from_ssd, report.lost_blocks, report.reason) == (3, 3, 5, MissReason.TIMEOUT)


def test_a_prefetch_is_ahead_of_the_fetch() -> None:
    pool = on_ssd()
    pool.prefetch("default", chain(0), 99.0)
    run_to(pool, 99.5)
    took_s, report = fetched(pool)
    assert (report.blocks, report.from_ssd) == (BLOCKS, 0)
    assert took_s == pytest.approx(LOOKUP_S, abs=1e-4)
    half = on_ssd()
    half.prefetch("default", chain(0), 100.0 - 4 * LOAD_S)
    took_s, report = fetched(half)
    assert report.blocks == BLOCKS
    assert took_s == pytest.approx(4 * LOAD_S, abs=LOAD_S + 0.002), "the rest"


def test_a_virtual_gateway_prefetches_what_has_to_wait() -> None:
    pool, queue = on_ssd(), EventQueue()
    settings = GatewaySettings("g0", ("prefill", "decode"), 1e9, 512, history_blocks=100, prefetch=True)
    gateway = VirtualGateway(settings, queue, Directory(), Book(lambda: None, config().slo), 0.1, 1, 600.0, 0, pool)
    queue.at(
        100.0, lambda _: gateway.submit((0, BLOCKS * 512, 8, tuple(chain(0))), turn=SessionTurn(SessionName("7"))), None
    )
    queue.run(101.0, 1000)
    run_to(pool, 101.0)
    assert gateway.open_requests == 1, "there is no instance"
    hold = pool.lookup_and_hold("default", chain(0), 1, 101.0)
    assert (hold.from_memory, hold.from_ssd) == (BLOCKS, 0)
