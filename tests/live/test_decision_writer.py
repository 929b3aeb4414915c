"""The writer of decision logs: whole files, without delays, and an explicit end when it has to give up."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from serving.errors import ConfigError
from serving.instance.core.engine import InstanceEngine
from serving.instance.core.engine_record import EngineHeader, header_of, recorded
from serving.instance.core.events import EngineOn, NextStep
from serving.telemetry.decision_writer import DecisionWriter, writer_in
from serving.tools.replay import replay
from serving.values.decision_log import LogEncoder
from serving.values.orders import Add
from tests.instance.bench import SETTINGS, spec

HEADER = EngineHeader("x", SETTINGS, 8)


def begun(folder: Path, name: str = "x") -> tuple[EngineOn, DecisionWriter]:
    """A recorded engine."""
    engine = InstanceEngine(SETTINGS, 8)
    writer = writer_in(str(folder), "engine", name, header_of(name, engine))
    assert writer is not None
    return recorded(engine, writer.note), writer


def await_end(writer: DecisionWriter) -> None:
    """Wait until it has stopped writing."""
    thread = writer._thread
    thread.join(60)
    assert not thread.is_alive()


def drive(on: EngineOn, calls: int) -> None:
    for call in range(calls):
        on(NextStep(), float(call))


def test_without_a_folder_nothing_is_written() -> None:
    assert writer_in("", "engine", "x", HEADER) is None


def test_logs_are_never_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    for calls in (1, 2, 3):
        on, writer = begun(folder, "decode#x/1")
        drive(on, calls)
        writer.close()
        writer.close()
        drive(on, 1)  # too late: the file is complete
    names = ["engine-decode-x-1.2.decisions", "engine-decode-x-1.3.decisions", "engine-decode-x-1.decisions"]
    found = sorted(folder.iterdir())
    assert [path.name for path in found] == names
    assert [replay(path).total for path in found] == [2, 3, 1]
    assert [replay(path).name for path in found] == ["decode#x/1"] * 3


def test_what_was_noted_is_written_soon(tmp_path: Path) -> None:
    on, writer = begun(tmp_path)
    drive(on, 700)
    deadline = time.monotonic() + 60
    while replay(writer.path).total < 700:
        assert time.monotonic() < deadline, "it writes without being closed"
        time.sleep(0.01)
    assert replay(writer.path).ending.startswith("no end was written: its process was killed")
    writer.close()
    assert replay(writer.path).ending == ""


def test_a_disk_that_cannot_keep_up_ends_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    write, begin = os.write, LogEncoder().begin(HEADER)
    monkeypatch.setattr(os, "write", lambda file, data: (bytes(data) == begin or gate.wait(100), write(file, data))[1])
    writer = DecisionWriter(str(tmp_path), "engine", "x", HEADER, max_queued=10)
    on = recorded(InstanceEngine(SETTINGS, 8), writer.note)
    begun = time.monotonic()
    drive(on, 1000)
    assert time.monotonic() - begun < 50, "nobody waits for the disk"
    gate.set()
    writer.close()
    result = replay(writer.path)
    assert result.identical
    assert 10 <= result.total < 1000
    assert result.ending == "more than 10 calls waited to be written"


def test_a_full_disk_ends_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = DecisionWriter(str(tmp_path), "engine", "x", HEADER)
    on = recorded(InstanceEngine(SETTINGS, 8), writer.note)

    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    drive(on, 100)
    await_end(writer)
    drive(on, 100)
    writer.close()
    assert "ends here: OSError: [Errno 28] No space left on device" in caplog.text
    assert replay(writer.path).total == 0


def test_a_call_that_cannot_be_written_ends_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    on, writer = begun(tmp_path)
    on(Add(spec("a", (1 << 70,))), 0.0)
    await_end(writer)
    assert "ends here: OverflowError" in caplog.text
    writer.close()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        DecisionWriter(str(tmp_path / "file"), "engine", "x", HEADER)


KILLED = """
import sys, time
from serving.instance.core.engine import InstanceEngine
from serving.instance.core.events import NextStep
from serving.instance.core.engine_record import header_of, recorded
from serving.instance.core.settings import EngineSettings
from serving.telemetry.decision_writer import writer_in
engine = InstanceEngine(EngineSettings(), 8)
on = recorded(engine, writer_in(sys.argv[1], "engine", "x", header_of("x", engine)).note)
call = 0
while True:
    on(NextStep(), float(call))
    call += 1
    time.sleep(0.0005)
"""


def test_a_killed_process_leaves_a_log_that_can_be_replayed(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)])
    path, deadline = tmp_path / "engine-x.decisions", time.monotonic() + 60
    while not path.exists() or path.stat().st_size < 2_000:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    result = replay(path)
    assert result.identical
    assert result.total > 10
    assert "its process was killed" in result.ending
