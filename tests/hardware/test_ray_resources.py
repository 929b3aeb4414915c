"""Resources: requests to Ray, and Ray's assignments (the last test starts a real one)."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hardware.errors import SpecError
from hardware.ray_resources import (
    first_hosts,
    node_labels,
    node_resources,
    replica_resources,
    silence_npu_probe,
)
from hardware.topology import NpuId, npu_ids


def test_what_a_node_offers_and_a_replica_takes() -> None:
    assert node_resources(8, 512) == {"NPU": 8.0, "UB_MEMORY": 512.0}
    assert node_resources(0, 512) == {"UB_MEMORY": 512.0}
    assert node_labels(3) == {"cloudmatrix-node": "3"}
    assert replica_resources(2, 64) == {"NPU": 2.0, "UB_MEMORY": 64.0}
    assert replica_resources(1, 0) == {"NPU": 1.0}
    for make in (node_resources, replica_resources):
        for amounts in ((-1, 0), (0, -1)):
            with pytest.raises(SpecError, match="neither may be negative"):
                make(*amounts)
    with pytest.raises(SpecError, match="numbered from 0"):
        node_labels(-1)


def test_which_npus_and_hosts_a_node_has() -> None:
    assert npu_ids([0, 7, 8, 383], 0) == [NpuId(0, 0), NpuId(0, 7), NpuId(1, 0), NpuId(47, 7)]
    assert npu_ids([9], 32) == [NpuId(33, 1)]
    assert npu_ids([0, 5], 3) == [NpuId(3, 0), NpuId(3, 5)]
    assert first_hosts([8, 3, 20, 8]) == [0, 1, 2, 5]
    assert first_hosts([0, 8]) == [0, 1]


class Collector(logging.Handler):
    """Stores the messages that reach a logger's handlers."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def test_only_the_probe_message_is_dropped() -> None:
    logger = logging.getLogger("ray._private.accelerators.npu")
    collector, before = Collector(), list(logger.filters)
    logger.addHandler(collector)
    try:
        silence_npu_probe()
        silence_npu_probe()
        assert len(logger.filters) == len(before) + 1
        logger.error("Failed to detect NPU type.")
        logger.error("something else")
        assert collector.messages == ["something else"]
    finally:
        logger.removeHandler(collector)
        logger.filters[:] = before


@pytest.mark.slow
def test_ray_hands_out_npus_by_number(tmp_path: Path) -> None:
    """In a separate process, so that no Ray state and no environment remains."""
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.hardware.ray_session"],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == [
        "two NPUs: ['n3.npu0', 'n3.npu1']",
        "none: NpuAllocationError",
        "left: 6 NPU, 384 UB_MEMORY",
    ]
    assert "Failed to detect NPU type" not in done.stderr
