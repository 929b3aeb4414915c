"""A memory server with a disk: spills and loads, death and succession, damage, a full disk and a slow one."""

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hardware.ub import remove_stale
from serving.ids import NodeId
from serving.kvpool.core import messages as m
from serving.kvpool.core.entry import EntryTier, GrantStatus, Kind
from serving.kvpool.live import ssd_files, ssd_worker
from serving.kvpool.live.server import MemoryServer
from serving.kvpool.live.server_settings import ServerSettings
from serving.kvpool.live.ssd_files import SsdFiles
from serving.values.pool_view import ServerRecord, ServerState
from tests.kvpool.raw_client import RawClient, hash_of
from tests.kvpool.server_process import MIB, running_server, start_server
from tests.kvpool.ssd_case import BLOCK, data_of, put_patiently, stored_files, wait_for_ssd


@pytest.fixture
def threads_server(segments: Path, tmp_path: Path) -> Iterator[tuple[MemoryServer, ServerRecord]]:
    """A server in this process, so that a test can reach its disk."""
    server = MemoryServer(in_process_settings(segments, tmp_path))
    server.start()
    yield server, server.record(ServerState.ACTIVE)
    server.stop()
    server.stop()
    assert list(segments.iterdir()) == []


def in_process_settings(segments: Path, folder: Path, **changes: object) -> ServerSettings:
    values: dict[str, object] = {
        "node": NodeId("n0"),
        "secret": "secret",
        "capacity_bytes": 8 * MIB,
        "segment_folder": segments,
        "segment_prefix": "kv_",
        "ssd_folder": folder / "ssd",
        "ssd_bytes": 64 * MIB,
        **changes,
    }
    return ServerSettings(**values)  # type: ignore[arg-type]


def test_more_than_memory_holds_goes_to_disk_and_comes_back(segments: Path, tmp_path: Path) -> None:
    with (
        running_server(segments, capacity_bytes=8 * MIB, ssd_folder=tmp_path, ssd_bytes=64 * MIB) as server,
        RawClient(server.record) as client,
    ):
        for number in range(80):
            put_patiently(client, number)
        found = client.lookup(*(hash_of(number) for number in range(80)))
        tiers = [one.tier for one in found if one is not None]
        assert len(tiers) == 80
        assert tiers.count(EntryTier.SSD) >= 80 - 32
        client.ask(m.ReleaseLeases(tuple(one.version for one in found if one is not None)), m.Done)
        assert all(client.get(hash_of(number)) == data_of(number) for number in range(80))
        proof = client.audit()
        assert proof["problems"] == []
        assert proof["entries"] == 80
        counters = client.stats()["counters"]
        assert counters["ssd_bytes_written"] >= (80 - 32) * BLOCK
        assert counters["ssd_bytes_read"] >= (80 - 32) * BLOCK


def test_the_disk_has_a_limit_too(segments: Path, tmp_path: Path) -> None:
    with (
        running_server(segments, capacity_bytes=4 * MIB, ssd_folder=tmp_path, ssd_bytes=4 * MIB) as server,
        RawClient(server.record) as client,
    ):
        for number in range(60):
            put_patiently(client, number)
        assert client.get(hash_of(59)) == data_of(59)
        proof = client.audit()
        assert proof["problems"] == []
        assert proof["ssd_bytes"] <= 4 * MIB


def test_a_successor_takes_over_name_disk_and_blocks(segments: Path, tmp_path: Path) -> None:
    settings = {"capacity_bytes": 8 * MIB, "ssd_folder": tmp_path, "ssd_bytes": 64 * MIB, "write_through": True}
    first = start_server(segments, **settings)
    with RawClient(first.record) as client:
        for number in range(20):
            put_patiently(client, number)
        wait_for_ssd(client, 20)
        first.kill()
    first.stop()
    assert os.path.exists(first.record.segment), "a killed server cannot clean up"
    damaged = stored_files(tmp_path)[3]
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    half = stored_files(tmp_path)[5]
    os.truncate(half, 1000)
    (damaged.parent / "left.context.tmp").write_bytes(b"half a block")
    with running_server(segments, **settings) as second, RawClient(second.record) as client:
        assert not os.path.exists(first.record.segment), "the successor removes what the dead one left"
        assert second.record.name == first.record.name
        assert second.record.incarnation != first.record.incarnation
        assert len(stored_files(tmp_path)) == 19, "the half file is gone, the flipped bit not yet noticed"
        got = [client.get(hash_of(number)) for number in range(20)]
        assert got.count(None) == 2
        assert all(data in (None, data_of(number)) for number, data in enumerate(got))
        assert client.audit()["problems"] == []
        assert client.stats()["counters"]["damaged_ssd"] == 1
    assert list(segments.iterdir()) == []


