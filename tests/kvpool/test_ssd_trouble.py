"""Disks that hang, that cannot be written, and servers that stop with much to remove."""

import errno
import os
from concurrent import futures
from pathlib import Path

import pytest

from serving.kvpool.core import messages as m
from serving.kvpool.core.entry import GrantStatus, Space
from serving.kvpool.live import ssd_worker
from tests.kvpool.raw_client import hash_of
from tests.kvpool.server_process import MIB
from tests.kvpool.ssd_case import data_of, on_disk, put_patiently, served, stored_files, wait_for_ssd
from tests.kvpool.waits import eventually, wait_for


def test_a_write_that_does_not_return_costs_no_more_than_the_disk(
    segments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssd_worker, "HANG_S", 0.3)
    with served(segments, tmp_path, capacity_bytes=4 * MIB) as (_, client, disk):
        disk.writes.clear()
        small = bytes(16 << 10)  # many more blocks than may be in transfer to the disk at a time
        number = 0
        while client.put(hash_of(number), small) is not GrantStatus.FULL:
            number += 1
        assert eventually(lambda: client.put(hash_of(1000), small) is not GrantStatus.FULL)
        for later in range(1001, 1009):
            assert client.put(hash_of(later), small) is not GrantStatus.FULL
            assert client.get(hash_of(later)) == small
        disk.open()
        assert client.audit()["problems"] == []


def test_a_file_system_that_has_become_read_only_is_still_read(
    segments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(segments, tmp_path, write_through=True) as (_, client, _disk):
        on_disk(client, *range(10))
    monkeypatch.setattr(os, "utime", read_only)
    with served(segments, tmp_path, write_through=True) as (_, client, _disk):
        assert all(client.get(hash_of(number)) == data_of(number) for number in range(10))
        assert client.audit()["entries"] == 10


def test_what_was_deleted_does_not_come_back(segments: Path, tmp_path: Path) -> None:
    with served(segments, tmp_path, write_through=True) as (_, client, disk):
        on_disk(client, *range(15))
        disk.unlink_s = 0.02
        client.ask(m.Forget("default"), m.Data)
        assert stored_files(tmp_path) == [], "the answer means that they are gone"
    with served(segments, tmp_path, write_through=True) as (_, client, _disk):
        assert client.audit()["entries"] == 0


def test_a_server_that_stops_removes_what_was_deleted_first(segments: Path, tmp_path: Path) -> None:
    with served(segments, tmp_path, write_through=True) as (server, client, disk):
        on_disk(client, *range(15))
        disk.unlink_s = 0.02
        with futures.ThreadPoolExecutor(1) as pool:
            pool.submit(client.exchange, m.Forget("default"))
            wait_for(lambda: not server.facts()["namespaces"], "it is forgotten")
            server.stop()
    assert stored_files(tmp_path) == []


def test_a_deletion_waits_for_what_is_just_being_written(segments: Path, tmp_path: Path) -> None:
    with served(segments, tmp_path, write_through=True) as (server, client, disk):
        disk.writes.clear()
        disk.unlink_s = 0.3
        put_patiently(client, 1)
        with futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(client.ask, m.Forget("default"), m.Data)
            assert eventually(lambda: server.facts()["ledger"]["hidden"] == 1)
            disk.open()
            answer.result(20)
            assert stored_files(tmp_path) == [], "the answer means that they are gone"


def test_what_the_disk_does_not_let_go_is_not_said_to_be_deleted(
    segments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(segments, tmp_path, write_through=True) as (_, client, _disk):
        put_patiently(client, *range(3))
        assert client.put(hash_of(9), b"another's", Space("other", "layout-1")) is GrantStatus.GRANTED
        wait_for_ssd(client, 4)
        with monkeypatch.context() as broken:
            broken.setattr(os, "unlink", read_only)
            refusal, _ = client.exchange(m.Forget("default"))
            assert isinstance(refusal, m.Failed)
            assert "3 files" in refusal.reason
            assert "Read-only file system" in refusal.reason
        assert len(stored_files(tmp_path)) == 4
        assert client.put(hash_of(1), b"new") is GrantStatus.GRANTED
        wait_for_ssd(client, 2)
        assert client.ask(m.Forget("default"), m.Data).value["entries"] == 1
        assert len(stored_files(tmp_path)) == 1, "that of the other one"
        assert client.audit()["ok"]


def read_only(*_args: object, **_named: object) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))
