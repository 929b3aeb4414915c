"""Files that are written: a failure of the file system becomes one line."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from loadgen.errors import OutputError


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn a failure of the file system into one line.

    Raises: OutputError.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from None
