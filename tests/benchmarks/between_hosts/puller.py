"""The host that reads and writes: rates in MB/s next to iperf3's in the same seconds, as one line of JSON.

python -m tests.benchmarks.between_hosts.puller ADDRESS REPEATS TLS TOTAL     the source's offer on standard input
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np

from hardware.ub.segment import UbSegment
from serving.ids import BlockHash, BlockId, NodeId
from serving.instance.live.segment_reader import SegmentReader
from serving.instance.live.ub_transport import UbTransport
from serving.kvpool.core.entry import Space
from serving.kvpool.core.messages import Data, Forget
from serving.kvpool.live.model_peer import ModelEntry, fetch, look, release
from serving.kvpool.live.pool_client import PoolClient
from serving.kvpool.live.server_link import ServerLink, hello_of
from serving.sockets.opening import connected
from serving.sockets.secrets import ClusterSecrets
from serving.values.pool_view import PoolView, ViewServer
from tests.benchmarks.bench_blocks import soon, transport
from tests.benchmarks.between_hosts.source import MODEL, SECRET, SHM, Offer
from tests.kvpool.client_case import chain

SPACE = Space("bench", "layout")
HERE = NodeId("right")
FIRSTS = 7


class Puller:
    """Memory of this host, and its connections to the other."""

    def __init__(self, offer: Offer, total: int) -> None:
        self.offer = offer
        self.total = total
        self.took = 0.0
        """Duration of the last work if part of it does not count; 0 = all of it counts [s]."""
        self.segment = UbSegment.create(SHM / "ub-bench-puller", total, max_regions=1)
        self.region = self.segment.allocate(self.segment.capacity_bytes, owner="decode")
        self.arena = self.segment.view(self.region)
        self.arena[:] = bytes(len(self.arena))
        self.reader = SegmentReader(ClusterSecrets((SECRET,)))
        shared = PoolView("bench", (ViewServer(offer.server, 1.0),))
        self.client = PoolClient("bench", HERE, SECRET, lambda: shared)
        self.link = ServerLink(offer.server, hello_of("weights", HERE, SECRET))
        self.plain, _ = connected(offer.plain, 60.0)
        self.plain.settimeout(60.0)

    def transport(self, block_bytes: int, reader: SegmentReader) -> UbTransport:
        """A decode instance's end."""
        return transport("decode", HERE, self.segment, self.region, block_bytes, read_remote=reader.read)

    def handoff(self, block_bytes: int) -> int:
        """All blocks of a ticket, checked."""
        ticket = self.offer.tickets[block_bytes]
        return self.transport(block_bytes, self.reader).pull(ticket, 0, [BlockId(b) for b in range(len(ticket.blocks))])

    def socket_read(self) -> int:
        """All bytes over a plain socket."""
        self.plain.sendall(b"x")
        at = 0
        while at < self.total:
            at += self.plain.recv_into(self.arena[at : at + (1 << 20)])
        return at

    def blocks(self, block_bytes: int) -> list[memoryview]:
        """The arena in blocks."""
        return [self.arena[at : at + block_bytes] for at in range(0, self.total - block_bytes + 1, block_bytes)]

    def put(self, block_bytes: int) -> int:
        """All blocks into the pool, new ones."""
        self.client.placement.refresh()
        for link in self.client.placement.links.values():
            link.ask(Data, Forget(SPACE.namespace), soon())
        blocks = self.blocks(block_bytes)
        hashes = chain(len(blocks), str(block_bytes))
        begun = time.perf_counter()
        stored = self.client.write(SPACE, list(zip(hashes, blocks, strict=True)), soon())
        self.took = time.perf_counter() - begun
        assert stored.stored == len(blocks), stored
        return stored.nbytes

    def get(self, block_bytes: int) -> int:
        """All blocks out of the pool."""
        blocks = self.blocks(block_bytes)
        hashes: list[BlockHash] = chain(len(blocks), str(block_bytes))
        got = self.client.read(self.client.lookup(SPACE, hashes, soon()), blocks, soon())
        assert got.blocks == len(hashes), got
        return got.nbytes

    def weights(self) -> int:
        """A model's image."""
        entry = ModelEntry.of(MODEL)
        offer = look(self.link, entry)
        assert offer is not None
        fetch(self.link, entry, offer, self.arena[: offer.nbytes])
        release(self.link, offer)
        return offer.nbytes

    def first(self, block_bytes: int) -> tuple[float, float]:
        """Milliseconds of the first and of a later handoff of a pair: eight blocks."""
        ticket = self.offer.tickets[block_bytes]
        reader = SegmentReader(ClusterSecrets((SECRET,)))
        end = self.transport(block_bytes, reader)
        times = []
        for _ in range(4):
            begun = time.perf_counter()
            end.pull(ticket, 0, [BlockId(b) for b in range(8)])
            times.append(1e3 * (time.perf_counter() - begun))
        reader.close()
        return times[0], float(np.median(times[1:]))


def rate(work: Callable[[], int], puller: Puller) -> float:
    """MB/s."""
    puller.took = 0.0
    begun = time.perf_counter()
    moved = work()
    return moved / (puller.took or time.perf_counter() - begun) / 1e6


def iperf(address: str) -> float:
    """MB/s that one stream of iperf3 reads from the other host."""
    command = ["iperf3", "-c", address, "-R", "-t", "1", "-J"]
    said = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    return float(said["end"]["sum_received"]["bits_per_second"]) / 8e6


def main() -> None:
    """Measure, print."""
    address, repeats, tls = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "tls"
    offer = msgspec.json.decode(sys.stdin.buffer.readline(), type=Offer)
    puller = Puller(offer, int(sys.argv[4]))
    small, large = sorted(offer.tickets)
    works: dict[str, Callable[[], int]] = {
        "plain socket": puller.socket_read,
        "handoff small": partial(puller.handoff, small),
        "handoff 1 MiB": partial(puller.handoff, large),
        "put small": partial(puller.put, small),
        "get small": partial(puller.get, small),
        "put 1 MiB": partial(puller.put, large),
        "get 1 MiB": partial(puller.get, large),
        "weights": puller.weights,
    }
    rates: dict[str, list[float]] = {name: [] for name in ("iperf3", *works)}
    for turn in range(repeats + 1):
        found = {"iperf3": 1.0 if tls else iperf(address)}
        found |= {name: rate(work, puller) for name, work in works.items()}
        for name, value in found.items():
            if turn:
                rates[name].append(value)
    firsts = [puller.first(small) for _ in range(FIRSTS)]
    sys.stdout.write(json.dumps({"rates": rates, "firsts": firsts}) + "\n")
    puller.segment.remove()


if __name__ == "__main__":
    main()
