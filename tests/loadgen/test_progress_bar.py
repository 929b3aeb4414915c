"""Progress of a long command: a bar on a terminal, plain lines otherwise, no output when quiet."""

import io
import os
import threading

import pytest
from rich.console import Console

from loadgen.progress_bar import ProgressBar, ProgressConsole


class Lines(io.StringIO):
    """A file that signals when this many lines have been written."""

    def __init__(self, wanted: int) -> None:
        super().__init__()
        self._wanted = wanted
        self.written = threading.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.getvalue().count("\n") >= self._wanted:
            self.written.set()
        return written


def test_a_plain_line_says_how_far_it_is() -> None:
    bar = ProgressBar("compiling", 40, counted=True)
    assert bar.line(3.0) == "compiling: 0 %, 0 of 40, 3.00 s so far"
    bar.update(9)
    bar.advance()
    assert bar.line(20.0) == "compiling: 25.0 %, 10 of 40, 20.0 s so far"
    bar.update(50, "one more", what="linking")
    assert bar.line(125.0) == "linking: 100 %, 50 of 40, one more, 2 min 05 s so far"

    bar = ProgressBar("planning")
    bar.update(3, "3 simulations")
    assert bar.line(10.0) == "planning: 3 simulations, 10.0 s so far"
    assert ProgressBar().line(10.0) == "10.0 s so far"

    bar = ProgressBar("reading", 10, counted=True)
    bar.update(7, "words")
    bar.begin("scoring", 20)
    assert bar.line(1.0) == "scoring: 0 %, 0 of 20, 1.00 s so far"


def test_who_reads_it_decides_how_it_is_shown() -> None:
    lines = Lines(2)
    with ProgressBar("waiting", console=Console(file=lines), every_s=0.001):
        assert lines.written.wait(30.0)
    assert all(line.startswith("waiting: ") for line in lines.getvalue().splitlines())
    assert not [thread for thread in threading.enumerate() if thread.name == "progress"]

    file = io.StringIO()
    with ProgressBar("quick", 1, console=Console(file=file)) as bar:
        bar.update(1)
    assert file.getvalue() == ""

    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    with ProgressBar("compiling", 40, counted=True, console=console, every_s=0.001) as bar:
        bar.update(10)
        bar.begin("[linking]", 4)
        bar.update(2, "[b]words[/b]")
    shown = file.getvalue()
    assert "[linking]" in shown
    assert "2 of 4, [b]words[/b]" in shown
    assert "so far" not in shown


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_is_quiet(terminal: bool) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal)
    with ProgressBar("compiling", 40, console=console, quiet=True, every_s=0.001) as bar:
        bar.update(10)
    assert file.getvalue() == ""


def test_a_command_goes_on_when_nobody_reads_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr("sys.stderr", pipe)
        console = ProgressConsole()
        os.close(reading)
        console.print("one")
        console.print("two")
        assert console.quiet
        assert os.path.samestat(os.fstat(pipe.fileno()), os.stat(os.devnull)), "what is still said goes nowhere"
