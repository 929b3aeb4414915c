"""Terminal of a command: its console, its signals, and its name for itself."""

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.terminal import PLAIN_WIDTH, terminal_console
from serving.terminal import endings_as_interrupt, own_command, table_console
from tests.architecture.source_tree import read_sources

PRINTING = """
import sys
from serving.cli import decisions, main, status_table

class System:
    def decisions(self, question):
        words = dict.fromkeys(("pool", "kind", "by", "reason"), "")
        return [{"id": 1, "at": 0, "before": 1, "target": 2, **words}]

    def events(self, question):
        return []

decisions.system_of = lambda _: System()
status_table.fetch_status = lambda url, _: {"many": list(range(int(url.removeprefix("http://"))))}
sys.exit(main([*sys.argv[1:], "--json"]))
"""
"""Two commands for systems that do not exist."""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs with `cloudmatrix` next to the interpreter, not on PATH."""
    programs = tmp_path / "my env" / "bin"
    programs.mkdir(parents=True)
    (programs / "cloudmatrix").write_text("#!/bin/sh\n")
    (programs / "cloudmatrix").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return programs


@pytest.mark.parametrize("started", ["-c", "-m", "/somewhere/serving/cli/__main__.py", "my env/bin/cloudmatrix"])
def test_a_command_that_path_leads_to_has_its_plain_name(
    started: str, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [started, "serve"])
    monkeypatch.setenv("PATH", str(installed))
    assert own_command() == "cloudmatrix"
    monkeypatch.setattr(sys, "prefix", str(installed.parent))  # an activated environment
    assert own_command() == f"'{installed}/cloudmatrix'"


def test_a_command_that_path_does_not_lead_to_has_the_path_it_was_started_by(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["my env/bin/cloudmatrix", "serve"])
    assert own_command() == "'my env/bin/cloudmatrix'"
    other = installed.parents[1] / "cloudmatrix"  # on PATH, of another installation
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    assert own_command() == "'my env/bin/cloudmatrix'"
    monkeypatch.chdir(installed)
    monkeypatch.setattr(sys, "argv", ["cloudmatrix", "serve"])
    assert own_command() == "./cloudmatrix"


@pytest.mark.parametrize("started", ["-c", "-m", "/somewhere/serving/cli/__main__.py", "gone/cloudmatrix"])
def test_a_module_is_run_by_its_interpreter(started: str, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [started, "serve"])
    assert own_command() == f"'{installed}/python' -m serving.cli"


def test_a_pipe_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert table_console().width == PLAIN_WIDTH
    monkeypatch.setenv("COLUMNS", "240")
    assert table_console().width == 240


@pytest.mark.parametrize(
    "command", [["decisions", "--follow"], ["status", "--url", "100000"], ["status", "--url", "1"]]
)
def test_whoever_read_the_output_may_be_gone(command: list[str]) -> None:
    """`cloudmatrix decisions --follow | head -1` ends like other commands: without output, as if by SIGPIPE."""
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(
        [sys.executable, "-c", PRINTING, *command], stdout=writing, stderr=subprocess.PIPE, timeout=50, check=False
    )
    os.close(writing)
    assert (process.returncode, process.stderr) == (141, b"")


BEGINNING = """
import fcntl, signal, sys, termios, time
from pathlib import Path
from serving.terminal import endings_as_interrupt

fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_DFL if sys.argv[2] == "ends" else signal.SIG_IGN)
with endings_as_interrupt():
    try:
        print("begun", flush=True)
        while sys.argv[2] == "ends" or not Path(sys.argv[1] + ".go").exists():
            time.sleep(0.01)
    except KeyboardInterrupt:
        print("ending what was begun", flush=True)
        print("ending what was begun", flush=True, file=sys.stderr)
        Path(sys.argv[1]).write_text("ended")
"""
"""A command with cleanup work that it reports, in a separate terminal."""


@pytest.mark.parametrize("nohup", [False, True])
def test_a_terminal_that_is_closed_is_as_ctrl_c(tmp_path: Path, nohup: bool) -> None:
    ours, theirs = pty.openpty()
    told = tmp_path / "told"
    process = subprocess.Popen(
        [sys.executable, "-c", BEGINNING, str(told), "goes on" if nohup else "ends"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        said = b""
        while not said.endswith(b"\n"):  # output still in transfer when the terminal closes would fail instead
            said += os.read(ours, 100)
        os.close(ours)
        (tmp_path / "told.go").touch()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    assert told.exists() == (not nohup)


def test_handlers_are_as_before() -> None:
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with endings_as_interrupt():
        assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
    assert {kind: signal.getsignal(kind) for kind in before} == before


@pytest.mark.parametrize(
    ("variables", "colored"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_colours_follow_the_terminal_and_two_variables(
    variables: dict[str, str], colored: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TERM", "xterm")
    terminal_console().print("figure", style="green")
    assert ("\x1b[32m" in capsys.readouterr().out) is colored


def test_consoles_of_both_programs_are_made_in_one_place() -> None:
    makers = [one.path for one in read_sources("serving", "loadgen") if re.search(r"(?<![A-Za-z])Console\(", one.text)]
    assert makers == ["loadgen/terminal.py"]


def test_an_interrupt_that_a_library_replaces_is_one() -> None:
    """Torch raised ValueError when the signal came while it read the length of a storage."""
    before = signal.getsignal(signal.SIGINT)

    def replaced(number: signal.Signals) -> None:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            raise ValueError("could not determine the shape") from None

    for number in (signal.SIGINT, signal.SIGTERM):
        with pytest.raises(KeyboardInterrupt), endings_as_interrupt():
            replaced(number)
    with pytest.raises(ValueError, match="own"), endings_as_interrupt():
        raise ValueError("own")
    assert signal.getsignal(signal.SIGINT) is before
