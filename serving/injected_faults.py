"""Faults that `cloudmatrix chaos` asks replicas to have: one small file in shared memory, read by who it concerns.

    cloudmatrix chaos ── writes rows (atomically, by rename) ──► <shared memory>/cloudmatrix-faults-<session>
                                                                      ▲ looked at, at most every 20 ms
                      instances (slow links, wrong bytes), memory servers (full disk, flipped bits)

Only systems with `[chaos] enabled = true` look; a row has an end, so that a tester that dies leaves nothing behind that
lasts. Times are those of CLOCK_MONOTONIC, which all processes of a machine share.
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
        serial: tells apart one tester's faults that are to happen once.
        kind: `slow_link` = moves of KV take `delay_s` longer; `wrong_bytes` = the next handoff that arrives has a wrong
            bit; `full_disk` = writes to the SSD tier fail; `bit_flip` = one bit of a stored block is turned over.
        target: replica, or memory server, by its name in `GET /cluster`.
        until_s: end of the fault, monotonic clock [s].
        draw: from 0 to below 1; which block, for `bit_flip`.
    """

    serial: int
    kind: InjectedKind
    target: str
    until_s: float
    delay_s: float = 0.0
    draw: float = 0.0


_decoder = msgspec.json.Decoder(list[InjectedFault])


def faults_path(shared_memory: Path, session: str) -> Path:
    """Where the faults of one start of the system are."""
    return shared_memory / f"{FILE_PREFIX}{session}"


def session_of(segment: str) -> str:
    """The start of the system that a UB segment belongs to, by the segment's file name.

    Returns: the session's name; empty if that is no segment of a replica.
    """
    found = re.match(r"cloudmatrix-ub-([0-9a-f]+)-", segment)
    return "" if found is None else found[1]


class FaultWriter:
    """The tester's end: keeps the rows that are in force."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._rows: list[InjectedFault] = []

    def add(self, fault: InjectedFault) -> None:
        """Put a fault into force.

        Raises: ConfigError if the file cannot be written.
        Effects: replaces the file; rows whose time is over go.
        """
        now = self._clock()
        self._write([*(row for row in self._rows if row.until_s > now), fault])

    def clear(self) -> None:
        """End all faults. Effects: the file is gone."""
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
    """A replica's end: what is in force for it now. For one thread or several; nothing here waits."""

    def __init__(self, path: Path, target: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = str(path)
        self._target = target
        self._clock = clock
        self._rows: tuple[InjectedFault, ...] = ()
        self._looked = float("-inf")
        self._stamp: tuple[int, int] | None = None
        self._done: set[InjectedFault] = set()
        """Taken, and still in the file: whole rows, since every tester counts its faults from 1."""

    def active(self, kind: InjectedKind) -> InjectedFault | None:
        """The newest fault of a kind that is in force for this replica.

        Effects: looks at the file, if the last look is a while ago.
        """
        return next(iter(self._in_force(kind)), None)

    def take(self, kind: InjectedKind) -> InjectedFault | None:
        """The active fault of a kind, each given once. Effects: it is not given again."""
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
        """The rows; none if the file is not a plain one of this user's, or says nothing that makes sense."""
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size > _LONGEST:
            return []
        try:
            return _decoder.decode(Path(self._path).read_bytes())
        except (OSError, *UNREADABLE):
            return []
