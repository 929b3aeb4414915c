"""Log files of a system's parts on one machine, read as one list of lines in the order of their time.

Ray Serve writes a file for each replica, `serve/replica_cloudmatrix_<pool>_<replica>.log`, and one for its controller.
"""

import re
from pathlib import Path

from serving.errors import ConfigError

MOST_BYTES = 1 << 20
"""Read of each file at a time: the end of what is there at first, and the beginning of what is new later."""
_PART = re.compile(r"replica_[^_]+_(?P<pool>.+)_(?P<replica>[^_]+)\.log|(?P<controller>controller)_\d+\.log")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,]\d{3}")


class LogFiles:
    """The files of all parts of a system, or of one.

    Args:
        folder: of Ray's logs.
        part: a pool or deployment, a replica, or `controller`; None = all.
    Raises: ConfigError if there is no such part.
    """

    def __init__(self, folder: Path, part: str | None) -> None:
        self._folder, self._part = folder / "serve", part
        self._read: dict[Path, int] = {}
        """Bytes of each file that have been returned, or skipped."""
        parts = sorted({name for path in self._folder.glob("*.log") for name in names_of(path)})
        if part is not None and part not in parts:
            raise ConfigError(f"{part} has no log; there are {', '.join(parts)}")

    def newer(self) -> list[str]:
        """Whole lines that were not returned before, in the order of their time; at most `MOST_BYTES` of each file."""
        found: list[tuple[str, str]] = []
        for path in sorted(self._folder.glob("*.log")):
            names = names_of(path)
            if names and self._part in (None, *names):
                found += _timed(self._lines(path))
        return [line for _, line in sorted(found, key=lambda one: one[0])]  # stable: lines of one file keep their order

    def _lines(self, path: Path) -> list[str]:
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                begin = self._read.get(path, max(0, size - MOST_BYTES))
                file.seek(begin)
                text = file.read(MOST_BYTES)
        except OSError:  # deleted in the meantime
            return []
        whole = text[: text.rfind(b"\n") + 1]
        cut = begin > 0 and path not in self._read  # begins in the middle of a line
        self._read[path] = begin + len(whole)
        return whole.decode(errors="replace").splitlines()[cut:]


def names_of(path: Path) -> tuple[str, ...]:
    """Names of the part that writes a file: its pool and its replica; none for other files."""
    found = _PART.fullmatch(path.name)
    return () if found is None else tuple(filter(None, found.groups()))


def _timed(lines: list[str]) -> list[tuple[str, str]]:
    """Lines with their time as text; one without a time, as of a traceback, has that of the line before."""
    timed, latest = [], ""
    for line in lines:
        found = _TIME.search(line, 0, 60)
        latest = found[0].replace("T", " ").replace(".", ",") if found else latest
        timed.append((latest, line))
    return timed
