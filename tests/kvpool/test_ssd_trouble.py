"""Disks that hang, that cannot be written, and servers that stop with much to remove."""

import errno
import os
import threading
import time
from concurrent import futures
from pathlib import Path

import pytest

from serving.kvpool.core import messages as m
from serving.kvpool.core.entry import GrantStatus, Space
from serving.kvpool.live import ssd_worker
from serving.kvpool.live.server import MemoryServer
from serving.kvpool.live.ssd_files import SsdFiles, StoredEntry
from serving.values.pool_view import ServerState
from tests.kvpool.raw_client import RawClient, hash_of
from tests.kvpool.server_settings import settings_in
from tests.kvpool.ssd_case import data_of, put_patiently, stored_files, wait_for_ssd
from tests.kvpool.waits import eventually


def started(segments: Path, folder: Path, **changes: object) -> MemoryServer:
    server = MemoryServer(settings_in(segments, name="kv-0", ssd_folder=folder, ssd_bytes=64 << 20, **changes))
    server.start()
    return server


def test_a_write_that_does_not_return_costs_no_more_than_the_disk(
    segments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(ssd_worker, "HANG_S", 0.3)
    monkeypatch.setattr(SsdFiles, "write", lambda self, entry, data: gate.wait(60))
    server = started(segments, tmp_path)
    try:
        with RawClient(server.record(ServerState.ACTIVE)) as client:
            small = bytes(16 << 10)  # many more blocks than may be on their way to the disk at a time
            number = 0
            while client.put(hash_of(number), small) is not GrantStatus.FULL:
                number += 1
            assert eventually(lambda: client.put(hash_of(1000), small) is not GrantStatus.FULL)
            for later in range(1001, 1009):
                assert client.put(hash_of(later), small) is not GrantStatus.FULL
                assert client.get(hash_of(later)) == small
            with server._core.changed:
                server._core.manager.check()
    finally:
        gate.set()
        server.stop()


def test_a_file_system_that_has_become_read_only_is_still_read(
    segments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = started(segments, tmp_path, write_through=True)
    with RawClient(server.record(ServerState.ACTIVE)) as client:
        for number in range(10):
            put_patiently(client, number)
        wait_for_ssd(client, 10)
    server.stop()

    monkeypatch.setattr(os, "utime", read_only)
    server = started(segments, tmp_path, write_through=True)
    with RawClient(server.record(ServerState.ACTIVE)) as client:
        assert all(client.get(hash_of(number)) == data_of(number) for number in range(10))
        assert client.audit()["entries"] == 10
    server.stop()


@pytest.mark.parametrize("how", ["forgotten", "stopped"])
def test_what_was_deleted_does_not_come_back(
    segments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    server = started(segments, tmp_path, write_through=True)
    files = server._ssd.files if server._ssd is not None else None
    assert files is not None
    with RawClient(server.record(ServerState.ACTIVE)) as client:
        for number in range(15):
            put_patiently(client, number)
        wait_for_ssd(client, 15)
        unlink, gate = files.unlink, threading.Event()

        def slow(path: str) -> None:
            gate.wait(0.02)
            unlink(path)

        monkeypatch.setattr(files, "unlink", slow)
        if how == "forgotten":
            client.ask(m.Forget("default"), m.Data)
            assert stored_files(tmp_path) == [], "the answer means that they are gone"
        else:
            with server._core.changed:
                server._core.manager.delete_namespace("default", server._core.now())
                server._core.dispatch()
    server.stop()
    assert stored_files(tmp_path) == []
    successor = started(segments, tmp_path, write_through=True)
    with RawClient(successor.record(ServerState.ACTIVE)) as client:
        assert client.audit()["entries"] == 0
    successor.stop()


def test_a_deletion_waits_for_what_is_just_being_written(
    segments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = started(segments, tmp_path, write_through=True)
    assert server._ssd is not None
    files, gate = server._ssd.files, threading.Event()
    write, unlink = files.write, files.unlink

    def held_up(entry: StoredEntry, data: memoryview) -> None:
        assert gate.wait(60)
        write(entry, data)

    def slow(path: str) -> None:
        time.sleep(0.3)
        unlink(path)

    monkeypatch.setattr(files, "write", held_up)
    monkeypatch.setattr(files, "unlink", slow)
    with RawClient(server.record(ServerState.ACTIVE)) as client:
        put_patiently(client, 1)
        with futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(client.ask, m.Forget("default"), m.Data)
            assert eventually(lambda: server.facts()["ledger"]["hidden"] == 1)
            gate.set()
            answer.result(20)
            assert stored_files(tmp_path) == [], "the answer means that they are gone"
    server.stop()


def test_what_the_disk_does_not_let_go_is_not_said_to_be_deleted(
    segments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = started(segments, tmp_path, write_through=True)
    with RawClient(server.record(ServerState.ACTIVE)) as client:
        for number in range(3):
            put_patiently(client, number)
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
    server.stop()


def read_only(*_args: object, **_named: object) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))
