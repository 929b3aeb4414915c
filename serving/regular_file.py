"""Files that somebody else may have made: read only if they are regular ones, of a size that can be meant.

A named pipe holds up whoever opens it until somebody writes, a device never ends, and to open one may do something.
"""

import stat
from pathlib import Path
from typing import BinaryIO


class IrregularFileError(OSError):
    """A path leads to something that is no regular file, or out of its folder. The message says what and where."""


def open_regular(path: Path, *, within: Path | None = None) -> BinaryIO:
    """Open a regular file for reading; everything else is not even opened.

    Args:
        within: the file must lie below this folder once all links are followed.
    Raises: IrregularFileError for what is no regular file, or lies elsewhere; OSError if it cannot be read.
    """
    check_regular(path, within=within)
    return path.open("rb")


def read_regular(path: Path, *, most_bytes: int, within: Path | None = None) -> bytes:
    """All bytes of a regular file.

    Args:
        most_bytes: a larger file is refused before it is read.
        within: as for `open_regular`.
    Raises: IrregularFileError, also for a larger file; OSError if it cannot be read.
    """
    with open_regular(path, within=within) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise IrregularFileError(f"{path} is larger than {most_bytes} bytes, which no such file needs")
    return data


def check_regular(path: Path, *, within: Path | None = None) -> int:
    """Look where a path leads. Returns: the size in bytes.

    Raises: IrregularFileError, OSError, as `open_regular`.
    Effects: opens nothing.
    """
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise IrregularFileError(f"{path} is {_kind(facts.st_mode)}, not a regular file")
    if within is not None and not path.resolve().is_relative_to(within.resolve()):
        raise IrregularFileError(f"{path} leads to {path.resolve()}, outside {within}")
    return facts.st_size


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((name for test, name in kinds if test(mode)), "something else")
