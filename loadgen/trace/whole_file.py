"""Files that are written whole or not at all."""

import os
from collections.abc import Iterable
from pathlib import Path

from loadgen.output import explained


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines under a temporary name, then rename it.

    Raises: OutputError, and what making the lines raises; the temporary file is then removed.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        with explained(path):
            with temporary.open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{line}\n" for line in lines)
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
