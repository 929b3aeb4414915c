"""A system of the command's own: how a start that fails is told, and what is looked for when it has ended."""

import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from serving.errors import UnavailableError
from serving.tools.chaos import own_system
from serving.tools.chaos.own_system import OwnSystem, keep_logs, left_after
from serving.tools.chaos.targets import start_ticks

CONFIG = """
[model]
path = "{folder}/no-model"
"""


def test_a_start_that_fails_is_told_with_its_reason(tmp_path: Path) -> None:
    config = tmp_path / "system.toml"
    config.write_text(CONFIG.format(folder=tmp_path))
    before = set(Path(tempfile.gettempdir()).glob("cloudmatrix-chaos-*"))
    with pytest.raises(UnavailableError, match=r"did not start: .*no model folder"), OwnSystem(config):
        pass
    assert set(Path(tempfile.gettempdir()).glob("cloudmatrix-chaos-*")) <= before, "its output has gone"


def test_what_is_left_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.cluster.session._temporary", lambda: tmp_path)
    monkeypatch.setattr(own_system, "LEFT_S", 0.1)
    session = secrets.token_hex(6)
    segment = Path(f"/dev/shm/cloudmatrix-ub-{session}-node-decode-1")
    segment.touch()
    try:
        (tmp_path / f"cloudmatrix-{session}").mkdir()
        told = left_after(session)
    finally:
        segment.unlink()
    assert [line for line in told if segment.name in line]
    assert [line for line in told if "folder" in line]

    assert left_after(secrets.token_hex(6)) == []


def test_logs_are_kept_where_there_are_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.cluster.session._temporary", lambda: tmp_path)
    logs = tmp_path / "cloudmatrix-abc" / "ray" / "session_latest" / "logs" / "serve"
    logs.mkdir(parents=True)
    (logs / "replica.log").write_text("why")
    keep_logs("abc", tmp_path / "out")
    assert (tmp_path / "out" / "replica.log").read_text() == "why"
    keep_logs("none", tmp_path / "other")
    assert not (tmp_path / "other").exists()


CHILD = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("interrupted", [False, True])
def test_whoever_does_not_go_is_killed_and_told(monkeypatch: pytest.MonkeyPatch, interrupted: bool) -> None:
    monkeypatch.setattr(own_system, "STOP_S", 30.0 if interrupted else 0.3)
    system = OwnSystem(Path("system.toml"))
    system._process = process = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    grandchild = int(process.stdout.readline())
    process.stdout.close()
    if interrupted:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
        threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            system.stop()
        signal.signal(signal.SIGINT, before)
    else:
        system.stop()
    assert process.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while start_ticks(grandchild) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert start_ticks(grandchild) is None
    assert system.left == [f"after the end: process {pid} of the system" for pid in (process.pid, grandchild)]
