"""A flipped bit is detected by readers of its block, and only there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.kvpool.live.server import MemoryServer
from serving.values.pool_view import ServerState
from tests.kvpool.raw_client import RawClient, hash_of
from tests.kvpool.server_process import settings_in

BLOCK = 1 << 16


def data_of(number: int) -> bytes:
    return bytes([number]) * BLOCK


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MemoryServer]:
    running = MemoryServer(settings_in(tmp_path))
    running.start()
    yield running
    running.stop()


def test_one_block_is_wrong_and_the_audit_finds_it(server: MemoryServer) -> None:
    assert not server.turn_bit(0.5), "it is empty"
    with RawClient(server.record(ServerState.ACTIVE)) as client:
        for number in range(4):
            client.put(hash_of(number), data_of(number))
        for draw in (0.0, 0.3, 0.5, 0.999999):
            assert client.audit()["problems"] == []
            assert server.turn_bit(draw)
            (problem,) = client.audit()["problems"]
            assert "wrong bytes in memory" in problem
            assert hash_of(int(draw * 4)).hex() in problem
            assert server.turn_bit(draw), "turned back"
        assert all(client.get(hash_of(number)) == data_of(number) for number in range(4))
