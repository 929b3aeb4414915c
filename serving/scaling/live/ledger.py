"""The ledger: every change of a target and every hold, with who asked and why, in memory and as JSON lines on disk."""

import json
import logging
import os
from collections import Counter, defaultdict, deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hardware.nesting import parse_json
from serving.scaling.core.decision import ScaleKind

logger = logging.getLogger(__name__)

KEPT = 1_000
"""Entries in memory; on disk up to twice as many."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One change.

    Args:
        id: counts up from 1 and never repeats within one start of the system.
        at: seconds since 1970.
        by: `autoscaler`, `cli`, `page` or `rest`.
    """

    id: int
    at: float
    pool: str
    before: int
    target: int
    kind: ScaleKind
    reason: str
    by: str

    def row(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "kind": self.kind.value}


class Ledger:
    """Appends, and finds again what its predecessor in this process's place wrote.

    Args:
        path: of the file; its folder exists. None = memory only.
    Effects: reads the file.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        found, whole = _read(path) if path is not None else ([], True)
        self._entries: deque[LedgerEntry] = deque(found, maxlen=KEPT)
        self._on_disk = len(found) if whole else 2 * KEPT  # a damaged file is written anew with the next entry
        self._last_id = self._entries[-1].id if self._entries else 0
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Entries by pool and kind, those that were found included."""
        for entry in self._entries:
            self.counts[entry.pool][entry.kind.value] += 1

    def add(self, at: float, pool: str, before: int, target: int, kind: ScaleKind, reason: str, by: str) -> LedgerEntry:
        """Write one change down. A disk that refuses costs the line on disk, not the entry."""
        self._last_id += 1
        entry = LedgerEntry(self._last_id, at, pool, before, target, kind, reason, by)
        self._entries.append(entry)
        self.counts[pool][kind.value] += 1
        if self._path is not None:
            try:
                self._write(entry, self._path)
            except OSError as error:
                logger.warning("decision %d is not on disk: %s", entry.id, error)
        return entry

    def newest(self, pool: str | None = None, after: int = 0, limit: int = KEPT) -> list[LedgerEntry]:
        """Entries with an id above `after`, newest first."""
        found = [e for e in reversed(self._entries) if e.id > after and pool in (None, e.pool)]
        return found[:limit]

    def _write(self, entry: LedgerEntry, path: Path) -> None:
        if self._on_disk >= 2 * KEPT:
            shorter = path.with_suffix(".new")
            shorter.write_text("".join(f"{json.dumps(e.row())}\n" for e in self._entries))
            os.replace(shorter, path)
            self._on_disk = len(self._entries)
            return
        with path.open("a") as file:
            file.write(f"{json.dumps(entry.row())}\n")
        self._on_disk += 1


def _read(path: Path) -> tuple[list[LedgerEntry], bool]:
    """Read the entries of a file, and whether that is all; a line that a crash cut short is left out."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return [], True
    found, whole = [], not text or text.endswith("\n")
    for line in text.splitlines():
        try:
            row = parse_json(line)
            found.append(LedgerEntry(**{**row, "kind": ScaleKind(row["kind"])}))
        except (ValueError, TypeError, KeyError):
            logger.warning("a damaged line of %s is left out", path)
            whole = False
    return found, whole
