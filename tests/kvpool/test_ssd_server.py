"""A memory server with a disk: spills and loads, death and succession, damage, a full disk and a slow one."""

import os
import threading
import time
from pathlib import Path

from hardware.ub import remove_stale
from serving.kvpool.core import messages as m
from serving.kvpool.core.entry import EntryTier, GrantStatus, Kind
from serving.kvpool.live import ssd_worker
from tests.kvpool.raw_client import SPACE, RawClient, hash_of
from tests.kvpool.server_process import MIB, running_server
from tests.kvpool.ssd_case import (
    BLOCK,
    data_of,
    flip,
    on_disk,
    put_patiently,
    release,
    served,
    served_apart,
    stored_files,
    wait_for_ssd,
)
from tests.kvpool.waits import wait_for


def test_more_than_memory_holds_goes_to_disk_and_comes_back(segments: Path, tmp_path: Path) -> None:
    with served_apart(segments, tmp_path) as (_, client):
        put_patiently(client, *range(80))
        tiers = [one.tier for one in release(client, *range(80)) if one is not None]
        assert len(tiers) == 80
        assert tiers.count(EntryTier.SSD) >= 80 - 32
        assert all(client.get(hash_of(number)) == data_of(number) for number in range(80))
        proof = client.audit()
        assert (proof["problems"], proof["entries"]) == ([], 80)
        counters = client.stats()["counters"]
        assert counters["ssd_bytes_written"] >= (80 - 32) * BLOCK
        assert counters["ssd_bytes_read"] >= (80 - 32) * BLOCK


def test_the_disk_has_a_limit_too(segments: Path, tmp_path: Path) -> None:
    with served(segments, tmp_path, capacity_bytes=4 * MIB, ssd_bytes=4 * MIB) as (_, client, _disk):
        put_patiently(client, *range(60))
        assert client.get(hash_of(59)) == data_of(59)
        proof = client.audit()
        assert proof["problems"] == []
        assert proof["ssd_bytes"] <= 4 * MIB


def test_a_successor_takes_over_name_disk_and_blocks(segments: Path, tmp_path: Path) -> None:
    with served_apart(segments, tmp_path, write_through=True) as (first, client):
        client.put(hash_of(99), b"w" * MIB, kind=Kind.MODEL)
        on_disk(client, *range(20))
        wait_for_ssd(client, 21)
        first.kill()
    assert os.path.exists(first.record.segment), "a killed server cannot clean up"
    damaged, half = stored_files(tmp_path)[3], stored_files(tmp_path)[5]
    flip(damaged, -1)
    os.truncate(half, 1000)
    (damaged.parent / "left.context.tmp").write_bytes(b"half a block")
    with served_apart(segments, tmp_path, write_through=True) as (second, client):
        assert not os.path.exists(first.record.segment), "the successor removes what the dead one left"
        assert second.record.name == first.record.name
        assert second.record.incarnation != first.record.incarnation
        assert second.record.models == ("layout-1",)
        assert len(stored_files(tmp_path)) == 19, "the half file is gone, the flipped bit not yet noticed"
        got = [client.get(hash_of(number)) for number in range(20)]
        assert got.count(None) == 2
        assert all(data in (None, data_of(number)) for number, data in enumerate(got))
        assert client.audit()["problems"] == []
        assert client.stats()["counters"]["damaged_ssd"] == 1
    assert list(segments.iterdir()) == []


def test_a_living_neighbour_has_another_slot(segments: Path, tmp_path: Path) -> None:
    with served_apart(segments, tmp_path) as (one, client), served_apart(segments, tmp_path) as (two, other):
        assert one.record.name != two.record.name
        assert sorted(path.name for path in tmp_path.iterdir()) == ["slot-0", "slot-1"]
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


def test_damage_on_disk_is_found_by_an_audit(segments: Path, tmp_path: Path) -> None:
    with served(segments, tmp_path, write_through=True) as (_, client, _disk):
        on_disk(client, *range(10))
        files = stored_files(tmp_path)
        flipped, removed = files[2], files[4]
        flip(flipped, -100)
        removed.unlink()
        stray = flipped.with_name("f" * 32 + ".context")
        stray.write_bytes(b"whose is this?")
        proof = client.audit()
        assert proof["problem_count"] == 3
        text = "\n".join(proof["problems"])
        assert all(name in text for name in (flipped.stem, removed.stem, stray.name))
        assert client.audit(repair=True)["repaired"] == 3
        proof = client.audit()
        assert (proof["problems"], proof["entries"]) == ([], 8)
        assert not stray.exists()


