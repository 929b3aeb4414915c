"""KV blocks through shared memory: moved whole, checked, refused if they cannot be valid."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from hardware.ub.copy import checksum
from hardware.ub.segment import UbSegment
from serving.errors import HandoffChecksumError, HandoffError, HandoffExpiredError, HandoffTimeoutError
from serving.ids import BlockHash, BlockId, NodeId, ReplicaId
from serving.instance.live.link_probe import PeerMemory
from serving.instance.live.segment_reader import Extents, SegmentPlace
from serving.instance.live.ub_transport import NO_PROBES, LinkFaults, RemoteReader, UbTransport
from serving.values.health import LinkLimits, PathFault
from serving.values.sequence import HandoffTicket

BLOCK_BYTES = 4096
BLOCKS = 8
MIB = 1 << 20


class End:
    """One instance's transport and arena."""

    def __init__(
        self,
        segment: UbSegment,
        name: str,
        *,
        node: str = "left",
        layout: str = "float32/16",
        read_remote: RemoteReader | None = None,
        limits: LinkLimits = NO_PROBES,
        faults: LinkFaults | None = None,
    ) -> None:
        self.segment = segment
        self.region = segment.allocate(BLOCKS * BLOCK_BYTES, owner=name)
        self.arena = segment.view(self.region)
        self.moved: list[int] = []
        self.transport = UbTransport(
            replica=ReplicaId(name),
            node=NodeId(node),
            segment=segment,
            arena=self.arena,
            arena_offset=self.region.offset,
            generation=self.region.generation,
            block_bytes=BLOCK_BYTES,
            layout=layout,
            read_remote=read_remote,
            served_at=lambda: ("left", 1),
            on_moved=self.moved.append,
            limits=limits,
            faults=faults,
        )

    @property
    def mapped(self) -> int:
        """Mapped segments of other instances."""
        return len(self.transport._others)

    @property
    def paired(self) -> int:
        """Sources that get probe reads."""
        return len(self.transport.probes._pairs)

    def fill(self, block: int, byte: int) -> None:
        self.arena[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES] = bytes([byte]) * BLOCK_BYTES

    def block(self, block: int) -> bytes:
        return bytes(self.arena[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES])

    def register(self, *blocks: int) -> HandoffTicket:
        ids = [BlockId(block) for block in blocks]
        return self.transport.register("ticket", ids, [BlockHash(b"h" * 16)], len(blocks) * 16)

    def pull(self, ticket: HandoffTicket, first: int, *blocks: int) -> int:
        return self.transport.pull(ticket, first, [BlockId(block) for block in blocks])


def copied(segment: UbSegment, place: SegmentPlace, extents: Extents, targets: Sequence[memoryview]) -> list[int]:
    """Extents, as if they had come over the network, and their checksums."""
    for (offset, size), target in zip(extents, targets, strict=True):
        target[:] = segment.read(offset, size, place.generation)
    return [checksum(target) for target in targets]


@pytest.fixture
def left(shm: Path) -> Iterator[UbSegment]:
    """The segment of the node `left`."""
    with UbSegment.create(shm / "ub-left", MIB) as segment:
        yield segment
        segment.remove()


@pytest.fixture
def right(shm: Path) -> Iterator[UbSegment]:
    """The segment of another node."""
    with UbSegment.create(shm / "ub-right", MIB) as segment:
        yield segment
        segment.remove()


def test_blocks_arrive_where_they_are_wanted(left: UbSegment) -> None:
    source, target = End(left, "prefill"), End(left, "decode")
    for block in range(BLOCKS):
        source.fill(block, block + 1)
        target.fill(block, 99)
    ticket = source.register(5, 2, 7)
    assert [extent.prefix_hash for extent in ticket.blocks] == [b"h" * 16, b"", b""]
    assert target.pull(ticket, 1, 6, 0) == 2 * BLOCK_BYTES
    assert (target.block(6)[0], target.block(0)[0]) == (3, 8)
    assert target.block(6) == source.block(2)
    assert [target.block(block)[0] for block in (1, 2, 3, 4, 5, 7)] == [99] * 6
    assert target.moved == [2 * BLOCK_BYTES]
    target.transport.close()


def test_a_changed_byte_is_noticed(left: UbSegment) -> None:
    source, target = End(left, "prefill"), End(left, "decode")
    source.fill(1, 7)
    ticket = source.register(0, 1)
    source.arena[BLOCK_BYTES + 100] ^= 1
    with pytest.raises(HandoffChecksumError, match="block 4 of ticket ticket from prefill"):
        target.pull(ticket, 0, 3, 4)
    assert target.moved == []


def test_another_layout_is_refused(left: UbSegment) -> None:
    source, target = End(left, "prefill"), End(left, "decode", layout="bfloat16/16")
    with pytest.raises(HandoffError, match=r"layout float32/16 from prefill does not fit bfloat16/16"):
        target.pull(source.register(0), 0, 0)


