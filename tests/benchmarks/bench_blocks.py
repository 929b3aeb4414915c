"""Bandwidth of KV blocks within one node as a share of a plain memcpy of the same blocks, and lookups of the pool.

handoff  One process registers blocks of a UB segment as a prefill instance does; this one pulls them into its own
         region (one copy per block, each checksum verified) as a decode instance does. Goal: 0.6 for cold blocks, which
         is what KV blocks are: another process wrote them some time ago. Hot blocks never leave the cache, so a
         checksum costs as much as the copy there.
pool     Memory servers in processes of their own. Lookup of a prefix of 100 blocks on 1 and on 2 servers, goal 0.3 ms.
         get: lookup, copy and verify, release; goal 0.8. put: reserve, copy with a checksum, commit; goal 0.6.

The memcpy is between the same places without a checksum, in turns. Between hosts: `bench_between_hosts`.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from hardware.ub.region import UbRegion
from hardware.ub.segment import UbSegment
from hardware.units import KIB, MIB
from serving.ids import BlockId, NodeId, ReplicaId
from serving.instance.live.ub_transport import UbTransport
from serving.kvpool.core.entry import Space
from serving.kvpool.core.messages import Data, Forget
from serving.kvpool.live.block_copies import map_of
from serving.kvpool.live.pool_client import PoolClient
from serving.values.pool_view import PoolView, ViewServer
from tests.benchmarks.conditions import Figure, conditions, make_parser, progress, report, show_conditions
from tests.kvpool.client_case import chain
from tests.kvpool.server_process import ServerProcess, running_server

NODE = NodeId("n0")
SHM = Path("/dev/shm")
GIB = 1 << 30
PREFIX_BLOCKS = 100
SPACE = Space("bench", "layout")
SECRET = "secret"


def soon() -> float:
    """A deadline that is never reached."""
    return time.monotonic() + 60.0


def beside_memcpy(
    name: str,
    ours: Callable[[], int],
    memcpy: Callable[[], int],
    repeats: int,
    goal: float | None,
    between: Callable[[], None] = lambda: None,
) -> list[Figure]:
    """GiB/s of both, A B A B, after one of each to warm up, and their ratio."""
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        for side, move in zip(rates, (ours, memcpy), strict=True):
            begun = time.perf_counter()
            moved = move()
            side.append(moved / GIB / (time.perf_counter() - begun))
        between()
    mine, plain = (tuple(side[1:]) for side in rates)
    ratios = tuple(a / b for a, b in zip(mine, plain, strict=True))
    return [
        Figure(name, "GiB/s", mine),
        Figure(f"{name}: memcpy", "GiB/s", plain),
        Figure(f"{name} / memcpy", "", ratios, goal=goal, at_most=False),
    ]


def copy_all(targets: list[np.ndarray], sources: list[np.ndarray]) -> int:
    """The memcpy to compare with."""
    for target, source in zip(targets, sources, strict=True):
        np.copyto(target, source)
    return sum(map(len, targets))


def again(turns: int, move: Callable[[], int]) -> int:
    """The same bytes, repeated."""
    return sum(move() for _ in range(turns))


def cut(memory: memoryview, block_bytes: int) -> list[np.ndarray]:
    """Memory in blocks."""
    whole = np.frombuffer(memory, np.uint8)
    return [whole[at : at + block_bytes] for at in range(0, len(whole) - block_bytes + 1, block_bytes)]


def transport(
    name: str, node: NodeId, segment: UbSegment, region: UbRegion, block_bytes: int, **links: Any
) -> UbTransport:
    """One side's transport over its region; `links`: its ways to other nodes."""
    return UbTransport(
        replica=ReplicaId(name),
        node=node,
        segment=segment,
        arena=segment.view(region),
        arena_offset=region.offset,
        generation=region.generation,
        block_bytes=block_bytes,
        layout="bench",
        **links,
    )


