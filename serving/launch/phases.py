"""Progress of a start: a line per phase with its seconds, and on a terminal a live line of the phase in progress.

A line is printed when its phase ends, so a file or a pipe contains each one once. The live line leaves the cursor at
its first column: any other output, such as a warning, overwrites it.
"""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from serving.config.serve import ServeConfig
from serving.config.upgrade_rules import KVCACHE
from serving.terminal import print_text, say

FIRST = "checks, imports"
"""Name of the first phase."""
LIVE_PERIOD_S = 0.25
POLL_S = 0.2
LAST_CALL_S = 5.0
"""Time for the last call of `repeated` to end [s]: this process may disconnect from Ray next."""
_CLEAR = "\x1b[K"


class LaunchPhases:
    """The phases of one start, in order. The first begins with the process, not with this object.

    Args:
        age_s: of the process [s].
    Effects: a thread redraws the live line on a terminal, until `close`.
    """

    def __init__(self, age_s: float = 0.0) -> None:
        self._name = FIRST
        self._started_at = self._began_at = time.monotonic() - age_s
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if sys.stdout.isatty():
            self._thread = threading.Thread(target=self._redraw, name="start-phases", daemon=True)
            self._thread.start()

    def next(self, name: str, detail: str = "") -> None:
        """End the current phase, print its line, and start the next one.

        Args:
            name: of the next phase.
            detail: about the phase that ends.
        """
        now = time.monotonic()
        line = f"{self._name:<18}{now - self._began_at:5.1f} s{f'   {detail}' if detail else ''}"
        self._name, self._began_at = name, now
        say(line + _CLEAR * (self._thread is not None))

    def end(self) -> None:
        """End the last phase: the system is ready."""
        self.next("")
        self.close()
        say(f"ready after {time.monotonic() - self._started_at:.1f} s")

    def close(self) -> None:
        """Remove the live line. Safe to call twice."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            print_text(_CLEAR, end="")

    def failure(self) -> str:
        """Text about the phase in which the start failed: `Ray failed after 2.1 s`. Effects: `close`."""
        self.close()
        return f"{self._name} failed after {time.monotonic() - self._began_at:.1f} s"

    def _redraw(self) -> None:
        while not self._over.wait(LIVE_PERIOD_S):
            seconds = time.monotonic() - self._began_at
            print_text(f"cloudmatrix: {self._name:<18}{seconds:5.1f} s ...{_CLEAR}", end="\r")


class DeployPhases:
    """The phases of a first deployment, each ended by the deployments whose replicas all run.

    Args:
        phases: of the whole start. detail: about the phase before.
    """

    def __init__(self, config: ServeConfig, phases: LaunchPhases, detail: str) -> None:
        self._phases, self._detail = phases, detail
        pool, pools = config.kvcache, config.pools
        servers = f"{pool.replicas} memory server{'s' * (pool.replicas > 1)}, {pool.ub_memory_mib} MiB"
        counts = ", ".join(f"{name} {section.replicas}" for name, section in pools.items())
        simulated = config.engine.executor == "simulated"
        self._left = [("KV-cache pool", servers, {KVCACHE})] if pool.replicas else []
        awaited = {name for name, section in pools.items() if section.replicas}
        self._left.append(("instances" if simulated else "weights", counts, awaited))
        phases.next(self._left[0][0], detail)

    def update(self, running: Collection[str]) -> None:
        """End the phases whose deployments all run."""
        while self._left and self._left[0][2] <= set(running):
            _, detail, _ = self._left.pop(0)
            self._phases.next(self._left[0][0] if self._left else "gateway", detail)

    @contextlib.contextmanager
    def followed(self, running: Callable[[], Collection[str]]) -> Iterator[None]:
        """Context of the deployment: polls which deployments run, and ends all phases but the last."""
        with repeated(lambda: self.update(running()), POLL_S, "start-followed"):
            yield
        self.update(set().union(*(names for _, _, names in self._left)))


@contextlib.contextmanager
def repeated(action: Callable[[], None], period_s: float, thread: str) -> Iterator[None]:
    """Context in which a thread of that name calls `action` after every period.

    Errors are ignored: the action queries Ray, and the deployment continues without its answer.
    """
    over = threading.Event()

    def run() -> None:
        while not over.wait(period_s):
            with contextlib.suppress(Exception):
                action()

    repeating = threading.Thread(target=run, name=thread, daemon=True)
    repeating.start()
    try:
        yield
    finally:
        over.set()
        repeating.join(LAST_CALL_S)


@contextlib.contextmanager
def ray_messages_in(file: Path) -> Iterator[None]:
    """Context in which this process's standard error is a file, for the warnings of Ray's library and its C++ code.

    What they report about this machine has been checked before, with a remedy. This program's own warnings still reach
    the terminal.
    """
    handlers = [one for one in logging.getLogger().handlers if isinstance(one, logging.StreamHandler)]
    sys.stderr.flush()
    terminal = os.dup(2)
    with open(terminal, "w", buffering=1) as ours, file.open("ab", buffering=0) as messages:
        before = [(handler, handler.setStream(ours)) for handler in handlers if handler.stream is sys.stderr]
        os.dup2(messages.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            for handler, stream in before:
                handler.setStream(stream)
