"""A native instance's model on the pool's image, which a child process writes."""

import logging
import sys
from pathlib import Path

import pytest

from hardware.topology import NpuId
from serving.ids import NodeId, ReplicaId
from serving.instance.live.compute_native import NativePart, native_part
from serving.instance.live.pool_access import PoolAccess
from serving.values.instances import InstancePlace
from tests.instance.native_pair import native_or_skip
from tests.kvpool.pool_cluster import PoolCluster
from tests.live.harness import small_config
from tests.model.random_checkpoint import write_random_checkpoint


def test_a_child_writes_the_weights_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If no child can, torch is left to read the checkpoint in this process, and the log says why."""
    native_or_skip()
    caplog.set_level(logging.WARNING)
    config = small_config(write_random_checkpoint(tmp_path))
    place = InstancePlace(ReplicaId("r"), "decode", NodeId("n0"), (NpuId(0, 0),), tmp_path / "ub-x", "127.0.0.1", 1)
    assert native_part(config, place, None) is None
    with PoolCluster() as pool:
        access = PoolAccess(pool.view, "secret", config.kvcache)
        python = sys.executable
        monkeypatch.setattr(sys, "executable", "/nonexistent/python")
        assert native_part(config, place, access) is None
        assert "no process could write the weights" in caplog.text
        monkeypatch.setattr(sys, "executable", python)
        assert isinstance(native_part(config, place, access), NativePart)
        monkeypatch.setattr(sys, "executable", "/nonexistent/python")
        assert isinstance(native_part(config, place, access), NativePart), "the image is there"


def test_a_checkpoint_that_the_child_cannot_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    native_or_skip()
    caplog.set_level(logging.WARNING)
    folder = write_random_checkpoint(tmp_path)
    config = small_config(folder)
    place = InstancePlace(ReplicaId("r"), "decode", NodeId("n0"), (NpuId(0, 0),), tmp_path / "ub-x", "127.0.0.1", 1)
    weights = next(folder.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1000])
    with PoolCluster() as pool:
        assert native_part(config, place, PoolAccess(pool.view, "secret", config.kvcache)) is None
    assert "not a readable safetensors file" in caplog.text
