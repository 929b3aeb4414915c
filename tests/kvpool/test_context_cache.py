"""An instance's view of the pool: arena blocks in and out, never an exception, all operations counted."""

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from serving.ids import BlockHash, BlockId
from serving.kvpool.live.context_cache import PoolContextCache
from serving.kvpool.live.pool_client import LeasedPrefix, PoolClient
from serving.kvpool.live.segments import Segments
from serving.values.pool_outcome import FetchReport, MissReason, StoreReport
from tests.kvpool.client_case import BLOCK, chain, content
from tests.kvpool.pool_cluster import PoolCluster

BLOCKS = 64


class Instance:
    """An arena and its cache."""

    def __init__(self, pool: PoolCluster, **settings: Any) -> None:
        self.arena = bytearray(BLOCKS * BLOCK)
        self.segments = Segments()
        self.clients = [pool.client(segments=self.segments) for _ in range(2)]
        options: dict[str, Any] = {
            "layout": "layout-1",
            "arena": memoryview(self.arena),
            "block_bytes": BLOCK,
            "get_timeout_s": 10.0,
        }
        self.cache = PoolContextCache(self.clients[:1], self.clients[1], **(options | settings))

    def fill(self, hashes: Sequence[BlockHash], first: int = 0) -> list[BlockId]:
        """Write the contents of these hashes into blocks from `first` on."""
        blocks = [BlockId(first + i) for i in range(len(hashes))]
        for block, block_hash in zip(blocks, hashes, strict=True):
            self.arena[block * BLOCK : (block + 1) * BLOCK] = content(block_hash)
        return blocks

    def holds(self, block: int, block_hash: BlockHash) -> bool:
        """Whether a block has the content of a hash."""
        return bytes(self.arena[block * BLOCK : (block + 1) * BLOCK]) == content(block_hash)


def test_store_here_fetch_there() -> None:
    hashes = chain(20)
    with PoolCluster(2) as pool:
        one, two = Instance(pool), Instance(pool)
        assert one.cache.store("default", hashes[:12], one.fill(hashes[:12])) == StoreReport(12, nbytes=12 * BLOCK)
        places = [BlockId(60 - i) for i in range(20)]
        report = two.cache.fetch("default", hashes, places)
        assert report == FetchReport(12, nbytes=12 * BLOCK)
        assert all(two.holds(place, block) for place, block in zip(places[:12], hashes, strict=False))
        assert one.cache.store("default", hashes[:12], one.fill(hashes[:12])).present == 12
        assert two.cache.fetch("tenant", hashes, places).blocks == 0
        assert len(one.segments) == 2
        facts = two.cache.facts()
        assert facts["counters"] == {
            "fetches": 2,
            "lookups": 2,
            "blocks_asked": 40,
            "blocks_pulled_dram": 12,
            "blocks_pulled_ssd": 0,
            "bytes_pulled": 12 * BLOCK,
        }
        counts = {name: one["count"] for name, one in facts["histograms"].items()}
        assert counts == {"lookup": 2, "get": 1, "fetch": 2, "store": 0}
        stored = one.cache.facts()["counters"]
        assert (stored["stores"], stored["blocks_stored"], stored["blocks_present"]) == (2, 12, 12)


def test_losses_are_counted_by_reason() -> None:
    hashes = chain(10)
    with PoolCluster(1) as pool:
        one = Instance(pool)
        one.cache.warm()
        one.cache.store("default", hashes, one.fill(hashes))
        pool.kill(0, listed=True)
        blocks = [BlockId(i) for i in range(10)]
        assert one.cache.fetch("default", hashes, blocks).reason is MissReason.UNREACHABLE
        assert one.cache.store("default", hashes, blocks).dropped == (("unreachable", 10),)
        counters = one.cache.facts()["counters"]
        assert (counters["blocks_lost_unreachable"], counters["blocks_dropped_unreachable"]) == (10, 10)
        assert len(one.segments) == 0, "asking for facts unmaps what dead servers left"


@pytest.mark.real_time
def test_a_silent_server_leaves_time_to_read_from_the_other() -> None:
    hashes = chain(40)
    with PoolCluster(2) as pool:
        one = Instance(pool, get_timeout_s=0.6)
        one.cache.store("default", hashes, one.fill(hashes))
        placement = one.clients[1].placement
        first = placement.primary(hashes[0])
        assert first is not None
        rest = [block for block in hashes if placement.primary(block) is not first]
        assert one.cache.fetch("default", rest, [BlockId(i) for i in range(len(rest))]).blocks == len(rest)
        pool.process(int(first.name[-1])).freeze()
        start = time.monotonic()
        report = one.cache.fetch("default", rest, [BlockId(i) for i in range(len(rest))])
        assert (report.blocks, report.reason) == (len(rest), None)
        assert time.monotonic() - start < 0.6


