"""A turned bit is noticed by whoever reads the block, and nowhere else."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.ids import NodeId
from serving.kvpool.live.server import MemoryServer
from serving.kvpool.live.server_settings import ServerSettings
from serving.values.pool_view import ServerState
from tests.kvpool.raw_client import RawClient, hash_of

MIB = 1 << 20
BLOCK = 1 << 16


def data_of(number: int) -> bytes:
    return bytes([number]) * BLOCK


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MemoryServer]:
    settings = ServerSettings(NodeId("n0"), "secret", 8 * MIB, tmp_path, "kv_")
    running = MemoryServer(settings)
    running.start()
    yield running
    running.stop()


def test_an_empty_server_has_no_bit_to_turn(server: MemoryServer) -> None:
    assert not server.turn_bit(0.5)


@pytest.mark.parametrize("draw", [0.0, 0.3, 0.5, 0.999999])
def test_one_block_is_wrong_and_the_audit_finds_it(server: MemoryServer, draw: float) -> None:
    with RawClient(server.record(ServerState.ACTIVE)) as client:
        for number in range(4):
            client.put(hash_of(number), data_of(number))
        assert client.audit()["problems"] == []
        assert server.turn_bit(draw)
        (problem,) = client.audit()["problems"]
        assert "wrong bytes in memory" in problem
        assert hash_of(int(draw * 4)).hex() in problem
        assert server.turn_bit(draw), "turned back"
        assert client.audit()["problems"] == []
        assert all(client.get(hash_of(number)) == data_of(number) for number in range(4))
