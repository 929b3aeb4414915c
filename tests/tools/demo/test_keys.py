"""Keys of a real terminal, and the signals of a demo."""

import os
import pty
import signal
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from serving.tools.demo.keys import AGAIN_S, Choice, Interrupts, Keys


@contextmanager
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A terminal on stdin and stdout; what is written to the answer is typed.

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
    """Type once single keys are read: what was typed before is no answer, and is dropped."""
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
