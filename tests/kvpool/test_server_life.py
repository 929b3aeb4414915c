"""A memory server in this process: start, health and end, also with obstacles."""

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hardware.errors import UbFullError, UbMissingError
from serving.errors import PoolUnreachableError
from serving.kvpool.core import messages as m
from serving.kvpool.core.entry import EntryTier, Kind
from serving.kvpool.live.server import MemoryServer
from serving.kvpool.live.ssd_files import SsdFiles, SsdSlot, StoredEntry
from serving.values.pool_view import NamespaceRecord, ServerState
from tests.kvpool.raw_client import RawClient, hash_of
from tests.kvpool.server_process import MIB, settings_in
from tests.kvpool.ssd_case import served
from tests.kvpool.waits import eventually, wait_for

BLOCK = 256 << 10


@pytest.fixture
def server(segments: Path, tmp_path: Path) -> Iterator[MemoryServer]:
    running = MemoryServer(settings_in(segments, ssd_folder=tmp_path / "ssd", ssd_bytes=32 * MIB))
    running.start()
    yield running
    running.stop()
    assert list(segments.iterdir()) == []
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("kvpool")]


def test_the_segment_has_exactly_its_size(segments: Path) -> None:
    server = MemoryServer(settings_in(segments, capacity_bytes=5 * MIB))
    (path,) = segments.iterdir()
    assert 5 * MIB <= path.stat().st_blocks * 512 < 5 * MIB + (64 << 10)
    server.stop()
    server.stop()
    assert list(segments.iterdir()) == []


def test_without_memory_there_is_no_server_and_nothing_is_kept(segments: Path, tmp_path: Path) -> None:
    with pytest.raises(UbFullError):
        MemoryServer(settings_in(segments, capacity_bytes=1 << 50, ssd_folder=tmp_path, ssd_bytes=MIB))
    with pytest.raises(UbMissingError):
        MemoryServer(settings_in(segments / "nowhere", ssd_folder=tmp_path, ssd_bytes=MIB))
    assert list(segments.iterdir()) == []
    slot = SsdSlot.take(tmp_path)
    assert slot.index == 0
    slot.give_back()


def test_a_foreign_address_cannot_be_bound(segments: Path) -> None:
    server = MemoryServer(settings_in(segments, host="203.0.113.7"))
    with pytest.raises(PoolUnreachableError):
        server.start()
    server.stop()
    assert list(segments.iterdir()) == []


def test_names_are_set_or_made_of_node_and_slot(segments: Path, tmp_path: Path) -> None:
    named = MemoryServer(settings_in(segments, name="kv-7"))
    assert named.name == "kv-7"
    alone, other = MemoryServer(settings_in(segments)), MemoryServer(settings_in(segments))
    assert alone.name != other.name
    placed = MemoryServer(settings_in(segments, ssd_folder=tmp_path, ssd_bytes=MIB))
    assert placed.name == "kvcache-n0-0"
    for server in (named, alone, other, placed):
        server.stop()


def test_health_is_progress(server: MemoryServer) -> None:
    assert eventually(lambda: server.progress_age_s() < 0.2)
    with server._core.changed:  # as a handler that never lets go
        time.sleep(0.4)
        assert server.progress_age_s() > 0.25
    assert eventually(lambda: server.progress_age_s() < 0.2)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_server_without_its_disk_thread_is_not_well(segments: Path, tmp_path: Path) -> None:
    class Buggy(SsdFiles):
        def write(self, entry: StoredEntry, data: memoryview) -> None:
            raise RuntimeError("a bug of ours")

    server = MemoryServer(settings_in(segments, ssd_folder=tmp_path, ssd_bytes=32 * MIB), Buggy)
    server.start()
    with RawClient(server.record(ServerState.ACTIVE)) as client:
        for number in range(40):
            client.put(hash_of(number), bytes(BLOCK))
        assert eventually(lambda: server.progress_age_s() > 1e6)
        assert client.get(hash_of(0)) == bytes(BLOCK), "what it has it still gives"
    server.stop()


def test_the_record_of_a_draining_server(server: MemoryServer) -> None:
    record = server.record(ServerState.DRAINING)
    assert (record.state, record.node, record.models) == (ServerState.DRAINING, "n0", ())
    assert 0 <= record.uptime_s < 60
    with RawClient(record) as client:
        client.put(hash_of(1), b"w" * MIB, kind=Kind.MODEL)
        assert server.record(ServerState.ACTIVE).models == ("layout-1",)
        client.ask(m.Forget("default"), m.Data)
        assert server.record(ServerState.ACTIVE).models == ()


def test_a_smaller_quota_makes_a_tenant_shrink(server: MemoryServer) -> None:
    with RawClient(server.record(ServerState.ACTIVE)) as client:
        for number in range(8):
            client.put(hash_of(number), bytes(BLOCK))
        server.set_namespaces((NamespaceRecord("default", 3 * BLOCK),))
        assert eventually(lambda: client.ask(m.AskUsage(), m.Data).value["default"]["entries"] == 3)
        assert client.get(hash_of(7)) == bytes(BLOCK)


def test_an_entry_that_the_disk_cannot_read_just_now_stays(segments: Path, tmp_path: Path) -> None:
    with served(segments, tmp_path, capacity_bytes=4 * MIB) as (_, client, disk):
        first, second = fill_beyond_memory(client)
        disk.unreadable = True
        assert client.get(first) is None
        assert client.lookup(first) != (None,)
        disk.unreadable = False
        assert client.get(second) == bytes(BLOCK)
        assert client.get(first) == bytes(BLOCK)
        assert client.stats()["counters"]["ssd_read_errors"] == 1
        assert client.audit()["problems"] == []


def test_the_end_does_not_wait_for_a_disk_that_hangs(
    segments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.kvpool.live.ssd_worker._JOIN_S", 0.2)
    with served(segments, tmp_path, capacity_bytes=4 * MIB) as (server, client, disk):
        wanted = client.lookup(fill_beyond_memory(client)[0])[0]
        assert wanted is not None
        disk.reads.clear()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.exchange, m.Promote((wanted.version,), 30.0))
            time.sleep(0.1)
            server.stop()  # while the disk is shut: a server that waited for it would never end
            with contextlib.suppress(PoolUnreachableError):
                waiting.result(60)
        assert list(segments.iterdir()) == []


def fill_beyond_memory(client: RawClient) -> list[Any]:
    """Store until some blocks are on SSD only. Returns: the hashes of two of those."""
    for number in range(40):
        wait_for(lambda n=number: client.put(hash_of(n), bytes(BLOCK)).value != "full", "full for ever")
    for _ in range(200):
        found = client.lookup(*(hash_of(number) for number in range(40)))
        client.ask(m.ReleaseLeases(tuple(one.version for one in found if one is not None)), m.Done)
        on_ssd = [one.hash for one in found if one is not None and one.tier is EntryTier.SSD]
        if len(on_ssd) > 2:
            return on_ssd[:2]
        time.sleep(0.02)
    raise AssertionError("nothing went to SSD")
