"""Handoff: bandwidth of a KV pull between two processes of one node, as a share of a plain memcpy.

One process registers blocks of a UB segment (checksums and offsets, as a prefill instance does), this one pulls them
into its own region of the segment (one copy per block, each checksum verified, as a decode instance does). The memcpy
is of the same blocks to the same places in this process, without checksum. Pull and memcpy in turns.

cold   blocks follow one another over much more memory than the last-level cache holds
hot    one block again and again

Goal: 0.6 of memcpy for blocks of 1 MiB and more, cold, as KV blocks are: another process wrote them some time ago. Hot
is for information: there a memcpy never leaves the cache and the checksum costs as much as the copy. Between hosts:
`bench_between_hosts`.
"""

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from hardware.ub.region import UbRegion
from hardware.ub.segment import UbSegment
from hardware.units import MIB
from serving.ids import BlockId, NodeId, ReplicaId
from serving.instance.live.ub_transport import UbTransport
from serving.values.sequence import HandoffTicket
from tests.benchmarks.conditions import Figure, conditions, make_parser, progress, report, show_conditions

GOAL = 0.6
NODE = NodeId("here")
SHM = Path("/dev/shm")
GIB = 1 << 30


def transport(name: str, segment: UbSegment, region: UbRegion, block_bytes: int) -> UbTransport:
    """One side's transport over its region."""
    return UbTransport(
        replica=ReplicaId(name),
        node=NODE,
        segment=segment,
        arena=segment.view(region),
        arena_offset=region.offset,
        generation=region.generation,
        block_bytes=block_bytes,
        layout="bench",
    )


def hold_blocks(pipe: Connection, path: str, total_bytes: int) -> None:
    """Source process: fills a region, then answers block sizes with tickets until it is told None."""
    segment = UbSegment.attach(path)
    region = segment.allocate(total_bytes, owner="source")
    view = np.frombuffer(segment.view(region), np.uint8)
    view[:] = np.frombuffer(np.random.default_rng(0).bytes(total_bytes), np.uint8)
    while (block_bytes := pipe.recv()) is not None:
        side = transport("source", segment, region, block_bytes)
        begun = time.perf_counter()
        ticket = side.register("t", [BlockId(b) for b in range(total_bytes // block_bytes)], [], 1)
        pipe.send((ticket, time.perf_counter() - begun))
    segment.close()


def in_turns(
    pull: Callable[[], int], copy: Callable[[], int], repeats: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """GiB/s of both, A B A B, after one of each to warm up."""
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        for side, move in zip(rates, (pull, copy), strict=True):
            begun = time.perf_counter()
            moved = move()
            side.append(moved / GIB / (time.perf_counter() - begun))
    return tuple(rates[0][1:]), tuple(rates[1][1:])


def measure(
    side: UbTransport, ticket: HandoffTicket, source: np.ndarray, target: np.ndarray, block_bytes: int, repeats: int
) -> list[Figure]:
    """Cold and hot, for one block size."""
    count = len(ticket.blocks)
    every = [BlockId(b) for b in range(count)]
    hot_rounds = max(1, count // 2)

    def copy(block: int) -> int:
        here = slice(block * block_bytes, (block + 1) * block_bytes)
        np.copyto(target[here], source[here])
        return block_bytes

    cold = in_turns(lambda: side.pull(ticket, 0, every), lambda: sum(copy(b) for b in every), repeats)
    hot = in_turns(
        lambda: sum(side.pull(ticket, 0, every[:1]) for _ in range(hot_rounds)),
        lambda: sum(copy(0) for _ in range(hot_rounds)),
        repeats,
    )
    figures = []
    for state, (pulled, copied) in (("cold", cold), ("hot", hot)):
        name = f"{block_bytes // MIB} MiB {state}"
        ratios = tuple(a / b for a, b in zip(pulled, copied, strict=True))
        figures.append(Figure(f"{name}: pull", "GiB/s", pulled))
        figures.append(Figure(f"{name}: memcpy", "GiB/s", copied))
        goal = GOAL if state == "cold" else None
        figures.append(Figure(f"{name}: pull / memcpy", "", ratios, goal=goal, at_most=False))
    return figures


def one_node(args: argparse.Namespace) -> list[Figure]:
    """Source process, segment, all block sizes."""
    total = args.total_mib * MIB
    figures: list[Figure] = []
    segment = UbSegment.create(SHM / f"cloudmatrix-ub-bench-{os.getpid()}", 2 * total)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    holder = context.Process(target=hold_blocks, args=(theirs, str(segment.path), total))
    try:
        holder.start()
        region = segment.allocate(total, owner="target")
        target = np.frombuffer(segment.view(region), np.uint8)
        target[:] = 0
        for mib in args.block_mib:
            progress(f"blocks of {mib} MiB")
            ours.send(mib * MIB)
            ticket, register_s = ours.recv()
            first = ticket.blocks[0].offset
            source = np.frombuffer(segment.read(first, total), np.uint8)
            side = transport("target", segment, region, mib * MIB)
            figures += measure(side, ticket, source, target, mib * MIB, args.repeats)
            figures.append(Figure(f"{mib} MiB: register", "GiB/s", (total / GIB / register_s,)))
        ours.send(None)
        holder.join(10.0)
    finally:
        if holder.is_alive():
            holder.kill()
        segment.remove()
    return figures


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_handoff", __doc__, repeats=7)
    parser.add_argument("--block-mib", type=int, nargs="*", default=[1, 2, 4, 8], help="block sizes")
    parser.add_argument("--total-mib", type=int, default=256, help="bytes pulled in a cold turn, each side")
    args = parser.parse_args()
    found = conditions(None, total_mib=args.total_mib, shared_memory=str(SHM))
    show_conditions(found)
    figures = one_node(args)
    report("bench_handoff", found, figures)


if __name__ == "__main__":
    main()