def test_damage_in_memory_does_not_reach_the_disk(segments: Path, tmp_path: Path) -> None:
    with served(segments, tmp_path) as (_, client, _disk):
        put_patiently(client, 0)
        (found,) = release(client, 0)
        assert found is not None
        client.at(found.offset, found.nbytes)[77] ^= 2
        put_patiently(client, *range(1, 40))
        wait_for(lambda: client.lookup(hash_of(0)) == (None,), "it is noticed")
        assert client.audit()["problems"] == []
        assert hash_of(0).hex() not in {path.stem for path in stored_files(tmp_path)}


def test_an_unusable_folder_costs_the_tier_not_the_server(segments: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with served_apart(segments, tmp_path / "file") as (server, client):
        assert "ssd_path" in server.record.facts["ssd_error"]
        assert client.put(hash_of(1), data_of(1)) is GrantStatus.GRANTED
        assert client.get(hash_of(1)) == data_of(1)
        refusal, _ = client.exchange(m.Forget("default"))
        assert isinstance(refusal, m.Failed), "what is in the folder comes back when it can be used again"
        assert "ssd_path" in refusal.reason
        assert client.get(hash_of(1)) is None


def test_a_full_disk_drops_blocks_and_nothing_else(segments: Path, tmp_path: Path) -> None:
    with served(segments, tmp_path, disk_full=lambda: True) as (server, client, _):
        put_patiently(client, *range(64))
        assert client.get(hash_of(63)) == data_of(63)
        counters = client.stats()["counters"]
        assert counters["ssd_write_errors"] >= 1
        assert counters["ssd_spills_failed"] >= 1
        proof = client.audit()
        assert (proof["problems"], proof["ssd_entries"]) == ([], 0)
        assert server.progress_age_s() < 60


def test_a_slow_disk_delays_nobody_who_does_not_need_it(segments: Path, tmp_path: Path) -> None:
    with served(segments, tmp_path) as (_, client, disk):
        disk.writes.clear()
        full = 0
        for number in range(100):  # with the disk shut: a wait for it would never end
            full += client.put(hash_of(number), data_of(number)) is GrantStatus.FULL
            release(client, number, 0)
        assert full > 0, "memory is full of what waits for the disk: writers are told at once"
        disk.open()
        put_patiently(client, 200)
        assert client.get(hash_of(200)) == data_of(200)
        assert client.audit()["problems"] == []


def test_a_prefetch_brings_blocks_into_memory_for_nobody_in_particular(segments: Path, tmp_path: Path) -> None:
    with served(segments, tmp_path, prefetch_share=0.25) as (_, client, disk):
        put_patiently(client, *range(60))
        wait_for_ssd(client, 60 - 32)
        before = [one.tier for one in release(client, *range(12)) if one is not None]
        assert before == [EntryTier.SSD] * 12
        disk.reads.clear()
        ask = m.Prefetch(SPACE, tuple(map(hash_of, (*range(12), 59, 999))))
        start = time.monotonic()
        assert client.ask(ask, m.Prefetched) == m.Prefetched(in_memory=1, loading=8, missing=1, refused=4)
        assert time.monotonic() - start < 5.0, "it waits for no disk"
        disk.open()
        wait_for(lambda: client.ask(ask, m.Prefetched).loading == 0, "the loads do not end")
        ledger = client.stats()["ledger"]
        assert (ledger["counters"]["prefetches"] >= 8, ledger["leased"]) == (True, 0)
        assert [client.get(hash_of(number)) for number in range(8)] == [data_of(number) for number in range(8)]
        assert client.audit()["problems"] == []


def test_a_load_that_takes_too_long_is_not_waited_for(segments: Path, tmp_path: Path) -> None:
    with served(segments, tmp_path) as (_, client, disk):
        put_patiently(client, *range(60))
        disk.reads.clear()
        (found,) = client.lookup(hash_of(0))
        assert found is not None
        assert found.tier is EntryTier.SSD
        start = time.monotonic()
        assert client.ask(m.Promote((found.version,), 0.2), m.Promoted).found == (None,)
        assert time.monotonic() - start > 0.15
        assert client.ask(m.Promote((found.version,), 0.0), m.Promoted).found == (None,), "a hint waits for nothing"
        assert client.get(hash_of(59)) == data_of(59), "what is in memory is served meanwhile"
        disk.open()
        assert client.get(hash_of(0)) == data_of(0)


def test_a_disk_that_is_told_to_be_full_takes_nothing_until_told_otherwise(segments: Path, tmp_path: Path) -> None:
    full = threading.Event()
    full.set()
    with served(segments, tmp_path, write_through=True, disk_full=full.is_set) as (_, client, _disk):
        put_patiently(client, 0)
        wait_for(lambda: client.stats()["counters"].get("ssd_write_errors"), "it is tried")
        assert client.stats()["counters"]["ssd_write_errors"] == 1
        assert client.get(hash_of(0)) == data_of(0), "memory serves on"
        assert stored_files(tmp_path) == []
        full.clear()
        time.sleep(ssd_worker.PAUSE_S)
        on_disk(client, 1)
        assert client.audit()["problems"] == []
