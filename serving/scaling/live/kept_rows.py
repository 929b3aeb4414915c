"""Logs that outlive the board: JSON lines, so many to a value, so that a new row rewrites little.

The store has a bounded number of bounded values.
"""

import json
import logging
from collections.abc import Iterable
from typing import Any, Protocol

from hardware.nesting import parse_json
from serving.cluster.kept_values import KeptValues

logger = logging.getLogger(__name__)

PER_VALUE = 100


class KeptRow(Protocol):
    """One row; ids count up."""

    @property
    def id(self) -> int: ...

    def kept(self) -> dict[str, Any]:
        """Ready for JSON, with everything that makes the row again."""


class KeptRows:
    """The rows of one log.

    Args:
        kept: where they are kept; `prefix`: of their keys.
    """

    def __init__(self, kept: KeptValues, prefix: str) -> None:
        self._kept = kept
        self._prefix = prefix

    def read(self) -> list[dict[str, Any]]:
        """Rows that are kept, oldest first; a line that makes no sense is left out."""
        return [row for key in self._kept.keys(self._prefix) for row in self._read(key)]

    def write(self, changed: int, rows: Iterable[KeptRow]) -> None:
        """Keep a row that is new or has changed, by its id.

        Args:
            rows: all rows of the log, oldest first.
        Effects: rows older than these are kept no longer, but for those in the value of the oldest.
        """
        rows = list(rows)
        place = changed // PER_VALUE
        lines = [json.dumps(row.kept()) for row in rows if row.id // PER_VALUE == place]
        self._kept.set(self._key(place), "".join(f"{line}\n" for line in lines).encode())
        oldest = self._key(rows[0].id // PER_VALUE)
        for key in self._kept.keys(self._prefix):
            if key < oldest:
                self._kept.set(key, None)

    def _key(self, place: int) -> str:
        return f"{self._prefix}{place:09d}"

    def _read(self, key: str) -> list[dict[str, Any]]:
        found = []
        for line in (self._kept.get(key) or b"").decode(errors="replace").splitlines():
            try:
                found.append(dict(parse_json(line)))
            except (ValueError, TypeError):
                logger.warning("a damaged line of %s is left out", key)
        return found
