"""Files from untrusted sources: read only if they are regular files of a plausible size.

Opening a named pipe blocks until there is a writer, a device never ends, and opening one may have side effects.
"""

from pathlib import Path
from typing import BinaryIO

import hardware.regular_file
from hardware.regular_file import IrregularFileError

MOST_JSON_BYTES = 64 << 20
"""Limit of a model's JSON files, other than the tokenizer: the longest, DeepSeek-V3's list of tensors, has 9 MB."""


def open_regular(path: Path, *, within: Path | None = None) -> BinaryIO:
    """Open a regular file for reading; other files are not opened.

    Args:
        within: the file must be below this folder after following all links.
    Raises: IrregularFileError if it is not a regular file, or outside of the folder; OSError if it cannot be read.
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
    size = check_regular(path, within=within)
    if size > most_bytes:
        raise IrregularFileError(f"{path} is larger than {most_bytes} bytes, which no such file needs")
    with path.open("rb") as file:
        return file.read(size)


def check_regular(path: Path, *, within: Path | None = None) -> int:
    """Check a file without opening it. Returns: the size in bytes.

    Raises: IrregularFileError, OSError, as `open_regular`.
    """
    size = hardware.regular_file.check_regular(path)
    if within is not None and not _lies_in(path.resolve(), within.resolve()):
        raise IrregularFileError(f"{path} leads to {path.resolve()}, outside its folder: put a copy there")
    return size


def _lies_in(path: Path, folder: Path) -> bool:
    """Whether a file belongs to a folder.

    A snapshot in Hugging Face's cache has its files in `blobs` of its model, or of the whole cache, sorted by their
    first letters: CACHE/models--org--name/{snapshots/COMMIT,blobs}, CACHE/blobs/ab.
    """
    if path.is_relative_to(folder):
        return True
    model = folder.parent.parent
    return folder.parent.name == "snapshots" and (
        path.parent == model / "blobs" or path.parent.parent == model.parent / "blobs"
    )
