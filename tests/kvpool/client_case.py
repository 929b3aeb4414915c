"""Shared helpers for tests of the pool's clients: hashes, contents that follow from them, put and get of both."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from hardware.ub.segment import UbSegment
from serving.ids import BlockHash
from serving.kvpool.core.entry import Kind, Space
from serving.kvpool.core.messages import Data, List, Listed, ListedEntry, Stats
from serving.kvpool.live.pool_client import LeasedPrefix, PoolClient
from serving.values.pool_outcome import FetchReport, MissReason, StoreReport
from tests.kvpool.pool_cluster import PoolCluster

SPACE = Space("default", "layout-1")
KIB = 1 << 10
MIB = 1 << 20
BLOCK = 40 * KIB
SOON_S = 60.0


def chain(count: int, seed: str = "a") -> list[BlockHash]:
    """Hashes of a chain, as digests like the prefix chain's."""
    return [BlockHash(blake2b(f"{seed}/{i}".encode(), digest_size=16).digest()) for i in range(count)]


def content(block: BlockHash, nbytes: int = BLOCK) -> bytes:
    """Bytes of a block, different for each hash."""
    return np.random.default_rng(int.from_bytes(block, "big")).bytes(nbytes)


def soon(seconds: float = SOON_S) -> float:
    """A deadline."""
    return time.monotonic() + seconds


def put(
    client: PoolClient,
    hashes: Sequence[BlockHash],
    nbytes: int = BLOCK,
    deadline_s: float = SOON_S,
    kind: Kind = Kind.CONTEXT,
) -> StoreReport:
    """Writes the content of each hash."""
    items = [(block, memoryview(content(block, nbytes))) for block in hashes]
    return client.write(SPACE, items, soon(deadline_s), kind)


def get(
    client: PoolClient, hashes: Sequence[BlockHash], nbytes: int = BLOCK, deadline_s: float = SOON_S
) -> FetchReport:
    """Look up and read; asserts the content of every block that is reported as good."""
    deadline = soon(deadline_s)
    find = client.lookup(SPACE, hashes, soon(deadline_s / 2))
    places = targets(len(hashes), nbytes)
    report = client.read(find, places, deadline)
    assert report.blocks <= find.blocks
    for block, target in zip(hashes[: report.blocks], places, strict=False):
        assert bytes(target) == content(block, nbytes), "wrong bytes were delivered as good"
    return report


@contextlib.contextmanager
def filled(
    servers: int, blocks: int = 10, **settings: Any
) -> Iterator[tuple[PoolCluster, PoolClient, list[BlockHash]]]:
    """A pool, a client, and the blocks that it has written."""
    hashes = chain(blocks)
    with PoolCluster(servers, **settings) as pool:
        client = pool.client()
        put(client, hashes)
        yield pool, client, hashes


def read(client: PoolClient, find: LeasedPrefix, deadline_s: float = SOON_S) -> tuple[int, int, MissReason | None]:
    """Outcome of a lookup and read: blocks, lost blocks, and reasons."""
    report = client.read(find, targets(len(find.found)), soon(deadline_s))
    return report.blocks, report.lost_blocks, report.reason


def got(
    client: PoolClient, hashes: Sequence[BlockHash], deadline_s: float = SOON_S
) -> tuple[int, int, MissReason | None]:
    """The same as `read`, together with the lookup; asserts all bytes."""
    report = get(client, hashes, deadline_s=deadline_s)
    return report.blocks, report.lost_blocks, report.reason


def entries_of(client: PoolClient, server: str) -> tuple[ListedEntry, ...]:
    """Entries that one server holds."""
    client.placement.refresh()
    return client.placement.links[server].ask(Listed, List(0, 4096), soon()).entries


def facts_of(client: PoolClient, server: str) -> dict[str, Any]:
    """Counters of one server."""
    client.placement.refresh()
    return client.placement.links[server].ask(Data, Stats(), soon()).value


def targets(count: int, nbytes: int = BLOCK) -> list[memoryview]:
    """Targets for blocks to be read."""
    return [memoryview(bytearray(nbytes)) for _ in range(count)]


def flip_bit(client: PoolClient, hashes: list, index: int) -> None:
    """Flip one bit of one block, in the memory of its server."""
    find = client.lookup(SPACE, hashes, soon())
    segment = UbSegment.attach(find.links[find.prefix.servers[index]].record.segment)
    (region,) = segment.regions()
    np.frombuffer(segment.view(region), np.uint8)[find.found[index].offset - region.offset + 100] ^= 8
    segment.close()
    client.release(find, soon())


def put_all(client: PoolClient, hashes: Sequence[BlockHash], nbytes: int) -> None:
    """Write a few at a time until all are stored: while the disk is busy the memory is full."""
    for start in range(0, len(hashes), 4):
        until = soon()
        while (report := put(client, hashes[start : start + 4], nbytes)).dropped:
            assert set(dict(report.dropped)) == {"full"}
            assert soon(0) < until
