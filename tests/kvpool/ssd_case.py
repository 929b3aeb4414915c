"""Blocks that a memory server writes to disk, and waits for them."""

import time
from pathlib import Path

from serving.kvpool.core import messages as m
from serving.kvpool.core.entry import GrantStatus
from tests.kvpool.raw_client import RawClient, hash_of

BLOCK = 256 << 10


def data_of(number: int) -> bytes:
    """A block of its own content."""
    return number.to_bytes(4, "big") * (BLOCK // 4)


def put_patiently(client: RawClient, number: int) -> None:
    """Stores a block, as often as the server says that it is full."""
    for _ in range(400):
        if client.put(hash_of(number), data_of(number)) is not GrantStatus.FULL:
            return
        time.sleep(0.01)
    raise AssertionError("full for ever")


def wait_for_ssd(client: RawClient, entries: int) -> None:
    """Until so many entries are on disk."""
    for _ in range(500):
        if sum(one.on_ssd for one in client.ask(m.List(0, 4096), m.Listed).entries) >= entries:
            return
        time.sleep(0.01)
    raise AssertionError(f"not {entries} on disk")


def stored_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.context"))
