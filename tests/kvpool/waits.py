"""Waits for events in another thread."""

import time
from collections.abc import Callable

PATIENCE_S = 60.0
"""How long anything may take: generous, the machine may be busy."""


def wait_for(condition: object, what: str) -> None:
    assert callable(condition)
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether the condition holds within `PATIENCE_S`."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