def test_a_living_neighbour_has_another_slot(segments: Path, tmp_path: Path) -> None:
    settings = {"ssd_folder": tmp_path, "ssd_bytes": MIB}
    with running_server(segments, **settings) as one, running_server(segments, **settings) as two:
        assert one.record.name != two.record.name
        assert sorted(path.name for path in tmp_path.iterdir()) == ["slot-0", "slot-1"]
        with RawClient(one.record) as client, RawClient(two.record) as other:
            put_patiently(client, 1)
            assert other.get(hash_of(1)) is None


def test_a_frozen_server_keeps_its_segment(segments: Path) -> None:
    with running_server(segments) as server:
        server.freeze()
        assert remove_stale(segments, "kv_") == []
        server.resume()
        with RawClient(server.record) as client:
            assert client.put(hash_of(1), b"x" * 5000) is GrantStatus.GRANTED
        server.kill()
        assert [str(path) for path in remove_stale(segments, "kv_")] == [server.record.segment]


def test_models_are_known_to_the_successor(segments: Path, tmp_path: Path) -> None:
    settings = {"capacity_bytes": 8 * MIB, "ssd_folder": tmp_path, "ssd_bytes": 64 * MIB, "write_through": True}
    with running_server(segments, **settings) as server, RawClient(server.record) as client:
        client.put(hash_of(1), b"w" * MIB, kind=Kind.MODEL)
        wait_for_ssd(client, 1)
        server.kill()
    with running_server(segments, **settings) as server:
        assert server.record.models == ("layout-1",)


def test_damage_on_disk_is_found_by_an_audit(segments: Path, tmp_path: Path) -> None:
    settings = {"capacity_bytes": 8 * MIB, "ssd_folder": tmp_path, "ssd_bytes": 64 * MIB, "write_through": True}
    with running_server(segments, **settings) as server, RawClient(server.record) as client:
        for number in range(10):
            put_patiently(client, number)
        wait_for_ssd(client, 10)
        files = stored_files(tmp_path)
        flipped, removed = files[2], files[4]
        whole = bytearray(flipped.read_bytes())
        whole[-100] ^= 4
        flipped.write_bytes(whole)
        removed.unlink()
        stray = flipped.with_name("f" * 32 + ".context")
        stray.write_bytes(b"whose is this?")
        proof = client.audit()
        assert proof["problem_count"] == 3
        text = "\n".join(proof["problems"])
        for name in (flipped.stem, removed.stem, stray.name):
            assert name in text
        assert client.audit(repair=True)["repaired"] == 3
        proof = client.audit()
        assert (proof["problems"], proof["entries"]) == ([], 8)
        assert not stray.exists()


def test_damage_in_memory_does_not_reach_the_disk(segments: Path, tmp_path: Path) -> None:
    settings = {"capacity_bytes": 8 * MIB, "ssd_folder": tmp_path, "ssd_bytes": 64 * MIB}
    with running_server(segments, **settings) as server, RawClient(server.record) as client:
        put_patiently(client, 0)
        (found,) = client.lookup(hash_of(0))
        assert found is not None
        client.at(found.offset, found.nbytes)[77] ^= 2
        client.ask(m.ReleaseLeases((found.version,)), m.Done)
        for number in range(1, 40):
            put_patiently(client, number)
        for _ in range(200):
            if client.lookup(hash_of(0)) == (None,):
                break
            time.sleep(0.02)
        assert client.lookup(hash_of(0)) == (None,)
        assert client.audit()["problems"] == []
        assert hash_of(0).hex() not in {path.stem for path in stored_files(tmp_path)}


