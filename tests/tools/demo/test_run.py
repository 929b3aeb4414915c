"""Steps in turn: the outcome of each, and of the others when one fails, is skipped, or is the last."""

import io
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from serving.errors import UnavailableError
from serving.tools.demo.children import read_result_file, run_module
from serving.tools.demo.demo_run import run_demo
from serving.tools.demo.narrator import AGAIN_S, Choice, Interrupts, Keys
from serving.tools.demo.stage import DemoRun, Stage, Step, StepError, StepReport
from tests.tools.demo.staging import REPORT, narrator_to, small_step


class Pressed(Keys):
    """Keys that are pressed immediately, in this order."""

    def __init__(self, *choices: Choice) -> None:
        super().__init__(awaited=False)
        self.awaited = bool(choices)
        self._choices = list(choices)

    def choose(self) -> Choice:
        """The next one."""
        return self._choices.pop(0) if self._choices else "go"


def play(folder: Path, *steps: Step, keys: Keys | None = None) -> tuple[DemoRun, str]:
    """A demo of these steps, and its output."""
    out = io.StringIO()
    return run_demo(steps, folder, narrator_to(out), keys or Pressed()), out.getvalue()


def interrupted(*signals: signal.Signals) -> Step:
    """A step that is interrupted."""

    def run(_: Stage) -> StepReport:
        *earlier, last = signals
        for kind in earlier:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(kind)
        signal.raise_signal(last)
        return REPORT

    return small_step("long", run)


def broken(error: Exception) -> Step:
    """A step that fails."""

    def run(_: Stage) -> StepReport:
        raise error

    return small_step("bad", run)


def test_steps_come_one_after_the_other_and_say_how_they_ended(tmp_path: Path) -> None:
    run, said = play(tmp_path, small_step("one"), small_step("two"))
    assert [(outcome.step.name, outcome.state) for outcome in run.outcomes] == [("one", "done"), ("two", "done")]
    assert (run.failed, run.ended_early, run.interrupted) == (False, False, False)
    assert run.model == "", "no system was needed"
    assert said.startswith("cloudmatrix demo\n2 things, on a system of its own.\n")
    for text in ("1/2 Title of one", "2/2 Title of two", "Text of one.", "  $ command two", "✓ It worked."):
        assert text in said


@pytest.mark.parametrize(
    ("error", "reason"), [(UnavailableError("it is gone"), "it is gone"), (KeyError("usage"), "KeyError: 'usage'")]
)
def test_a_step_that_fails_is_told_and_the_others_come_all_the_same(
    tmp_path: Path, error: Exception, reason: str
) -> None:
    run, said = play(tmp_path, broken(error), small_step("two"))
    assert [(outcome.state, outcome.reason) for outcome in run.outcomes] == [("failed", reason), ("done", "")]
    assert run.failed
    assert f"✗ failed: {reason}" in said


def test_a_promise_not_kept_and_a_step_skipped(tmp_path: Path) -> None:
    report = StepReport("Other tokens.", ("pause", "1 s"), problem="token 3 is 1, not 2")
    run, said = play(tmp_path, small_step("kill", lambda _: report))
    assert run.failed
    assert run.outcomes[0].report is report
    assert "✗ failed: token 3 is 1, not 2" in said

    run, said = play(tmp_path, interrupted(signal.SIGINT), small_step("two"))
    assert [outcome.state for outcome in run.outcomes] == ["skipped", "done"]
    assert (run.failed, run.interrupted) == (False, False)
    assert "– skipped" in said


@pytest.mark.parametrize("signals", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM,)])
def test_two_interrupts_or_a_signal_to_end_leave_the_demo(tmp_path: Path, signals: tuple[signal.Signals, ...]) -> None:
    run, _ = play(tmp_path, small_step("one"), interrupted(*signals), small_step("three"))
    assert [outcome.step.name for outcome in run.outcomes] == ["one"]
    assert run.ended_early
    assert run.interrupted
    assert not run.failed


