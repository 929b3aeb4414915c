"""Commands for a system on this machine: stop, kill, logs, completion, and the serve in the background."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.cli.main import main as loadgen
from serving.cli import main
from serving.cli.status_table import process_of
from serving.cluster import session
from serving.cluster.session import RunningStart
from serving.errors import ConfigError
from serving.launch.detached import NOTIFY_SOCKET, notify_ready
from serving.telemetry import log_files
from serving.telemetry.log_files import LogFiles
from tests.cli.gateway import answering

NOW = "2026-11-29 16:28"


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that ends on SIGTERM."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def running(monkeypatch: pytest.MonkeyPatch, *starts: RunningStart) -> None:
    """Let these systems run on this machine, for as long as their launchers are alive."""

    def alive() -> list[RunningStart]:
        return [one for one in starts if _is_alive(one.pid)]

    monkeypatch.setattr(session, "running_starts", alive)


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def start(pid: int, url: str = "http://127.0.0.1:8000", logs: Path = Path("/nowhere")) -> RunningStart:
    """A system on this machine."""
    return RunningStart("s", "http://127.0.0.1:8265", url, "token", pid, logs, Path("/model"))


def test_stop_ends_the_launcher_and_waits(
    child: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running(monkeypatch, start(child.pid))
    assert main(["stop"]) == 0
    assert child.wait(10) == -signal.SIGTERM
    assert capsys.readouterr().out == "stopping http://127.0.0.1:8000 ...\n"
    assert main(["stop"]) == 3
    assert "no system of yours runs on this machine: `cloudmatrix serve` starts one" in capsys.readouterr().err


def test_one_of_several_is_chosen_by_its_address(
    child: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running(monkeypatch, start(os.getpid()), start(child.pid, "http://127.0.0.1:9000"))
    assert main(["stop"]) == 3
    assert "choose one by --url" in capsys.readouterr().err
    assert main(["stop", "--url", "127.0.0.1:9000"]) == 0
    assert child.wait(10) == -signal.SIGTERM


def status(pid: int) -> dict[str, object]:
    """A gateway's status with one decode instance, a dead one, and a memory server."""
    rows = [
        {"replica": "decode#dead", "pid": 1, "state": "dead"},
        {"replica": "decode#abc", "pid": pid, "state": "serving"},
    ]
    server = {"name": "kvcache-xyz", "pid": 77, "state": "serving"}
    return {"pools": [{"name": "decode", "replicas": rows}], "kvcache": {"servers": [server]}}


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("decode", ("decode#abc", 9)),
        ("abc", ("decode#abc", 9)),
        ("kvcache", ("kvcache-xyz", 77)),
        ("xyz", ("kvcache-xyz", 77)),
    ],
)
def test_a_process_by_its_pool_or_name(target: str, found: tuple[str, int]) -> None:
    assert process_of(status(9), target) == found


def test_a_dead_replica_is_not_found() -> None:
    with pytest.raises(ConfigError, match=r"no live replica is called dead; there are decode, kvcache, decode#abc"):
        process_of(status(9), "dead")


def test_kill_sends_the_signal(
    child: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(lambda _: (200, status(child.pid))) as url:
        running(monkeypatch, start(os.getpid(), url))
        assert main(["kill", "decode"]) == 0
        assert child.wait(10) == -signal.SIGKILL
        assert capsys.readouterr().out == f"decode#abc: SIGKILL to process {child.pid}\n"
        assert main(["kill", "decode"]) == 2
    assert "decode#abc is dead already" in capsys.readouterr().err


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Log files of a gateway and a decode instance, and one of Ray's."""
    folder = tmp_path / "serve"
    folder.mkdir()
    (folder / "replica_cloudmatrix_decode_abc.log").write_text(
        f"INFO {NOW}:01,500 d -- second\nTraceback\nINFO {NOW}:04,000 d -- last\n"
    )
    (folder / "replica_cloudmatrix_gateway_xyz.log").write_text(
        f"INFO {NOW}:01,000 g -- first\nINFO {NOW}:02,000 g -- third\n"
    )
    (folder / "other.log").write_text("not of a part\n")
    return tmp_path


def test_lines_of_all_parts_are_in_the_order_of_their_time(logs: Path) -> None:
    lines = LogFiles(logs, None).newer()
    assert [line.split()[-1] for line in lines] == ["first", "second", "Traceback", "third", "last"]


@pytest.mark.parametrize("part", ["decode", "abc"])
def test_lines_of_one_part_and_later_only_new_whole_ones(logs: Path, part: str) -> None:
    files = LogFiles(logs, part)
    assert len(files.newer()) == 3
    with (logs / "serve" / "replica_cloudmatrix_decode_abc.log").open("a") as file:
        file.write("whole\nhalf")
    assert files.newer() == ["whole"]
    with (logs / "serve" / "replica_cloudmatrix_decode_abc.log").open("a") as file:
        file.write(" and half\n")
    assert files.newer() == ["half and half"]


def test_only_the_end_of_a_long_file_is_read(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "MOST_BYTES", 40)
    assert [line.split()[-1] for line in LogFiles(logs, "decode").newer()] == ["last"]


def test_a_part_without_a_log_is_refused_and_the_others_named(
    logs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running(monkeypatch, start(os.getpid(), logs=logs))
    assert main(["logs", "prefil"]) == 2
    assert "prefil has no log; there are abc, decode, gateway, xyz" in capsys.readouterr().err
    assert main(["logs", "gateway", "--last", "1"]) == 0
    assert capsys.readouterr().out == f"INFO {NOW}:02,000 g -- third\n"


def test_a_shell_completes_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    for word in ("serve", "--detach", "completion"):
        assert word in script
    assert loadgen(["completion", "zsh"]) == 0
    assert "--request-rate" in capsys.readouterr().out


CHILD = """
import os, sys, time
from serving.launch.detached import notify_ready, start_detached
if "--detach" in sys.argv:
    raise SystemExit(start_detached())
print("starting", flush=True)
if "fails" in sys.argv:
    raise SystemExit(7)
notify_ready(os.environ.pop("NOTIFY_SOCKET"))
print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_a_start_goes_on_in_the_background_once_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", CHILD, "--detach"], capture_output=True, text=True, timeout=60, check=False
    )
    assert shown.returncode == 0
    first, *_, last = shown.stdout.splitlines()
    assert first == "starting"
    words = last.split()
    pid, log = int(words[words.index("process") + 1].rstrip(";")), Path(words[-1])
    try:
        assert _is_alive(pid)
        assert " stop` ends it; " in last
        end = time.monotonic() + 20
        while log.read_text() != f"starting\n{pid}\n" and time.monotonic() < end:
            time.sleep(0.01)
        assert log.read_text() == f"starting\n{pid}\n"
        running(monkeypatch, start(pid))
        assert main(["stop"]) == 0
        assert not log.exists()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_start_that_fails_in_the_background_is_shown_with_its_exit_code() -> None:
    command = [sys.executable, "-c", CHILD, "--detach", "fails"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (shown.returncode, shown.stdout) == (7, "starting\n")


@pytest.mark.parametrize("address", [None, "/nowhere/at/all", "@nobody-listens"])
def test_nobody_who_waits_for_readiness_is_no_error(address: str | None) -> None:
    notify_ready(address)
    assert NOTIFY_SOCKET not in os.environ
