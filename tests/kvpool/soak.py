"""A soak test of the KV-cache pool: clients that verify every byte while servers and clients die and bits flip.

    python -m tests.kvpool.soak --minutes 10

Every block's bytes follow from its hash, so a wrong byte is detected independently of checksums. At random: servers
are killed and replaced, stopped and continued, added, drained; clients are killed in the middle of an operation, or
give up early; bits flip in memory and on disk. At the end all chaos stops, one audit per server removes what the flips
left, and a second audit must be clean. The exit code is 0 if no wrong byte was served and the audits were clean.
"""

import argparse
import contextlib
import hashlib
import json
import mmap
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from hardware.ub.segment import UbSegment
from serving.errors import PoolError
from serving.ids import BlockHash, NodeId
from serving.kvpool.core.entry import Space
from serving.kvpool.core.messages import Audit, Data
from serving.kvpool.live.pool_client import PoolClient
from serving.kvpool.live.server_link import ServerLink, hello_of
from serving.values.pool_view import PoolView
from tests.kvpool.pool_cluster import PoolCluster
from tests.kvpool.server_process import forked

MIB = 1 << 20
NODE, SECRET = NodeId("n0"), "secret"
SPACES = (Space("acme", "layout-a"), Space("initech", "layout-a"), Space("acme", "layout-b"))
SIZES = (12_288, 40_960, 65_536)
CONVERSATIONS, LENGTH = 300, 24


def chain(space: int, conversation: int) -> list[BlockHash]:
    """Hashes of a conversation's blocks; conversations share beginnings by threes."""
    parent, hashes = f"{space}/{conversation // 3}".encode(), []
    for index in range(LENGTH):
        own = f"{conversation if index >= LENGTH // 3 else 0}/{index}".encode()
        parent = hashlib.blake2b(parent + own, digest_size=16).digest()
        hashes.append(BlockHash(parent))
    return hashes


def content(block: BlockHash) -> bytes:
    """The correct content of a block."""
    seed = int.from_bytes(block, "little")
    return np.random.Generator(np.random.PCG64(seed)).bytes(SIZES[seed % len(SIZES)])


class WrongBytesError(Exception):
    """Raised when a client reads wrong bytes, the failure that must never happen."""


@dataclass
class Tally:
    """Counters of one client."""

    counts: Counter[str] = field(default_factory=Counter)

    def converse(self, client: PoolClient, rng: random.Random) -> None:
        """Look a conversation up, read the found blocks, verify them, write the rest."""
        index = rng.randrange(len(SPACES))
        space = SPACES[index]
        hashes = chain(index, int(CONVERSATIONS * rng.random() ** 3))[: rng.randrange(1, LENGTH + 1)]
        patience = rng.choice((0.5, 0.5, 0.5, 0.5, 0.02, 0.003))  # the last two belong to clients that give up
        deadline = time.monotonic() + patience
        find = client.lookup(space, hashes, deadline)
        expected = [content(block) for block in hashes]
        buffers = [bytearray(len(data)) for data in expected[: find.blocks]]
        report = client.read(find, [memoryview(buffer) for buffer in buffers], deadline)
        for buffer, data in zip(buffers[: report.blocks], expected, strict=False):
            if buffer != data:
                raise WrongBytesError(f"a block of {len(data)} bytes was served wrong")
        reason = find.prefix.reason or report.reason
        self.counts["blocks asked"] += len(hashes)
        self.counts["blocks read"] += report.blocks
        self.counts["blocks read from SSD"] += report.from_ssd
        if reason is not None:
            self.counts[f"lost: {reason.value}"] += 1
        rest = [(b, memoryview(d)) for b, d in zip(hashes, expected, strict=True)][report.blocks :]
        if rest:
            stored = client.write(space, rest, time.monotonic() + patience)
            self.counts["blocks stored"] += stored.stored
            self.counts["blocks present"] += stored.present
            for why, count in stored.dropped:
                self.counts[f"dropped: {why}"] += count
        self.counts["conversations"] += 1


def run_client(view: Callable[[], PoolView], name: str, seed: int, stop: threading.Event, tally: Tally) -> None:
    """Run one client until it is stopped."""
    rng = random.Random(seed)
    client = PoolClient(name, NODE if seed % 3 else NodeId("elsewhere"), SECRET, view)
    while not stop.is_set():
        tally.converse(client, rng)
    client.close()


def child(view_file: Path, seed: int) -> None:
    """A client in a separate process, which runs until it is killed; exits with 3 on wrong bytes."""

    def view() -> PoolView:
        return msgspec.json.decode(view_file.read_bytes(), type=PoolView)

    try:
        run_client(view, f"child-{seed}", seed, threading.Event(), Tally())
    except WrongBytesError as error:
        print(error, file=sys.stderr)
        sys.exit(3)