def test_a_ticket_gives_no_more_blocks_than_it_has(left: UbSegment) -> None:
    source, target = End(left, "prefill"), End(left, "decode")
    with pytest.raises(HandoffError, match="has 2 blocks"):
        target.pull(source.register(0, 1), 1, 0, 1)


def test_a_segment_that_is_gone_is_refused(left: UbSegment, right: UbSegment) -> None:
    source, target = End(left, "prefill"), End(right, "decode")
    ticket = source.register(0)
    left.remove()
    with pytest.raises(HandoffExpiredError, match="ub-left"):
        target.pull(ticket, 0, 0)


def test_a_region_that_was_given_back_is_refused(left: UbSegment) -> None:
    source, target = End(left, "prefill"), End(left, "decode")
    ticket = source.register(0)
    left.release(source.region)
    with pytest.raises(HandoffExpiredError):
        target.pull(ticket, 0, 0)
    End(left, "another prefill")  # takes the same bytes
    with pytest.raises(HandoffExpiredError):
        target.pull(ticket, 0, 0)


def test_an_extent_outside_the_segment_is_refused(left: UbSegment) -> None:
    source, target = End(left, "prefill"), End(left, "decode")
    ticket = source.register(0)
    outside = replace(ticket.blocks[0], offset=1 << 40)
    with pytest.raises(HandoffExpiredError):
        target.pull(replace(ticket, blocks=(outside,)), 0, 0)


def test_a_second_segment_of_the_node_is_mapped_once(left: UbSegment, right: UbSegment) -> None:
    source, target = End(left, "prefill"), End(right, "decode")
    source.fill(0, 5)
    ticket = source.register(0)
    for _ in range(3):
        target.pull(ticket, 0, 1)
    assert target.block(1) == source.block(0)
    assert target.mapped == 1
    target.transport.close()
    assert target.mapped == 0


def test_another_node_is_out_of_reach_without_a_reader(left: UbSegment, right: UbSegment) -> None:
    source, target = End(left, "prefill"), End(right, "decode", node="right")
    with pytest.raises(HandoffError, match="is on node left, which this process cannot reach"):
        target.pull(source.register(0), 0, 0)


def test_another_node_is_read_through_the_reader(left: UbSegment, right: UbSegment) -> None:
    asked: list[tuple[SegmentPlace, list[tuple[int, int]]]] = []

    def read(place: SegmentPlace, extents: Extents, targets: Sequence[memoryview]) -> list[int]:
        asked.append((place, list(extents)))
        return copied(left, place, extents, targets)

    source, target = End(left, "prefill"), End(right, "decode", node="right", read_remote=read)
    source.fill(2, 9)
    ticket = source.register(0, 2)
    assert target.pull(ticket, 0, 4, 5) == 2 * BLOCK_BYTES
    assert target.block(5) == source.block(2)
    places = [(extent.offset, BLOCK_BYTES) for extent in ticket.blocks]
    assert asked == [(SegmentPlace("left", 1, str(left.path), source.region.generation), places)]


def test_damage_on_the_way_from_another_node_is_noticed(left: UbSegment, right: UbSegment) -> None:
    def read(*_: object) -> list[int]:
        return [1]

    source, target = End(left, "prefill"), End(right, "decode", node="right", read_remote=read)
    with pytest.raises(HandoffChecksumError):
        target.pull(source.register(0), 0, 0)


def test_what_the_reader_raises_passes_through(left: UbSegment, right: UbSegment) -> None:
    def read(*_: object) -> list[int]:
        raise HandoffExpiredError("the node is gone")

    source, target = End(left, "prefill"), End(right, "decode", node="right", read_remote=read)
    with pytest.raises(HandoffExpiredError, match="the node is gone"):
        target.pull(source.register(0, 1), 0, 0, 1)


# ---- faults on the way, and what dummies find out about them --------------------------------------------------------


class Way:
    """A path with a delay, or broken."""

    def __init__(self) -> None:
        self.delay_s: float | None = 0.0
        self.asked: list[tuple[str, int]] = []

    def __call__(self, peer: ReplicaId, nbytes: int) -> float | None:
        self.asked.append((peer, nbytes))
        return self.delay_s if peer == "prefill" else 0.0


QUICK = LinkLimits(period_s=0.02, late_s=0.05, lost_s=0.1)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_a_delayed_pull_arrives_later(left: UbSegment) -> None:
    way = Way()
    source, target = End(left, "prefill"), End(left, "decode", faults=way)
    ticket = source.register(0, 1)
    way.delay_s = 0.05
    begun = time.monotonic()
    target.pull(ticket, 0, 2, 3)
    assert time.monotonic() - begun >= 0.05
    assert way.asked == [("prefill", 2 * BLOCK_BYTES)]
    target.transport.close()


