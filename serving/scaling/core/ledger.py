"""The ledger: every change of a target and every hold, with who asked and why; the newest ones are kept."""

from collections import Counter, defaultdict, deque
from typing import Any

from serving.scaling.core.decision import LedgerEntry, ScaleKind
from serving.scaling.core.kept_rows import KeptRows, KeyedValues

KEPT = 1_000
"""Entries in memory, and kept, but for what its last value holds beyond."""
_PREFIX = "decisions/"


class Ledger:
    """Appends, and finds again what its predecessor in this process's place wrote.

    Args:
        kept: where they are kept; None = nowhere.
    Attributes:
        warnings: about entries that cannot be read.
    """

    def __init__(self, kept: KeyedValues | None = None) -> None:
        self._rows = KeptRows(kept, _PREFIX)
        self._entries = deque(self._rows.read(_entry), maxlen=KEPT)
        self.warnings = self._rows.warnings
        self._last_id = self._entries[-1].id if self._entries else 0
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Entries by pool and kind, those that were found included."""
        for entry in self._entries:
            self.counts[entry.pool][entry.kind.value] += 1

    def add(self, at: float, pool: str, before: int, target: int, kind: ScaleKind, reason: str, by: str) -> LedgerEntry:
        """Write one change down. Effects: it is kept, and the oldest ones are not any more."""
        self._last_id += 1
        entry = LedgerEntry(self._last_id, at, pool, before, target, kind, reason, by)
        self._entries.append(entry)
        self.counts[pool][kind.value] += 1
        self._rows.write(entry.id, self._entries)
        return entry

    def last(self, pool: str) -> LedgerEntry | None:
        """The newest entry about a pool; None = there is none."""
        return next((entry for entry in reversed(self._entries) if entry.pool == pool), None)

    def newest(self, pool: str | None = None, after: int = 0, limit: int = KEPT) -> list[LedgerEntry]:
        """Entries with an id above `after`, newest first."""
        found = [e for e in reversed(self._entries) if e.id > after and pool in (None, e.pool)]
        return found[:limit]


def _entry(row: dict[str, Any]) -> LedgerEntry:
    return LedgerEntry(**{**row, "kind": ScaleKind(row["kind"])})
