"""Freezing processes."""

import os
import signal
import time
from pathlib import Path

_PATIENCE_S = 60.0


def stop_process(pid: int) -> None:
    """Send SIGSTOP, and wait until none of its threads runs any more: the signal alone returns at once.

    Raises: ProcessLookupError if it does not exist.
    """
    os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + _PATIENCE_S
    while any(_state(task) not in "TZX" for task in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < until, f"process {pid} does not stop"
        time.sleep(0.001)


def _state(task: Path) -> str:
    """A letter, see proc(5); a thread that has ended is dead."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
