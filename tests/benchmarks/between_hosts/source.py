"""The host that is read from and written to: an instance's segment, a memory server, a plain socket.

python -m tests.benchmarks.between_hosts.source HOST TOTAL_BYTES BLOCK_BYTES ...
"""

import os
import socket
import sys
import threading
from pathlib import Path

import msgspec
import numpy as np

from hardware.ub.segment import UbSegment
from serving.ids import BlockId, NodeId
from serving.instance.live.segment_server import SegmentServer
from serving.kvpool.core.server_settings import ServerSettings
from serving.kvpool.live.model_cache import ModelCache
from serving.kvpool.live.server import MemoryServer
from serving.sockets.opening import secured
from serving.sockets.secrets import ClusterSecrets
from serving.values.pool_view import PoolView, ServerRecord, ServerState, ViewServer
from serving.values.sequence import HandoffTicket
from tests.benchmarks.bench_blocks import transport

SECRET = "the secret of a benchmark"
MODEL = "bench@1"
SHM = Path("/dev/shm")


class Offer(msgspec.Struct):
    """Addresses that the other host may read and write. `tickets` by size of block."""

    tickets: dict[int, HandoffTicket]
    server: ServerRecord
    plain: tuple[str, int]


def serve_plain(listener: socket.socket, data: memoryview) -> None:
    """Send all bytes for each received byte, like a Python program would."""
    while True:
        raw, _ = listener.accept()
        sock, _ = secured(raw)
        while sock.recv(1):
            for at in range(0, len(data), 1 << 20):
                sock.sendall(data[at : at + (1 << 20)])


def main() -> None:
    """Serve until standard input ends."""
    host, total = sys.argv[1], int(sys.argv[2])
    segment = UbSegment.create(SHM / "ub-bench-source", total, max_regions=1)
    region = segment.allocate(total, owner="prefill")
    view = segment.view(region)
    view[:] = np.random.default_rng(0).bytes(total)
    server = SegmentServer(segment, ClusterSecrets((SECRET,)))
    address = server.start(host)
    tickets = {}
    for block_bytes in map(int, sys.argv[3:]):
        end = transport("prefill", NodeId("left"), segment, region, block_bytes, served_at=lambda: address)
        tickets[block_bytes] = end.register("t", [BlockId(b) for b in range(total // block_bytes)], [], 1)
    memory = MemoryServer(
        ServerSettings(
            NodeId("left"), SECRET, 4 * total, SHM, "ub-bench-kv-", "kv-0", host, high_water=1.0, low_water=0.99
        )
    )
    memory.start()
    record = memory.record(ServerState.ACTIVE)
    shared = PoolView("bench", (ViewServer(record, 1.0),))
    assert ModelCache("bench", NodeId("left"), SECRET, lambda: shared).store(MODEL, total, lambda m: _fill(m, view))
    plain = socket.create_server((host, 0))
    threading.Thread(target=serve_plain, args=(plain, view), daemon=True).start()
    offer = Offer(tickets, record, plain.getsockname()[:2])
    sys.stdout.buffer.write(msgspec.json.encode(offer) + b"\n")
    sys.stdout.buffer.flush()
    sys.stdin.buffer.read()
    memory.stop()
    server.stop(1.0)
    segment.remove()
    os._exit(0)


def _fill(target: memoryview, source: memoryview) -> None:
    target[:] = source


if __name__ == "__main__":
    main()
