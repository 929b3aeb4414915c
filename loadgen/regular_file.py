"""Files that are read as data: only regular ones, since a pipe holds up whoever opens it and a device never ends."""

import stat
from pathlib import Path


class IrregularInputError(OSError):
    """A path leads to something that is no regular file. The message says to what."""


def check_regular(path: Path) -> None:
    """Look where a path leads; nothing is opened.

    Raises: IrregularInputError for anything that is no regular file; OSError if there is nothing.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise IrregularInputError(f"{'a folder' if stat.S_ISDIR(mode) else 'a pipe or device'}, not a regular file")