def test_keys_skip_the_next_step_and_leave(tmp_path: Path) -> None:
    steps = [small_step(name) for name in ("one", "two", "three", "four")]
    run, said = play(tmp_path, *steps, keys=Pressed("skip", "go", "leave"))
    assert [outcome.state for outcome in run.outcomes] == ["done", "skipped", "done"]
    assert run.ended_early
    assert not run.interrupted
    assert said.count("Enter: go on") == 3, "the first step waits for nobody"


def test_a_command_that_fails_is_named_with_its_exit_code(tmp_path: Path) -> None:
    narrator = narrator_to(io.StringIO())
    run_module(narrator, "json.tool", ["--help"])
    with pytest.raises(StepError, match=r"`json .*nothing.json` exited with code \d"):
        run_module(narrator, "json.tool", [str(tmp_path / "nothing.json")])


def test_a_command_ends_with_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    plain = subprocess.Popen

    def popen(*arguments: Any, **options: Any) -> "subprocess.Popen[bytes]":
        started.append(plain(*arguments, **options))
        threading.Timer(0.2, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", popen)
    with Interrupts(), pytest.raises(KeyboardInterrupt):
        run_module(narrator_to(io.StringIO()), "http.server", ["0"])
    assert started[0].returncode is not None


@pytest.mark.parametrize("content", [None, "{", "[1]"])
def test_a_result_that_is_none_is_told(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "result.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(StepError, match=r"result\.json (cannot be read|holds no JSON object)"):
        read_result_file(path)


@contextmanager
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A terminal on stdin and stdout; text written to the result is typed.

    No fixture: pytest gives a test its own stdout after those.
    """
    master, slave = pty.openpty()
    with open(slave, closefd=False) as typed, open(slave, "w", closefd=False) as shown:
        monkeypatch.setattr(sys, "stdin", typed)
        monkeypatch.setattr(sys, "stdout", shown)
        try:
            yield master
        finally:
            monkeypatch.undo()
    os.close(slave)
    os.close(master)


def type_when_awaited(keyboard: int, typed: bytes) -> None:
    """Type once single keys are read: earlier input is no response, and is dropped."""
    while termios.tcgetattr(keyboard)[3] & termios.ICANON:
        time.sleep(0.005)
    os.write(keyboard, typed)


@pytest.mark.parametrize(
    ("typed", "choice"), [(b"\r", "go"), (b" ", "go"), (b"s", "skip"), (b"xyq", "leave"), (b"\x04", "leave")]
)
def test_a_key_is_enough(monkeypatch: pytest.MonkeyPatch, typed: bytes, choice: Choice) -> None:
    with keyboard(monkeypatch) as master:
        before = termios.tcgetattr(master)
        typing = threading.Thread(target=type_when_awaited, args=(master, typed), daemon=True)
        typing.start()
        assert Keys(awaited=True).choose() == choice
        typing.join()
        assert termios.tcgetattr(master) == before


def test_nothing_is_awaited_without_a_terminal_or_a_wish(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with keyboard(monkeypatch), (tmp_path / "out.txt").open("w") as out:
        assert Keys(awaited=False).choose() == "go"
        monkeypatch.setattr(sys, "stdout", out)
        assert Keys(awaited=True).choose() == "go"


@pytest.mark.parametrize(("pause_s", "leave"), [(AGAIN_S / 2, True), (2 * AGAIN_S, False)])
def test_a_second_interrupt_soon_after_the_first_one_leaves(pause_s: float, leave: bool) -> None:
    times = iter((100.0, 100.0 + pause_s))
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts(lambda: next(times)) as interrupts:
        for expected in (False, leave):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert interrupts.leave is expected
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_first_interrupt_only_skips_however_young_the_machine_is() -> None:
    with Interrupts(lambda: 0.1) as interrupts, pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert not interrupts.leave
