"""Files that are read as data: only regular ones, since opening a pipe blocks and reading a device never ends."""

import stat
from pathlib import Path


class IrregularInputError(OSError):
    """A path leads to a file that is not regular. The message names its kind."""


def check_regular(path: Path) -> None:
    """Look where a path leads; without opening it.

    Raises: IrregularInputError for anything that is no regular file; OSError if the path does not exist.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise IrregularInputError(f"{'a folder' if stat.S_ISDIR(mode) else 'a pipe or device'}, not a regular file")