class Mirror:
    """A device that only records its calls."""

    def __init__(self) -> None:
        self.saved: list[BlockId] = []
        self.loaded: list[BlockId] = []

    def save(self, blocks: Sequence[BlockId]) -> None:
        """Copy device to arena."""
        self.saved += blocks

    def load(self, blocks: Sequence[BlockId]) -> None:
        """Copy arena to device."""
        self.loaded += blocks


def test_a_mirror_is_saved_before_and_loaded_after() -> None:
    hashes, mirror = chain(4), Mirror()
    with PoolCluster(1) as pool:
        one = Instance(pool, mirror=mirror)
        blocks = one.fill(hashes)
        one.cache.store("default", hashes[:3], blocks[:3])
        assert (mirror.saved, mirror.loaded) == (blocks[:3], [])
        one.cache.fetch("default", hashes, [BlockId(i) for i in range(10, 14)])
        assert mirror.loaded == [10, 11, 12]


def test_unforeseen_errors_are_misses_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    hashes = chain(4)
    with PoolCluster(1) as pool:
        one = Instance(pool)
        with caplog.at_level(logging.ERROR):
            for _ in range(3):
                report = one.cache.store("default", hashes, [BlockId(0)])  # lengths differ: our own bug
                assert report.dropped == (("error", 1),)
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        client: Any = Broken()
        broken = PoolContextCache([client], client, layout="x", arena=memoryview(one.arena), block_bytes=BLOCK)
        assert broken.fetch("default", hashes, [BlockId(0)]) == FetchReport(0, lost_blocks=1, reason=MissReason.ERROR)


def test_a_fetch_that_waits_holds_up_no_other_one() -> None:
    hashes = chain(4)
    with PoolCluster(1) as pool:
        one = Instance(pool)
        one.cache.store("default", hashes, one.fill(hashes))
        slow: Any = Slow()
        both = PoolContextCache(
            [one.clients[0], slow], one.clients[1], layout="layout-1", arena=memoryview(one.arena), block_bytes=BLOCK
        )
        places = [BlockId(i) for i in range(20, 24)]
        with ThreadPoolExecutor(1) as waiting:
            stuck = waiting.submit(both.fetch, "default", hashes, places)
            assert slow.asked.wait(60)
            assert both.fetch("default", hashes, places).blocks == 4
            assert not stuck.done()
            slow.answer.set()
            assert stuck.result(10).blocks == 0


class Slow:
    """A client with a slow disk."""

    def __init__(self) -> None:
        self.asked, self.answer = threading.Event(), threading.Event()
        self.segments = Segments()

    def lookup(self, *_: object) -> LeasedPrefix:
        """Find nothing, after a delay."""
        self.asked.set()
        assert self.answer.wait(60)
        return LeasedPrefix()


class Broken:
    """A client with a bug."""

    def lookup(self, *_: object) -> None:
        """Raise an error."""
        raise RuntimeError("unforeseen")


def test_fetch_and_store_from_two_threads() -> None:
    hashes = chain(32)
    with PoolCluster(2) as pool:
        two = Instance(pool)

        def store() -> None:
            for start in range(0, 32, 4):
                part = hashes[start : start + 4]
                two.cache.store("default", part, two.fill(part, first=32))

        thread = threading.Thread(target=store)
        thread.start()
        blocks, best, until = [BlockId(i) for i in range(32)], 0, time.monotonic() + 60
        while best < 32 and time.monotonic() < until:
            report = two.cache.fetch("default", hashes, blocks)
            assert report.reason is None
            assert report.blocks >= best
            best = report.blocks
            assert all(two.holds(i, hashes[i]) for i in range(best))
        thread.join()
        assert best == 32


def test_clients_of_one_process_share_mappings() -> None:
    with PoolCluster(2) as pool:
        shared = Segments()
        clients: list[PoolClient] = [pool.client(segments=shared) for _ in range(3)]
        assert [client.warm(time.monotonic() + 60) for client in clients] == [2, 2, 2]
        assert len(shared) == 2