def test_an_unusable_folder_costs_the_tier_not_the_server(segments: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with (
        running_server(segments, ssd_folder=tmp_path / "file", ssd_bytes=MIB) as server,
        RawClient(server.record) as client,
    ):
        assert "ssd_path" in server.record.facts["ssd_error"]
        assert client.put(hash_of(1), data_of(1)) is GrantStatus.GRANTED
        assert client.get(hash_of(1)) == data_of(1)
        refusal, _ = client.exchange(m.Forget("default"))
        assert isinstance(refusal, m.Failed), "what is in the folder comes back when it can be used again"
        assert "ssd_path" in refusal.reason
        assert client.get(hash_of(1)) is None


def test_a_full_disk_drops_blocks_and_nothing_else(
    threads_server: tuple[MemoryServer, ServerRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk refuses every write from now on, as one without room does."""

    def refuse(path: str, header: bytes, data: memoryview) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ssd_files, "_write_whole", refuse)
    server, record = threads_server
    with RawClient(record) as client:
        for number in range(64):
            put_patiently(client, number)
        assert client.get(hash_of(63)) == data_of(63)
        counters = client.stats()["counters"]
        assert counters["ssd_write_errors"] >= 1
        assert counters["ssd_spills_failed"] >= 1
        proof = client.audit()
        assert (proof["problems"], proof["ssd_entries"]) == ([], 0)
    assert server.progress_age_s() < 60


def test_a_slow_disk_delays_nobody_who_does_not_need_it(
    segments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    write = ssd_files._write_whole

    def slow(path: str, header: bytes, data: memoryview) -> None:
        gate.wait(100)
        write(path, header, data)

    monkeypatch.setattr(ssd_files, "_write_whole", slow)
    server = MemoryServer(in_process_settings(segments, tmp_path))
    server.start()
    try:
        with RawClient(server.record(ServerState.ACTIVE)) as client:
            longest, full = 0.0, 0
            for number in range(100):
                start = time.monotonic()
                full += client.put(hash_of(number), data_of(number)) is GrantStatus.FULL
                found = client.lookup(hash_of(number), hash_of(0))
                client.ask(m.ReleaseLeases(tuple(one.version for one in found if one is not None)), m.Done)
                longest = max(longest, time.monotonic() - start)
            assert longest < 50
            assert full > 0, "memory is full of what waits for the disk: writers are told at once"
            gate.set()
            put_patiently(client, 200)
            assert client.get(hash_of(200)) == data_of(200)
            assert client.audit()["problems"] == []
    finally:
        gate.set()
        server.stop()
    assert list(segments.iterdir()) == []


def test_a_load_that_takes_too_long_is_not_waited_for(
    segments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = in_process_settings(segments, tmp_path)
    server = MemoryServer(settings)
    server.start()
    gate = threading.Event()
    read = SsdFiles.read
    monkeypatch.setattr(SsdFiles, "read", lambda self, entry, target: gate.wait(100) and read(self, entry, target))
    try:
        with RawClient(server.record(ServerState.ACTIVE)) as client:
            for number in range(60):
                put_patiently(client, number)
            (found,) = client.lookup(hash_of(0))
            assert found is not None
            assert found.tier is EntryTier.SSD
            start = time.monotonic()
            assert client.ask(m.Promote((found.version,), 0.2), m.Promoted).found == (None,)
            assert 0.15 < time.monotonic() - start < 50
            assert client.ask(m.Promote((found.version,), 0.0), m.Promoted).found == (None,), "a hint waits for nothing"
            assert client.get(hash_of(59)) == data_of(59), "what is in memory is served meanwhile"
            gate.set()
            assert client.get(hash_of(0)) == data_of(0)
    finally:
        gate.set()
        server.stop()


def test_a_disk_that_is_told_to_be_full_takes_nothing_until_told_otherwise(segments: Path, tmp_path: Path) -> None:
    full = threading.Event()
    full.set()
    server = MemoryServer(in_process_settings(segments, tmp_path, write_through=True, disk_full=full.is_set))
    server.start()
    try:
        with RawClient(server.record(ServerState.ACTIVE)) as client:
            put_patiently(client, 0)
            deadline = time.monotonic() + 60
            while not client.stats()["counters"].get("ssd_write_errors") and time.monotonic() < deadline:
                time.sleep(0.01)
            assert client.stats()["counters"]["ssd_write_errors"] == 1
            assert client.get(hash_of(0)) == data_of(0), "memory serves on"
            assert stored_files(tmp_path) == []
            full.clear()
            time.sleep(ssd_worker.PAUSE_S)
            put_patiently(client, 1)
            wait_for_ssd(client, 1)
            assert client.audit()["problems"] == []
    finally:
        server.stop()