@pytest.mark.real_time
def test_a_pull_of_which_nothing_arrives_ends_in_time(left: UbSegment) -> None:
    way = Way()
    source, target = End(left, "prefill"), End(left, "decode", faults=way, limits=LinkLimits(0.0, 0.05, 0.1))
    ticket = source.register(0)
    way.delay_s = None
    begun = time.monotonic()
    with pytest.raises(HandoffTimeoutError, match=r"nothing arrived from prefill within 0\.1 s"):
        target.pull(ticket, 0, 1)
    assert 0.1 <= time.monotonic() - begun < 1.0
    assert target.moved == []
    target.transport.close()


@pytest.mark.real_time
def test_a_broken_path_is_isolated_alone_and_comes_back(left: UbSegment, right: UbSegment) -> None:
    way = Way()
    source, other = End(left, "prefill"), End(right, "other prefill")
    target = End(left, "decode", faults=way, limits=QUICK)
    ticket, others = source.register(0), other.register(0)
    target.pull(ticket, 0, 1)
    target.pull(others, 0, 2)
    way.delay_s = None
    until(lambda: target.transport.probes.trouble() == PathFault(lost=(ReplicaId("prefill"),)))
    with pytest.raises(HandoffTimeoutError, match="the path from prefill is isolated"):
        target.pull(ticket, 0, 1)
    assert target.pull(others, 0, 2) == BLOCK_BYTES
    way.delay_s = 0.0
    until(lambda: target.transport.probes.trouble() == PathFault())
    assert target.pull(ticket, 0, 1) == BLOCK_BYTES
    target.transport.close()


@pytest.mark.real_time
def test_a_source_that_gave_its_memory_back_is_no_broken_path(left: UbSegment, right: UbSegment) -> None:
    source, target = End(left, "prefill"), End(right, "decode", limits=QUICK)
    target.pull(source.register(0), 0, 1)
    left.release(source.region)
    until(lambda: not target.paired)
    assert target.transport.probes.trouble() == PathFault()
    target.transport.close()


def test_a_source_whose_process_died_is_no_broken_path_and_keeps_no_memory(left: UbSegment, shm: Path) -> None:
    path = shm / "ub-gone"
    owner = "from hardware.ub.segment import UbSegment; import os\nfrom pathlib import Path\n"
    owner += f"s = UbSegment.create(Path({str(path)!r}), {MIB}); r = s.allocate({BLOCK_BYTES}, owner='prefill')\n"
    owner += "print(r.offset, r.generation, flush=True); input(); os._exit(1)"
    process = subprocess.Popen([sys.executable, "-c", owner], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    offset, generation = map(int, process.stdout.readline().split())
    target = End(left, "decode", limits=QUICK)
    target.transport.probes.meet(
        PeerMemory(
            ReplicaId("prefill"), NodeId("left"), SegmentPlace("", 0, str(path), generation), offset, BLOCK_BYTES
        )
    )
    until(lambda: target.transport.probes.dummies_total > 2)
    assert target.mapped == 1
    process.communicate("\n")
    until(lambda: not target.paired)
    assert target.mapped == 0
    target.transport.close()
    path.unlink()


@pytest.mark.real_time
def test_dummies_read_another_node_through_the_reader(left: UbSegment, right: UbSegment) -> None:
    asked: list[list[tuple[int, int]]] = []

    def read(place: SegmentPlace, extents: Extents, targets: Sequence[memoryview]) -> list[int]:
        asked.append(list(extents))
        return copied(left, place, extents, targets)

    source = End(left, "prefill")
    target = End(right, "decode", node="right", read_remote=read, limits=QUICK)
    ticket = source.register(2)
    target.pull(ticket, 0, 1)
    until(lambda: len(asked) >= 3)
    assert asked[1:3] == [[(ticket.blocks[0].offset, BLOCK_BYTES)]] * 2
    target.transport.close()


def test_pulls_run_side_by_side(left: UbSegment, right: UbSegment) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def way(peer: ReplicaId, nbytes: int) -> float:
        if peer == "prefill":
            begun.set()
            assert go_on.wait(60.0)
        return 0.0

    source, other = End(left, "prefill"), End(right, "other prefill")
    target = End(left, "decode", faults=way)
    ticket, others = source.register(0), other.register(0)
    slow = threading.Thread(target=target.pull, args=(ticket, 0, 1))
    slow.start()
    assert begun.wait(60.0)
    target.pull(others, 0, 2)
    assert slow.is_alive(), "it still waits, and held nobody up"
    go_on.set()
    slow.join()
    assert sorted(target.moved) == [BLOCK_BYTES] * 2
    target.transport.close()
