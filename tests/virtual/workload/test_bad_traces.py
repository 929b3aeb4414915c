"""Bad traces that are read lazily, impossible ranges and numbers; see tests/contract for bad files."""

import os
from pathlib import Path
from typing import Any

import pytest

from serving.errors import ConfigError
from serving.virtual.workload.columns import BATCH, TraceError
from serving.virtual.workload.open import open_workload
from tests.cases.traces import CHAT, PLAIN, line, mooncake, written
from tests.virtual.workload.traces import listed


def test_a_large_trace_is_checked_as_it_is_read(tmp_path: Path) -> None:
    good = BATCH + 10
    path = written(tmp_path, mooncake(*(line(at, 9) for at in range(good)), line(0, 9)))
    with pytest.raises(TraceError, match=f":{good + 1}: arrives"):
        open_workload(path)
    requests = iter(open_workload(path, kept_bytes=0).requests)
    for _ in range(BATCH):
        next(requests)
    with pytest.raises(TraceError, match=f":{good + 1}: arrives"):
        list(requests)
    path = written(tmp_path, PLAIN + "1700000000,1,2\n1700000001,1,2\n")
    workload = open_workload(path, kept_bytes=0)
    assert "since 1970" in workload.notes["times"]
    assert [request.arrival_s for request in workload.requests] == [0.0, 1.0]
    with pytest.raises(TraceError, match=":2: an arrival at nan s"):
        open_workload(written(tmp_path, PLAIN + "nan,1,2\n"), kept_bytes=0)
    path = written(tmp_path, PLAIN + "0,1,2\n")
    workload = open_workload(path, kept_bytes=0)
    path.unlink()
    with pytest.raises(TraceError, match="cannot be read"):
        listed(workload)


@pytest.mark.parametrize("kept_bytes", [0, 1 << 20])
def test_a_stretch_without_requests(tmp_path: Path, kept_bytes: int) -> None:
    with pytest.raises(TraceError, match="no request arrives from 5 s to 7 s; choose another"):
        listed(open_workload(written(tmp_path, CHAT), start_s=5, duration_s=2, kept_bytes=kept_bytes))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"rate": 0}, "factor of rate is 0"),
        ({"rate": float("nan")}, "factor of rate"),
        ({"length": -1}, "factor of prompt length is -1"),
        ({"output_length": float("inf")}, "factor of output length"),
        ({"length": 0.0005}, "leave nothing of the trace's blocks of 512 tokens; take at least"),
        ({"limit": 0}, "limit 0"),
        ({"repeat": 0}, "repeat 0"),
        ({"start_s": -1}, "from -1 s"),
        ({"start_s": 1, "duration_s": 0}, "from 1 s to 1 s is no stretch"),
        ({"shard": (2, 2)}, "shard 2 of 2"),
        ({"shard": (0, 0)}, "shard 0 of 0"),
        ({"token_s": -0.1}, "answers of -0.1 s"),
        ({"clients": (1,)}, "only ServeGen folders have clients"),
    ],
)
def test_arguments_that_cannot_be(tmp_path: Path, arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        open_workload(written(tmp_path, CHAT), **arguments)


@pytest.mark.timeout(20)
def test_pipes_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    """A pipe without a writer never ends."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(TraceError, match="not a regular file"):
            open_workload(path)
