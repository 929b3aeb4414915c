"""The KV-cache pool, seen by one client: how long a lookup takes, and bandwidth of get and put as a share of memcpy.

Memory servers run in processes of their own, this process is the client. Nothing else of the system runs.

lookup   a prefix of 100 blocks that are all there, in one round to 1 and to 2 servers; goal: median 0.3 ms
get      lookup, copy out of the server's segment into an arena, each block's checksum verified, release; goal: 0.8
put      reserve, copy into the server's segment with a checksum, commit; goal: 0.6

Get and put are divided by a memcpy of the same blocks between the same places without checksum, in turns. All of it is
cold: blocks follow one another over much more memory than the last-level cache holds, as KV blocks do. Blocks of 40 KiB
(a small model's) are for information, with what our own code costs per block beside copying and hashing.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import xxhash

from hardware.ub.segment import UbSegment
from hardware.units import KIB, MIB
from serving.ids import BlockHash, NodeId
from serving.kvpool.core.entry import Space
from serving.kvpool.core.messages import Data, Forget
from serving.kvpool.live.block_copies import map_of
from serving.kvpool.live.client import PoolClient
from serving.values.pool_outcome import FetchReport
from serving.values.pool_view import PoolView, ViewServer
from tests.benchmarks.conditions import Figure, conditions, make_parser, progress, report, show_conditions
from tests.kvpool.client_case import chain
from tests.kvpool.server_process import ServerProcess, running_server

GET_GOAL, PUT_GOAL = 0.8, 0.6
LOOKUP_GOAL_MS = 0.3
PREFIX_BLOCKS = 100
GIB = 1 << 30
SPACE = Space("bench", "layout")
SECRET = "secret"
SMALL = 40 * KIB


def soon() -> float:
    """A deadline that nothing should reach."""
    return time.monotonic() + 60.0


def client_of(servers: list[ServerProcess], node: str = "n0") -> PoolClient:
    """A client of these servers."""
    view = PoolView("bench", tuple(ViewServer(server.record, 1.0) for server in servers))
    return PoolClient("bench", NodeId(node), SECRET, lambda: view)


def blocks_of(arena: memoryview, total_bytes: int, block_bytes: int) -> list[memoryview]:
    """The beginning of an arena, cut into blocks."""
    return [arena[at : at + block_bytes] for at in range(0, total_bytes - block_bytes + 1, block_bytes)]


def in_turns(
    ours: Callable[[], int], memcpy: Callable[[], int], between: Callable[[], None], repeats: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """GiB/s of both, A B A B, after one of each to warm up."""
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        for side, move in zip(rates, (ours, memcpy), strict=True):
            begun = time.perf_counter()
            moved = move()
            side.append(moved / GIB / (time.perf_counter() - begun))
        between()
    return tuple(rates[0][1:]), tuple(rates[1][1:])


def get_all(client: PoolClient, hashes: list[BlockHash], targets: list[memoryview]) -> FetchReport:
    """The whole of a get; all blocks must come."""
    found = client.lookup(SPACE, hashes, soon())
    got = client.read(found, targets, soon())
    assert got.blocks == len(hashes), got
    return got


class Blocks:
    """One block size on one server: the halves of an arena are what is put and where it is got."""

    def __init__(self, client: PoolClient, arena: memoryview, block_bytes: int) -> None:
        total_bytes = len(arena) // 2
        self.client = client
        self.block_bytes = block_bytes
        self.hashes = chain(total_bytes // block_bytes, str(block_bytes))
        self.sources = blocks_of(arena, total_bytes, block_bytes)
        self.targets = blocks_of(arena[total_bytes:], total_bytes, block_bytes)

    def put(self) -> int:
        """All blocks into the pool."""
        stored = self.client.write(SPACE, list(zip(self.hashes, self.sources, strict=True)), soon())
        assert stored.stored == len(self.hashes), stored
        return stored.nbytes

    def get(self) -> int:
        """All blocks out of the pool."""
        return get_all(self.client, self.hashes, self.targets).nbytes

    def forget(self) -> None:
        """The pool is empty again."""
        for link in self.client.placement.links.values():
            link.ask(Data, Forget(SPACE.namespace), soon())

    def places(self) -> list[np.ndarray]:
        """Where the blocks are in the server's memory."""
        find = self.client.lookup(SPACE, self.hashes, soon())
        (link,) = self.client.placement.links.values()
        mapped = map_of(self.client.segments, link)
        assert mapped is not None
        self.client.release(find, soon())
        return [np.frombuffer(mapped.view(at.offset, at.nbytes), np.uint8) for at in find.found]

    def figures(self, repeats: int, goals: bool) -> list[Figure]:
        """Put and get beside memcpy."""
        self.put()
        places = self.places()
        sources = [np.frombuffer(block, np.uint8) for block in self.sources]
        targets = [np.frombuffer(block, np.uint8) for block in self.targets]
        get = in_turns(self.get, lambda: copy_all(targets, places), lambda: None, repeats)
        hash_s = hash_seconds(targets)
        self.forget()
        put = in_turns(self.put, lambda: copy_all(places, sources), self.forget, repeats)
        size = f"{self.block_bytes // MIB} MiB" if self.block_bytes >= MIB else f"{self.block_bytes // KIB} KiB"
        figures = []
        for what, (ours, memcpy), goal in (("get", get, GET_GOAL), ("put", put, PUT_GOAL)):
            ratios = tuple(a / b for a, b in zip(ours, memcpy, strict=True))
            figures.append(Figure(f"{size}: {what}", "GiB/s", ours))
            figures.append(Figure(f"{size}: memcpy as {what}", "GiB/s", memcpy))
            figures.append(Figure(f"{size}: {what} / memcpy", "", ratios, goal=goal if goals else None, at_most=False))
            if not goals:
                extra = [(self.block_bytes / GIB) * (1 / a - 1 / b) - hash_s for a, b in zip(ours, memcpy, strict=True)]
                own = tuple(seconds * 1e6 for seconds in extra)
                figures.append(Figure(f"{size}: {what}, beside copy and hash", "µs/block", own))
        return figures


