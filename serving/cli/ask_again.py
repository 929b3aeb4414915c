"""Questions of the command line, repeated while a loaded machine gives no answer; one line says what it waits for."""

import sys
import time
from collections.abc import Callable
from typing import TypeVar

from serving.errors import SilentError

PATIENCE_S = 60.0
"""How long a command repeats a question. Ctrl-C ends it sooner."""
PAUSE_S = 0.5

Answer = TypeVar("Answer")


def ask_again(ask: Callable[[], Answer]) -> Answer:
    """Ask until there is an answer.

    Args:
        ask: one question with a deadline of its own; must be harmless when it is repeated.
    Raises: SilentError if there is no answer within `PATIENCE_S`; whatever else `ask` raises, at once.
    Effects: writes one line to standard error when the first answer is late.
    """
    end = time.monotonic() + PATIENCE_S
    waiting = False
    while True:
        try:
            return ask()
        except SilentError as error:
            if time.monotonic() + PAUSE_S >= end:
                raise
            if not waiting:
                waiting = True
                print(f"cloudmatrix: {error}; waiting for up to {PATIENCE_S:.0f} s", file=sys.stderr, flush=True)
        time.sleep(PAUSE_S)
