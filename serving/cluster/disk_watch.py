"""Free space on the disk of the session folder. On a full disk Ray fails to start processes and reports no cause.

Every replica opens a log file there at its start, so one that dies while the disk is full is restarted in a loop until
space is free again.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hardware.units import MIB
from loadgen.report import numbers

LEAST_BYTES = 32 * MIB
"""Free space below which the disk counts as full: a dozen starting replicas write this much within a minute."""
LEAST_FILES = 100
PERIOD_S = 5.0
SAY_AGAIN_S = 60.0
_ANY_NUMBER = 1 << 62


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """Free space for processes without root's reserve. `files`: free inodes."""

    bytes: int
    files: int

    @property
    def full(self) -> bool:
        """Whether a process may fail to start for lack of space."""
        return self.bytes < LEAST_BYTES or self.files < LEAST_FILES


def disk_room(folder: Path) -> DiskRoom:
    """Free space on the disk of a folder, or of its nearest parent that exists.

    Raises: OSError if the file system does not report it.
    """
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    facts = os.statvfs(folder)
    # File systems without a limit of inodes report 0 of 0.
    return DiskRoom(facts.f_bavail * facts.f_frsize, facts.f_favail if facts.f_files else _ANY_NUMBER)


def full_line(folder: Path, room: DiskRoom) -> str | None:
    """Message that names what has run out and the remedy; None if the disk is not full."""
    if not room.full:
        return None
    left = numbers.size(room.bytes) if room.bytes < LEAST_BYTES else f"{room.files} more files"
    return (
        f"the disk of {folder} is full ({left} left): what starts there fails, and what dies is not replaced; make room"
        f" (`df {folder}`), or start with TMPDIR on another disk"
    )


def full_disk(folder: Path) -> str | None:
    """Current `full_line` of a folder; None also if the file system reports no figures."""
    try:
        return full_line(folder, disk_room(folder))
    except OSError:
        return None


def own_full_disk() -> str:
    """Message about the disk of this process's Ray session folder; empty if it is not full."""
    from ray._private.worker import global_worker  # Ray has no public API for it

    node = global_worker.node
    return "" if node is None else full_disk(Path(node.get_session_dir_path()).parent) or ""


class DiskWatch:
    """Reports a full disk of a folder once a minute while it lasts, and once when space is available again.

    Args:
        folder: of the session.
        say: receives the message.
        look: as `disk_room`.
        clock: monotonic [s].
    """

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], object],
        look: Callable[[Path], DiskRoom] = disk_room,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._say, self._look, self._clock = folder, say, look, clock
        self._look_at = self._say_at = 0.0
        self._full = False

    def tend(self) -> None:
        """Check the disk if due. Effects: may report a message."""
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + PERIOD_S
        try:
            line = full_line(self._folder, self._look(self._folder))
        except OSError:
            return
        if line is not None and (not self._full or now >= self._say_at):
            self._say(line)
            self._say_at = now + SAY_AGAIN_S
        elif line is None and self._full:
            self._say(f"the disk of {self._folder} has room again")
        self._full = line is not None
