"""Files that are read as data: only regular ones, since opening a pipe blocks and reading a device never ends."""

import stat
from pathlib import Path

MOST_TEXT_BYTES = 1 << 30
"""Size limit of a text file: a larger one would not fit into memory as text."""


class IrregularFileError(OSError):
    """A path leads to a file that is not regular, or outside its folder. The message names the file and the reason."""


def check_regular(path: Path) -> int:
    """Look where a path leads; without opening it. Returns: the size in bytes.

    Raises: IrregularFileError for anything that is no regular file; OSError if the path does not exist.
    """
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise IrregularFileError(f"{path} is {_kind(facts.st_mode)}, not a regular file")
    return facts.st_size


def read_regular_text(path: Path) -> str:
    """All of a regular file, as UTF-8.

    Raises: IrregularFileError, also for a file too large to be meant; OSError, UnicodeDecodeError if it cannot be read.
    """
    if check_regular(path) > MOST_TEXT_BYTES:
        raise IrregularFileError(f"{path} is larger than {MOST_TEXT_BYTES >> 30} GiB, which no such file needs")
    return path.read_text(encoding="utf-8")


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((name for test, name in kinds if test(mode)), "something else")
