"""Faults that `cloudmatrix chaos` makes replicas inject: one small file in shared memory, read by these processes.

    cloudmatrix chaos ── writes rows (atomically, by rename) ──► <shared memory>/cloudmatrix-faults-<session>
                                                                      ▲ polled, at most every 20 ms
                      instances (slow links, wrong bytes), memory servers (full disk, flipped bits)

Only systems with `[chaos] enabled = true` poll it; a row has an end time, so that a crashed tester leaves no permanent
fault. Times are those of CLOCK_MONOTONIC, which all processes of a machine share.
"""

import os
import re
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from serving.errors import UNREADABLE, ConfigError

FILE_PREFIX = "cloudmatrix-faults-"
LOOK_EVERY_S = 0.02
_LONGEST = 64 * 1024

InjectedKind = Literal["slow_link", "wrong_bytes", "full_disk", "bit_flip"]


class InjectedFault(msgspec.Struct, frozen=True):
    """One row.

    Args:
        serial: distinguishes one-time faults of a tester.
        kind: `slow_link` = moves of KV take `delay_s` longer; `wrong_bytes` = the next handoff that arrives has a wrong
            bit; `full_disk` = writes to the SSD tier fail; `bit_flip` = one bit of a stored block is flipped.
        target: replica, or memory server, by its name in `GET /cluster`.
        until_s: end of the fault, monotonic clock [s].
        draw: from 0 to below 1; selects the block for `bit_flip`.
    """

    serial: int
    kind: InjectedKind
    target: str
    until_s: float
    delay_s: float = 0.0
    draw: float = 0.0


_decoder = msgspec.json.Decoder(list[InjectedFault])


def faults_path(shared_memory: Path, session: str) -> Path:
    """Path of the faults of one start of the system."""
    return shared_memory / f"{FILE_PREFIX}{session}"


def session_of(segment: str) -> str:
    """The session of a UB segment, by the segment's file name.

    Returns: the session's name; empty if it is not a replica's segment.
    """
    found = re.match(r"cloudmatrix-ub-([0-9a-f]+)-", segment)
    return "" if found is None else found[1]


class FaultWriter:
    """The tester's side: stores the rows of active faults."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._rows: list[InjectedFault] = []

    def add(self, fault: InjectedFault) -> None:
        """Activate a fault.

        Raises: ConfigError if the file cannot be written.
        Effects: replaces the file; drops expired rows.
        """
        now = self._clock()
        self._write([*(row for row in self._rows if row.until_s > now), fault])

    def clear(self) -> None:
        """End all faults. Effects: removes the file."""
        self._rows = []
        self._path.unlink(missing_ok=True)

    def _write(self, rows: Sequence[InjectedFault]) -> None:
        self._rows = list(rows)
        beside = self._path.with_name(self._path.name + ".new")
        try:
            beside.unlink(missing_ok=True)
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(msgspec.json.encode(self._rows))
            os.replace(beside, self._path)
        except OSError as error:
            raise ConfigError(
                f"cannot write {self._path} ({error.strerror}): replicas would not see the fault"
            ) from error


class FaultReader:
    """A replica's side: its active faults. Thread-safe; never waits."""

    def __init__(self, path: Path, target: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = str(path)
        self._target = target
        self._clock = clock
        self._rows: tuple[InjectedFault, ...] = ()
        self._looked = float("-inf")
        self._stamp: tuple[int, int] | None = None
        self._done: set[InjectedFault] = set()
        """Faults taken that are still in the file, as whole rows, since every tester numbers its faults from 1."""

    def active(self, kind: InjectedKind) -> InjectedFault | None:
        """The latest active fault of a kind for this replica.

        Effects: reads the file again, if the last check was long enough ago.
        """
        return next(iter(self._in_force(kind)), None)

    def take(self, kind: InjectedKind) -> InjectedFault | None:
        """The active fault of a kind. Effects: each fault is returned once."""
        fault = next((row for row in self._in_force(kind) if row not in self._done), None)
        if fault is not None:
            self._done.add(fault)
        return fault

    def _in_force(self, kind: InjectedKind) -> list[InjectedFault]:
        now = self._clock()
        self._look(now)
        return [row for row in reversed(self._rows) if row.kind == kind and row.until_s > now]

    def _look(self, now: float) -> None:
        if now - self._looked < LOOK_EVERY_S:
            return
        self._looked = now
        try:
            status = os.lstat(self._path)
        except OSError:
            self._rows, self._stamp = (), None
            return
        stamp = (status.st_ino, status.st_mtime_ns)
        if stamp != self._stamp:
            self._stamp = stamp
            self._rows = tuple(row for row in self._read(status) if row.target == self._target)
            self._done.intersection_update(self._rows)

    def _read(self, status: os.stat_result) -> list[InjectedFault]:
        """The rows; none if the file is not a regular one of this user's, or its content is invalid."""
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size > _LONGEST:
            return []
        try:
            return _decoder.decode(Path(self._path).read_bytes())
        except (OSError, *UNREADABLE):
            return []
