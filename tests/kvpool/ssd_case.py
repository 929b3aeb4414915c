"""Memory servers with a disk, blocks that they write to it, and waits for them."""

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

from serving.errors import SsdError
from serving.kvpool.core import messages as m
from serving.kvpool.core.entry import Found, GrantStatus
from serving.kvpool.live.server import MemoryServer
from serving.kvpool.live.ssd_files import SsdFiles, StoredEntry
from serving.values.pool_view import ServerState
from tests.kvpool.raw_client import RawClient, hash_of
from tests.kvpool.server_process import MIB, ServerProcess, running_server, settings_in
from tests.kvpool.waits import wait_for

BLOCK = 256 << 10
SIZES = {"capacity_bytes": 8 * MIB, "ssd_bytes": 64 * MIB}


class GatedDisk(SsdFiles):
    """A disk that reads, writes and removes only while its gates are open, as initially.

    Attributes:
        unreadable: whether reads fail.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.reads, self.writes = Event(), Event()
        self.open()
        self.unreadable = False
        self.unlink_s = 0.0

    def open(self) -> None:
        """Open all gates."""
        self.reads.set()
        self.writes.set()

    def read(self, entry: StoredEntry, target: memoryview) -> bool:
        """Read like `SsdFiles.read`."""
        assert self.reads.wait(100)
        if self.unreadable:
            raise SsdError(os.strerror(errno.EIO))
        return super().read(entry, target)

    def write(self, entry: StoredEntry, data: memoryview) -> None:
        """Write like `SsdFiles.write`."""
        assert self.writes.wait(100)
        super().write(entry, data)

    def unlink(self, path: str) -> None:
        """Unlink like `SsdFiles.unlink`, after a delay."""
        time.sleep(self.unlink_s)
        super().unlink(path)


@contextlib.contextmanager
def served(segments: Path, folder: Path, **changes: Any) -> Iterator[tuple[MemoryServer, RawClient, GatedDisk]]:
    """A server in this process, a client of it, and its disk."""
    disks: list[GatedDisk] = []

    class Disk(GatedDisk):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            disks.append(self)

    server = MemoryServer(settings_in(segments, **{"name": "kv-0", "ssd_folder": folder, **SIZES, **changes}), Disk)
    server.start()
    try:
        with RawClient(server.record(ServerState.ACTIVE)) as client:
            yield server, client, disks[0]
    finally:
        disks[0].open()
        server.stop()
    assert list(segments.iterdir()) == []


@contextlib.contextmanager
def served_apart(segments: Path, folder: Path, **changes: Any) -> Iterator[tuple[ServerProcess, RawClient]]:
    """A server in a separate process, and a client of it."""
    with running_server(segments, **{"ssd_folder": folder, **SIZES, **changes}) as server:
        with RawClient(server.record) as client:
            yield server, client


def data_of(number: int) -> bytes:
    """A block with unique content."""
    return number.to_bytes(4, "big") * (BLOCK // 4)


def put_patiently(client: RawClient, *numbers: int) -> None:
    """Store blocks, retrying while the server reports that it is full."""
    for number in numbers:
        wait_for(lambda n=number: client.put(hash_of(n), data_of(n)) is not GrantStatus.FULL, "full for ever")


def wait_for_ssd(client: RawClient, entries: int) -> None:
    """Wait until this many entries are on disk."""

    def there() -> bool:
        return sum(one.on_ssd for one in client.ask(m.List(0, 4096), m.Listed).entries) >= entries

    wait_for(there, f"not {entries} on disk")


def on_disk(client: RawClient, *numbers: int) -> None:
    """Store blocks and wait until they are on disk too; the server writes through."""
    put_patiently(client, *numbers)
    wait_for_ssd(client, len(numbers))


def release(client: RawClient, *numbers: int) -> list[Found | None]:
    """Found entries of these blocks, without keeping leases."""
    found = client.lookup(*map(hash_of, numbers))
    client.ask(m.ReleaseLeases(tuple(one.version for one in found if one is not None)), m.Done)
    return list(found)


def flip(path: Path, at: int) -> None:
    """Damage one byte of a file."""
    whole = bytearray(path.read_bytes())
    whole[at] ^= 4
    path.write_bytes(whole)


def stored_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.context"))
