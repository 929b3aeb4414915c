"""Files of a deployed system on a host are removed, and no others."""

from pathlib import Path

import pytest

from serving.cluster.session import SystemSession
from serving.launch import system_files
from serving.launch.system_files import remove_system_files


def test_everything_of_a_session_goes_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, folder = tmp_path / "shm", tmp_path / "cloudmatrix.abc123"
    (folder / "kvcache").mkdir(parents=True)
    memory.mkdir()
    monkeypatch.setattr(system_files, "SHARED_MEMORY", memory)
    monkeypatch.setattr(system_files, "deployed_session", lambda name: SystemSession(name, folder, ""))
    for name in ("cloudmatrix-ub-abc123-node-decode", "cloudmatrix-ub-abc124-node-decode", "other"):
        (memory / name).touch()
    assert remove_system_files("abc123") == 2
    assert not folder.exists()
    assert {path.name for path in memory.iterdir()} == {"cloudmatrix-ub-abc124-node-decode", "other"}
    assert remove_system_files("abc123") == 0
