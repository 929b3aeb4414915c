"""Wait for the start of Ray, for as long as it makes progress, also on a busy node.

Ray itself uses fixed timeouts (30 s for a node, for the GCS's port, for the client table), which an overloaded node
exceeds without any fault. Reasons to stop waiting: one of Ray's processes has exited; none of them has used CPU time
for a while; or the limit for any start has passed.
"""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

STILL_S = 90.0
"""Time without a tick of CPU time in any of the processes: on a busy machine each gets some within seconds."""
LONGEST_S = 1200.0
SAY_EVERY_S = 15.0
PAUSE_S = 0.2
_PROC = Path("/proc")


class StartWait:
    """One wait. Time is an argument.

    Args:
        what: description of what is awaited.
        now: monotonic [s].
    """

    def __init__(self, what: str, now: float) -> None:
        self._what = what
        self._begun = self._moved_at = self._said_at = now
        self._moved = -1

    def cause(self, now: float, moved: int, ended: str) -> str:
        """Reason to stop waiting; empty = continue.

        Args:
            moved: a number that changes with progress, such as ticks of CPU time.
            ended: description of a process that exited unexpectedly; empty = none.
        """
        if moved != self._moved:
            self._moved, self._moved_at = moved, now
        if ended:
            return f"{self._what} failed: {ended}"
        if now - self._moved_at > STILL_S:
            return f"{self._what} timed out: no progress for {now - self._moved_at:.0f} s"
        if now - self._begun > LONGEST_S:
            return f"{self._what} timed out: it has taken {now - self._begun:.0f} s"
        return ""

    def line(self, now: float, load: float, cores: int) -> str | None:
        """Progress line, at most one every `SAY_EVERY_S`; None = not due."""
        if now - self._said_at < SAY_EVERY_S:
            return None
        self._said_at = now
        return f"still waiting for {self._what} after {now - self._begun:.0f} s: {load_words(load, cores)}"


def load_words(load: float, cores: int) -> str:
    """Text about the machine's load."""
    plural = "s" * (cores != 1)
    return f"load {load:.0f} on {cores} core{plural}{', so everything takes longer' if load > 2 * cores else ''}"


def load_and_cores() -> tuple[float, int]:
    """The machine's load average of the last minute, and its number of cores."""
    return os.getloadavg()[0], os.cpu_count() or 1


def load_here() -> str:
    """`load_words` of this machine now."""
    return load_words(*load_and_cores())


def slowness(load: float, cores: int) -> float:
    """Factor by which things may take longer than on an idle machine; at least 1."""
    return max(1.0, load / cores)


def processor_ticks(pids: Iterable[int]) -> int:
    """CPU time of processes and of their reaped children, in kernel ticks; exited processes count 0."""
    total = 0
    for pid in pids:
        try:
            fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))
    return total


def wait_patiently(
    what: str,
    look: Callable[[], bool],
    moved: Callable[[], int],
    ended: Callable[[], str],
    say: Callable[[str], object],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Poll until a condition holds or there is a reason to stop.

    Args:
        look: the condition, polled.
        moved, ended: as in `StartWait.cause`.
    Raises: RuntimeError with the reason to stop waiting.
    """
    start_wait = StartWait(what, clock())
    while not look():
        now = clock()
        if cause := start_wait.cause(now, moved(), ended()):
            raise RuntimeError(cause)
        if (line := start_wait.line(now, *load_and_cores())) is not None:
            say(line)
        sleep(PAUSE_S)