class Chaos:
    """Random faults."""

    def __init__(self, pool: PoolCluster, ssd: Path, rng: random.Random) -> None:
        self.pool = pool
        self.counts: Counter[str] = Counter()
        self._ssd = ssd
        self._rng = rng

    def act(self) -> None:
        """One random event."""
        events = (
            self._kill,
            self._kill,
            self._freeze,
            self._add,
            self._drain,
            *(self._flip,) * 4,
            *(self._flip_ssd,) * 2,
        )
        event = self._rng.choice(events)
        event()
        self.counts[event.__name__.strip("_").replace("_", " ")] += 1

    def _kill(self) -> None:
        number = self._rng.choice(self.pool.alive())
        self.pool.kill(number, listed=self._rng.random() < 0.5)
        time.sleep(self._rng.random())
        self.pool.replace(number)

    def _freeze(self) -> None:
        server = self.pool.process(self._rng.choice(self.pool.alive()))
        server.freeze()
        time.sleep(self._rng.random() * 2)
        server.resume()

    def _add(self) -> None:
        if len(self.pool.alive()) < 4:
            self.pool.add()

    def _drain(self) -> None:
        if len(self.pool.alive()) > 2:
            number = self._rng.choice(self.pool.alive())
            self.pool.drain(number)
            time.sleep(1.0)
            self.pool.stop(number)
            self.pool.draining.discard(number)

    def _flip(self) -> None:
        record = self.pool.process(self._rng.choice(self.pool.alive())).record
        with UbSegment.attach(record.segment) as segment:
            region = next(r for r in segment.regions() if r.generation == record.generation)
            with open(segment.path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
                for _ in range(200):
                    at = region.offset + self._rng.randrange(region.nbytes)
                    memory[at] ^= 1 << self._rng.randrange(8)

    def _flip_ssd(self) -> None:
        files = [Path(folder, name) for folder, _, names in os.walk(self._ssd) for name in names if "context" in name]
        for path in self._rng.sample(files, min(5, len(files))):
            with (
                contextlib.suppress(FileNotFoundError),
                path.open("r+b") as file,
            ):  # files are created and removed concurrently
                file.seek(self._rng.randrange(max(1, os.fstat(file.fileno()).st_size)))
                byte = file.read(1)
                if byte:
                    file.seek(-1, os.SEEK_CUR)
                    file.write(bytes([byte[0] ^ 0x10]))


def audits(pool: PoolCluster, *, repair: bool) -> list[dict[str, object]]:
    """Audit of every server."""
    told = []
    for number in pool.alive():
        link = ServerLink(pool.process(number).record, hello_of("soak-audit", NODE, SECRET))
        answer = link.ask(Data, Audit(repair=repair), time.monotonic() + 60)
        told.append(answer.value)
        link.close()
    return told


def soak(seconds: float, seed: int, ssd: Path, say: Callable[[str], None]) -> tuple[Counter[str], list[str]]:
    """Run the test. Returns: counters, and detected errors."""
    rng = random.Random(seed)
    bad: list[str] = []
    tallies = [Tally(), Tally()]
    settings = {"ssd_folder": ssd, "ssd_bytes": 24 * MIB, "capacity_bytes": 8 * MIB, "slab_bytes": MIB // 4}
    with PoolCluster(3, **settings, lease_s=1.0, write_lease_s=1.0) as pool, contextlib.ExitStack() as stack:
        view_file = ssd.parent / "view.json"

        def publish() -> None:
            fresh = view_file.with_suffix(".new")
            fresh.write_bytes(msgspec.json.encode(pool.view()))
            fresh.replace(view_file)

        publish()
        stop = threading.Event()
        stack.callback(stop.set)

        def client(number: int) -> None:
            try:
                run_client(pool.view, f"thread-{number}", seed * 10 + number, stop, tallies[number])
            except Exception as error:
                bad.append(f"client {number}: {type(error).__name__}: {error}")

        threads = [threading.Thread(target=client, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        victim = forked(child, view_file, seed)
        stack.callback(lambda: victim.kill())
        chaos = Chaos(pool, ssd, rng)
        end = time.monotonic() + seconds
        while time.monotonic() < end and not bad:
            time.sleep(rng.random() * 0.8)
            if rng.random() < 0.3:
                if not victim.is_alive():
                    bad.append(f"a client ended by itself with {victim.exitcode}")
                victim.kill()
                victim.join()
                victim = forked(child, view_file, rng.randrange(1 << 30))
                chaos.counts["clients killed"] += 1
            else:
                chaos.act()
                publish()
            say(f"{max(0, end - time.monotonic()):4.0f} s left, {sum(t.counts['conversations'] for t in tallies)} done")
        stop.set()
        for thread in threads:
            thread.join(30)
            if thread.is_alive():
                bad.append("a client hangs")
        victim.kill()
        victim.join()
        bad += closing(pool)
    return sum((tally.counts for tally in tallies), chaos.counts), bad


def closing(pool: PoolCluster) -> list[str]:
    """Final phase: leases expire, one audit cleans up after the flips, the next one is clean."""
    bad = []
    time.sleep(1.2)
    try:
        found = sum(len(problems_of(told)) for told in audits(pool, repair=True))
        print(f"first audit: {found} entries with flipped bits were found and removed", file=sys.stderr)
        for told in audits(pool, repair=False):
            bad += [f"audit: {problem}" for problem in problems_of(told)]
    except PoolError as error:
        bad.append(f"audit: {error}")
    return bad


def problems_of(told: dict[str, object]) -> list[object]:
    """Problems reported by an audit."""
    problems = told["problems"]
    assert isinstance(problems, list)
    return problems


def main() -> int:
    """Command line of the soak test."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default 10)")
    parser.add_argument("--seed", type=int, default=1, help="of all chance (default 1)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ssd = Path(folder) / "ssd"
        ssd.mkdir()
        counts, bad = soak(
            arguments.minutes * 60, arguments.seed, ssd, lambda line: print(f"\r{line}", end="", flush=True)
        )
    print("\n" + json.dumps(dict(sorted(counts.items())), indent=2))
    for line in bad:
        print(f"WRONG: {line}")
    print("clean" if not bad else f"{len(bad)} faults")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
