"""Files that a deployed system leaves on a host go, and nobody else's."""

from pathlib import Path

import pytest

from serving.cluster.session import SystemSession
from serving.launch import traces
from serving.launch.traces import remove_traces


def test_everything_of_a_session_goes_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, folder = tmp_path / "shm", tmp_path / "cloudmatrix.abc123"
    (folder / "kvcache").mkdir(parents=True)
    memory.mkdir()
    monkeypatch.setattr(traces, "SHARED_MEMORY", memory)
    monkeypatch.setattr(traces, "deployed_session", lambda name: SystemSession(name, folder, ""))
    for name in ("cloudmatrix-ub-abc123-node-decode", "cloudmatrix-ub-abc124-node-decode", "other"):
        (memory / name).touch()
    assert remove_traces("abc123") == 2
    assert not folder.exists()
    assert {path.name for path in memory.iterdir()} == {"cloudmatrix-ub-abc124-node-decode", "other"}
    assert remove_traces("abc123") == 0
