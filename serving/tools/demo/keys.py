"""Keys and signals that control the demo.

between two steps   Enter or space continues, `s` skips the next one, `q` quits; without a terminal there is no wait
within a step       Ctrl-C skips it; a second one within `AGAIN_S`, SIGTERM or SIGHUP end the demo
"""

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Literal, Self

from serving.terminal import ending_signals, leave_closed_terminal

Choice = Literal["go", "skip", "leave"]
AGAIN_S = 1.5
_CHOICES: dict[bytes, Choice] = {b"\n": "go", b"\r": "go", b" ": "go", b"s": "skip", b"q": "leave", b"\x04": "leave"}
_FOREVER_S = 3600.0


class Interrupts:
    """Context that turns termination signals into KeyboardInterrupt: each raises KeyboardInterrupt.

    Args:
        clock: monotonic [s].
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.leave = False
        """Whether the demo is to end, not only the step."""
        self._clock = clock
        self._last_s = -AGAIN_S
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {kind: signal.signal(kind, self._on_signal) for kind in ending_signals()}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for one, handler in self._before.items():
            signal.signal(one, handler)

    def _on_signal(self, kind: int, frame: FrameType | None) -> None:
        now = self._clock()
        self.leave = self.leave or kind != signal.SIGINT or now - self._last_s < AGAIN_S
        self._last_s = now
        leave_closed_terminal()
        raise KeyboardInterrupt


class Keys:
    """The keyboard, if there is one.

    Args:
        awaited: whether to prompt between steps; never without a terminal.
    """

    def __init__(self, *, awaited: bool) -> None:
        self.awaited = awaited and sys.stdin.isatty() and sys.stdout.isatty()

    def choose(self) -> Choice:
        """Wait for a key, if any is awaited.

        Effects: the terminal is in single-key mode during the call and is restored afterwards.
        """
        if not self.awaited:
            return "go"
        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
        try:
            tty.setcbreak(fd)
            while True:
                select.select([fd], [], [], _FOREVER_S)
                key = os.read(fd, 1)
                if not key:  # the terminal has closed
                    return "leave"
                if key in _CHOICES:
                    return _CHOICES[key]
        finally:
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
