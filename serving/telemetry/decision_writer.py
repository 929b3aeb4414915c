"""Decision-log writer that never blocks the deciding thread.

The deciding thread only appends to a queue; the writer's own thread encodes calls and writes them several times a
second. A killed process loses what it had not yet written; the file up to that point stays intact. A disk that cannot
keep up ends the log with a frame that records it, and never slows the process.
"""

import logging
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from serving.errors import ConfigError
from serving.values.decision_log import SUFFIX, End, LogEncoder

logger = logging.getLogger(__name__)

MAX_QUEUED = 50_000
"""Calls waiting to be written; many seconds at the rates of a busy instance."""
GATHER_S = 0.05
"""Interval between batch writes [s]; limits the loss when the process is killed."""
BATCH = 256
"""Calls written at a time."""
STOP_DEADLINE_S = 5.0


class DecisionWriter:
    """One log file, written by one thread.

    `note` may be called from one thread at a time.
    """

    def __init__(self, folder: str, kind: str, name: str, header: object, max_queued: int = MAX_QUEUED) -> None:
        """
        Args:
            kind, name: of the state machine; parts of the file's name.
            header: constructor arguments of the state machine.
        Raises: ConfigError if the folder cannot be written.
        Effects: creates the folder and a new file in it, readable by its owner only because it contains users'
        requests.
        """
        self._queue: deque[tuple[Any, object]] = deque()
        self._max_queued = max_queued
        self._news = threading.Event()
        self._encoder = LogEncoder()
        self._stopping = False
        self._broken = ""
        try:
            self.path, self._file = _create(Path(folder), f"{kind}-{name}")
            self._write(self._encoder.begin(header))
        except OSError as error:
            raise ConfigError(f"[engine] decision_log: {folder} cannot be written: {error}") from error
        self._thread = threading.Thread(target=self._run, name=f"decisions-{name}", daemon=True)
        self._thread.start()

    def note(self, call: object, kept: object) -> None:
        """Queue a call and its result for writing; the caller must not modify either afterwards."""
        if len(self._queue) >= self._max_queued:
            self._break(f"more than {self._max_queued} calls waited to be written")
        if self._broken or self._stopping:
            return
        self._queue.append((call, kept))
        if not self._news.is_set():
            self._news.set()

    def close(self) -> None:
        """Write queued calls, and the end. Idempotent."""
        if self._stopping:
            return
        self._stopping = True
        self._news.set()
        self._thread.join(STOP_DEADLINE_S)

    def _run(self) -> None:
        try:
            while not self._stopping and not self._broken:
                self._news.wait()
                if not self._stopping:
                    time.sleep(GATHER_S)
                self._news.clear()
                self._write_queued()
            self._write_queued()
            self._write(self._encoder.pair(End(self._broken), None))
        except Exception as error:  # a failed log must not affect requests
            self._break(f"{type(error).__name__}: {error}")
        finally:
            self._queue.clear()
            os.close(self._file)

    def _write_queued(self) -> None:
        queue, encode = self._queue, self._encoder.pair
        while queue:
            batch = [encode(*queue.popleft()) for _ in range(min(len(queue), BATCH))]
            self._write(b"".join(batch))

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    def _break(self, reason: str) -> None:
        if not self._broken:
            self._broken = reason
            self._news.set()
            logger.error("the decision log %s ends here: %s", self.path, reason)


def writer_in(folder: str, kind: str, name: str, header: object) -> DecisionWriter | None:
    """Writer of a new log, or None if logging is off.

    Args:
        folder: `[engine] decision_log`; empty = off.
    Raises, Effects: as `DecisionWriter`.
    """
    return DecisionWriter(folder, kind, name, header) if folder else None


def _create(folder: Path, stem: str) -> tuple[Path, int]:
    """Create a new file; a restarted replica gets another one, logs are never overwritten."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = "".join(c if c.isalnum() or c in "-_." else "-" for c in stem)
    number = 1
    while True:
        path = folder / (f"{stem}{SUFFIX}" if number == 1 else f"{stem}.{number}{SUFFIX}")
        try:
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except FileExistsError:
            number += 1