def hold_blocks(pipe: Connection, path: str, total_bytes: int) -> None:
    """Source process: fills a region, then answers block sizes with tickets until it gets None."""
    segment = UbSegment.attach(path)
    region = segment.allocate(total_bytes, owner="source")
    segment.view(region)[:] = np.random.default_rng(0).bytes(total_bytes)
    while (block_bytes := pipe.recv()) is not None:
        side = transport("source", NODE, segment, region, block_bytes)
        pipe.send(side.register("t", [BlockId(b) for b in range(total_bytes // block_bytes)], [], 1))
    segment.close()


def handoff(args: argparse.Namespace) -> list[Figure]:
    """Pulls of all block sizes, cold and hot."""
    total = args.total_mib * MIB
    figures: list[Figure] = []
    segment = UbSegment.create(SHM / f"cloudmatrix-ub-bench-{os.getpid()}", 2 * total)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    holder = context.Process(target=hold_blocks, args=(theirs, str(segment.path), total), daemon=True)
    try:
        holder.start()
        region = segment.allocate(total, owner="target")
        segment.view(region)[:] = bytes(total)
        for mib in args.block_mib:
            progress(f"handoff, blocks of {mib} MiB")
            ours.send(mib * MIB)
            ticket = ours.recv()
            sources = cut(segment.read(ticket.blocks[0].offset, total), mib * MIB)
            targets = cut(segment.view(region), mib * MIB)
            side = transport("target", NODE, segment, region, mib * MIB)
            every = [BlockId(b) for b in range(len(targets))]
            for state, count, turns, goal in (("cold", len(every), 1, 0.6), ("hot", 1, max(1, len(every) // 2), None)):
                pull = partial(again, turns, partial(side.pull, ticket, 0, every[:count]))
                copy = partial(again, turns, partial(copy_all, targets[:count], sources[:count]))
                figures += beside_memcpy(f"handoff, {mib} MiB {state}", pull, copy, args.repeats, goal)
        ours.send(None)
        holder.join(10.0)
    finally:
        holder.kill()
        segment.remove()
    return figures


def client_of(servers: list[ServerProcess]) -> PoolClient:
    """A client of these servers on their node."""
    view = PoolView("bench", tuple(ViewServer(server.record, 1.0) for server in servers))
    return PoolClient("bench", NODE, SECRET, lambda: view)


def forget(client: PoolClient) -> None:
    """Empty the pool."""
    for link in client.placement.links.values():
        link.ask(Data, Forget(SPACE.namespace), soon())


def lookups(client: PoolClient, servers: int, rounds: int) -> Figure:
    """Milliseconds of single lookups."""
    hashes = chain(PREFIX_BLOCKS, "lookup")
    client.write(SPACE, [(block, memoryview(bytes(4 * KIB))) for block in hashes], soon())
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        find = client.lookup(SPACE, hashes, soon())
        times.append(1e3 * (time.perf_counter() - begun))
        assert find.blocks == PREFIX_BLOCKS
        client.release(find, soon())
        time.sleep(0.002)  # as between requests: the server's answer to the release has come
    forget(client)
    return Figure(f"lookup of {PREFIX_BLOCKS} blocks, servers: {servers}", "ms", tuple(times[rounds // 10 :]), goal=0.3)


def moves(client: PoolClient, arena: memoryview, block_bytes: int, repeats: int) -> list[Figure]:
    """Put and get of one block size on one server: from one half of an arena, into the other."""
    total = len(arena) // 2
    hashes = chain(total // block_bytes, str(block_bytes))
    sources, targets = cut(arena[:total], block_bytes), cut(arena[total:], block_bytes)

    def put() -> int:
        stored = client.write(SPACE, list(zip(hashes, (block.data for block in sources), strict=True)), soon())
        assert stored.stored == len(hashes), stored
        return stored.nbytes

    def get() -> int:
        got = client.read(client.lookup(SPACE, hashes, soon()), [block.data for block in targets], soon())
        assert got.blocks == len(hashes), got
        return got.nbytes

    put()
    find = client.lookup(SPACE, hashes, soon())
    (link,) = client.placement.links.values()
    mapped = map_of(client.segments, link)
    assert mapped is not None
    client.release(find, soon())
    places = [np.frombuffer(mapped.view(at.offset, at.nbytes), np.uint8) for at in find.found]
    size = f"{block_bytes // MIB} MiB"
    figures = beside_memcpy(f"get, {size}", get, lambda: copy_all(targets, places), repeats, 0.8)
    forget(client)
    copy = partial(copy_all, places, sources)
    return figures + beside_memcpy(f"put, {size}", put, copy, repeats, 0.6, partial(forget, client))


def pool(args: argparse.Namespace) -> list[Figure]:
    """Lookups, then blocks of all sizes."""
    total = args.total_mib * MIB
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix=f"cloudmatrix-bench-{os.getpid()}-", dir=SHM) as folder:
        segments = Path(folder)
        segment = UbSegment.create(segments / "client", 2 * total)  # shared memory, as a CPU instance's blocks are
        arena = segment.view(segment.allocate(segment.capacity_bytes, "bench"))
        arena[:] = np.random.default_rng(0).bytes(len(arena))
        room = {"capacity_bytes": total + total // 4, "high_water": 1.0, "low_water": 0.99}
        with running_server(segments, name="kv-0", secret=SECRET, **room) as one:
            with running_server(segments, name="kv-1", secret=SECRET, capacity_bytes=64 * MIB) as two:
                for servers in ([one], [one, two]):
                    progress(f"lookups on {len(servers)}")
                    with closing(client_of(servers)) as client:
                        figures.append(lookups(client, len(servers), args.lookups))
            with closing(client_of([one])) as client:
                for mib in args.block_mib:
                    progress(f"pool, blocks of {mib} MiB")
                    figures += moves(client, arena, mib * MIB, args.repeats)
    return figures


MODES = {"handoff": handoff, "pool": pool}


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_blocks", __doc__, 7, MODES)
    parser.add_argument("--block-mib", type=int, nargs="*", default=[1, 8], help="block sizes (default 1 8)")
    parser.add_argument("--total-mib", type=int, default=256, help="bytes moved in a turn, each side (default 256)")
    parser.add_argument("--lookups", type=int, default=500, help="pool: lookups on each number of servers")
    args = parser.parse_args()
    found = conditions(None, total_mib=args.total_mib)
    show_conditions(found)
    report("bench_blocks", found, [figure for mode in args.modes or MODES for figure in MODES[mode](args)])


if __name__ == "__main__":
    main()
