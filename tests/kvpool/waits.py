"""Waits for what happens in another thread."""

import time
from collections.abc import Callable


def wait_for(condition: object, what: str) -> None:
    assert callable(condition)
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether it holds within five seconds."""
    for _ in range(250):
        if holds():
            return True
        time.sleep(0.02)
    return False
