"""A memory server's folder on disk: the first one that no living server holds, so that a dead one's is found again."""

import errno
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from serving.errors import SsdError

MAX_SLOTS = 1024
DATA = "data"
"""Where a slot has its files."""
_LOCK = "lock"


@dataclass(slots=True)
class SsdSlot:
    """A folder `slot-<index>` that belongs to this process until `give_back` or its end: the kernel holds the lock."""

    index: int
    path: Path
    fd: int

    @classmethod
    def take(cls, folder: Path) -> Self:
        """Take and lock the first free slot.

        Raises: SsdError if the folder cannot be made, written or locked, or a slot is a symbolic link.
        """
        for index in range(MAX_SLOTS):
            path = folder / f"slot-{index}"
            for own in (path, path / DATA):
                if own.is_symlink():  # what is not an entry is removed there
                    raise SsdError(f"{own} is a link: remove it, or change [kvcache] ssd_path")
            try:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                fd = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise _unusable(folder, error) from error
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return cls(index, path, fd)
            except OSError as error:
                os.close(fd)
                if error.errno != errno.EWOULDBLOCK:
                    raise _unusable(folder, error) from error
        raise SsdError(f"all {MAX_SLOTS} slots of {folder} are held by running servers; use another [kvcache] ssd_path")

    def give_back(self) -> None:
        """Unlock the slot, with all its files, for the next server. Twice is allowed."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _unusable(folder: Path, error: OSError) -> SsdError:
    return SsdError(
        f"the SSD folder {folder} cannot be used ({error.strerror}); make it writable or change [kvcache] ssd_path"
    )