def copy_all(targets: list[np.ndarray], sources: list[np.ndarray]) -> int:
    """The memcpy to compare with."""
    for target, source in zip(targets, sources, strict=True):
        np.copyto(target, source)
    return sum(map(len, targets))


def hash_seconds(blocks: list[np.ndarray]) -> float:
    """What hashing one block costs while it is in the cache."""
    block = blocks[0]
    begun = time.perf_counter()
    for _ in blocks:
        xxhash.xxh3_64_intdigest(block.data)
    return (time.perf_counter() - begun) / len(blocks)


def lookups(client: PoolClient, servers: int, rounds: int) -> Figure:
    """Milliseconds of single lookups."""
    hashes = chain(PREFIX_BLOCKS, "lookup")
    data = memoryview(bytes(4 * KIB))
    client.write(SPACE, [(block, data) for block in hashes], soon())
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        find = client.lookup(SPACE, hashes, soon())
        times.append(1e3 * (time.perf_counter() - begun))
        assert find.blocks == PREFIX_BLOCKS
        client.release(find, soon())
        time.sleep(0.002)  # as between requests: the server's answer to the release has come
    name = f"lookup of {PREFIX_BLOCKS} blocks, {servers} server{'s'[: servers - 1]}"
    return Figure(name, "ms", tuple(times[rounds // 10 :]), goal=LOOKUP_GOAL_MS)


def across_nodes(server: ServerProcess, arena: memoryview, repeats: int) -> list[Figure]:
    """Get and put through the connection, as between nodes; loopback here."""
    client = client_of([server], node="elsewhere")
    blocks = Blocks(client, arena, MIB)
    rates: dict[str, list[float]] = {"put": [], "get": []}
    for _ in range(repeats + 1):
        for what, move in (("put", blocks.put), ("get", blocks.get)):
            begun = time.perf_counter()
            moved = move()
            rates[what].append(moved / GIB / (time.perf_counter() - begun))
        blocks.forget()
    client.close()
    return [Figure(f"1 MiB through a connection: {what}", "GiB/s", tuple(one[1:])) for what, one in rates.items()]


def arena_of(segment: UbSegment) -> memoryview:
    """The client's own blocks: shared memory, as the KV blocks of an instance on a CPU are."""
    view = segment.view(segment.allocate(segment.capacity_bytes, "bench"))
    view[:] = np.random.default_rng(0).bytes(len(view))
    return view


def measure(args: argparse.Namespace, segments: Path) -> list[Figure]:
    """All figures."""
    total = args.total_mib * MIB
    arena = arena_of(UbSegment.create(segments / "client", 2 * total))
    options = {"capacity_bytes": total + total // 4, "high_water": 1.0, "low_water": 0.99}
    figures: list[Figure] = []
    with running_server(segments, name="kv-0", secret=SECRET, **options) as one:
        with running_server(segments, name="kv-1", secret=SECRET, capacity_bytes=64 * MIB) as two:
            for servers in ([one], [one, two]):
                progress(f"lookups on {len(servers)}")
                client = client_of(servers)
                figures.append(lookups(client, len(servers), args.lookups))
                for link in client.placement.links.values():
                    link.ask(Data, Forget(SPACE.namespace), soon())
                client.close()
        client = client_of([one])
        for block_bytes in [SMALL, *(mib * MIB for mib in args.block_mib)]:
            progress(f"blocks of {block_bytes} bytes")
            figures += Blocks(client, arena, block_bytes).figures(args.repeats, goals=block_bytes >= MIB)
        client.close()
        progress("through a connection")
        figures += across_nodes(one, arena, args.repeats)
    return figures


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_pool_blocks", __doc__, repeats=7)
    parser.add_argument("--block-mib", type=int, nargs="*", default=[1, 8], help="block sizes")
    parser.add_argument("--total-mib", type=int, default=256, help="bytes moved in a turn, each side")
    parser.add_argument("--lookups", type=int, default=500, help="lookups on each number of servers")
    args = parser.parse_args()
    found = conditions(None, total_mib=args.total_mib, lookups=args.lookups)
    show_conditions(found)
    with tempfile.TemporaryDirectory(prefix=f"cloudmatrix-bench-{os.getpid()}-", dir="/dev/shm") as folder:
        figures = measure(args, Path(folder))
    report("bench_pool_blocks", found, figures)


if __name__ == "__main__":
    main()
