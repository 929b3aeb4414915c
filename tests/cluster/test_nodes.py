"""Cleanup of the memory of dead replicas by the living replicas of a node."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from hardware.ub.segment import UbSegment
from serving.cluster import nodes
from serving.cluster.nodes import SEGMENT_PREFIX, own_npu_share, sweep_forever
from tests.cluster.node_case import listed
from tests.live.harness import until


def test_memory_of_a_killed_replica_is_freed_by_those_that_live(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On a user's own Ray cluster, without a launcher, it remained until the next replica started."""
    monkeypatch.setattr(nodes, "SHARED_MEMORY", tmp_path / "later")
    monkeypatch.setattr(nodes, "SWEEP_PERIOD_S", 0.01)
    killed, frozen, other = (tmp_path / f"{SEGMENT_PREFIX}{name}" for name in ("abc123-n-a", "abc123-n-b", "def456-n"))

    async def scene(dies: subprocess.Popen[bytes], lives: subprocess.Popen[bytes]) -> None:
        sweeper = asyncio.create_task(sweep_forever("abc123"))
        await until(lambda: "trying again" in caplog.text, "a look fails, and does not end the others")
        monkeypatch.setattr(nodes, "SHARED_MEMORY", tmp_path)
        owners = (killed, dies), (frozen, lives), (other, dies)
        segments = [UbSegment.create(path, 4096, owner.pid) for path, owner in owners]
        assert all(path.exists() for path in (killed, frozen, other))
        dies.kill()
        dies.wait()
        await until(lambda: not killed.exists(), "its memory is freed")
        sweeper.cancel()
        assert (frozen.exists(), other.exists()) == (True, True), "alive, and of another start"
        for segment in segments:
            segment.close()

    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as dies,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as lives,
    ):
        asyncio.run(scene(dies, lives))


@pytest.mark.parametrize(
    ("hosts", "share"),
    [
        ({"10.0.0.1": [8], "10.0.0.2": [8]}, 0.5),
        ({"10.0.0.1": [8, 8], "10.0.0.2": [16]}, 0.5),
        ({"10.0.0.1": [8], "10.0.0.2": [16, 0]}, 1 / 3),
        ({"10.0.0.1": [8, 4]}, 1.0),
        ({"10.0.0.1": [0], "10.0.0.2": [8]}, 1.0),
        ({"10.0.0.1": [0]}, 1.0),
    ],
)
def test_a_machine_has_its_share_of_the_npus(
    hosts: dict[str, list[int]], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All nodes of one machine share its cores, for any number of nodes; dead nodes have none."""
    rows = [listed("n", npus=npus, address=address) for address, each in hosts.items() for npus in each]
    monkeypatch.setattr(ray, "nodes", lambda: [*rows, listed("gone", alive=False)])
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.1")
    assert own_npu_share() == pytest.approx(share)
