"""Two hosts that communicate like parties: a segment is read, blocks are sent to a memory server and back, and a
command is sent.

python -m tests.deploy.talk listen ADDRESS       prints the input of `connect`; until standard input ends
python -m tests.deploy.talk connect              the printed line on standard input
python -m tests.deploy.talk capture FILE         writes all packets of this host to a file until standard input ends
"""

import asyncio
import os
import socket
import sys
import threading
import time
from pathlib import Path

import msgspec

from hardware.ub.segment import UbSegment
from serving.gateway.live.pool_links import InstanceLink
from serving.ids import BlockHash, GatewayId, NodeId, ReplicaId, SequenceId
from serving.instance.live.segment_reader import SegmentPlace, SegmentReader
from serving.instance.live.segment_server import SegmentServer
from serving.kvpool.core.entry import Space
from serving.kvpool.core.server_settings import ServerSettings
from serving.kvpool.live.pool_client import PoolClient
from serving.kvpool.live.server import MemoryServer
from serving.sockets.secrets import ClusterSecrets
from serving.values.orders import Add
from serving.values.pool_view import PoolView, ServerRecord, ServerState, ViewServer
from serving.values.sequence import SamplingParams, SequenceSpec
from serving.wire import messages as m
from serving.wire.connection import Connection, Listener, verifier_of

SECRET = "the secret of this cluster 0123456789"
KV_BYTES = b"<bytes of a KV block>"
PROMPT = tuple(range(50_000, 50_064))
BLOCK_BYTES = 64 << 10
SHM = Path("/dev/shm")
SPACE = Space("tenant", "layout")


class Addresses(msgspec.Struct):
    """Addresses of the listening host."""

    segment: tuple[str, int, str, int, int]
    server: ServerRecord
    link: tuple[str, int]


def block() -> bytearray:
    """A block filled with the text that a capture is searched for."""
    return bytearray((KV_BYTES * (BLOCK_BYTES // len(KV_BYTES) + 1))[:BLOCK_BYTES])


async def listen(host: str) -> None:
    """Serve until standard input ends."""
    segment = UbSegment.create(SHM / "ub-talk", BLOCK_BYTES, max_regions=1)
    region = segment.allocate(BLOCK_BYTES, owner="prefill")
    segment.view(region)[:] = block()
    server = SegmentServer(segment, ClusterSecrets((SECRET,)))
    address = server.start(host)
    memory = MemoryServer(ServerSettings(NodeId("left"), SECRET, 16 << 20, SHM, "ub-talk-kv-", "kv-0", host))
    memory.start()
    welcome = m.InstanceWelcome(ReplicaId("prefill#0"), "prefill", NodeId("left"), "layout", 16, 100, 1024)

    def take(connection: Connection, body: bytes) -> None:
        if isinstance(m.decode_to_instance(body), m.GatewayHello):
            connection.send(welcome)

    def accept() -> Connection:
        connection = Connection(take, lambda *_: None)
        connection.verify(verifier_of(m.LINK_CHANNEL, ClusterSecrets((SECRET,))), lambda: None)
        return connection

    listener = Listener(accept)
    place = (*address, str(segment.path), region.generation, region.offset)
    found = Addresses(place, memory.record(ServerState.ACTIVE), listener.start(host))
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    memory.stop()
    segment.remove()
    os._exit(0)


async def connect(found: Addresses) -> None:
    """Run every exchange once. Raises: the first error."""
    host, port, path, generation, offset = found.segment
    target = memoryview(bytearray(BLOCK_BYTES))
    reader = SegmentReader(ClusterSecrets((SECRET,)))
    reader.read(SegmentPlace(host, port, path, generation), [(offset, BLOCK_BYTES)], [target])
    assert target == block()
    view = PoolView("talk", (ViewServer(found.server, 1.0),))
    client, name = PoolClient("talk", NodeId("right"), SECRET, lambda: view), BlockHash(b"h" * 16)
    stored = client.write(SPACE, [(name, memoryview(block()))], time.monotonic() + 60)
    assert stored.stored == 1, stored
    target[:] = bytes(BLOCK_BYTES)
    got = client.read(client.lookup(SPACE, [name], time.monotonic() + 60), [target], time.monotonic() + 60)
    assert (got.blocks, target == block()) == (1, True), got
    link = InstanceLink(ReplicaId("prefill#0"), "i", lambda *_: None, lambda *_: None, lambda *_: None)
    await link.connect(*found.link, GatewayId("gateway"), SECRET)
    assert link.send(Add(SequenceSpec(SequenceId("s"), PROMPT, SamplingParams())))
    await asyncio.sleep(0.5)  # the command is on its way; there is no response to it
    sys.stdout.write("done\n")


def capture(path: str) -> None:
    """Write every packet of this host in order."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3)) as sock, open(path, "wb") as file:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)

        def end_with_input() -> None:
            sys.stdin.read()
            file.flush()
            os._exit(0)

        threading.Thread(target=end_with_input, daemon=True).start()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            file.write(sock.recv(1 << 17))


if __name__ == "__main__":
    if sys.argv[1] == "listen":
        asyncio.run(listen(sys.argv[2]))
    elif sys.argv[1] == "connect":
        asyncio.run(connect(msgspec.json.decode(sys.stdin.readline(), type=Addresses)))
    else:
        capture(sys.argv[2])
