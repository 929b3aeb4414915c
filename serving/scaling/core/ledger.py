"""The ledger: every change of a target and every hold, with who asked and why; the newest ones are kept."""

import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from hardware.nesting import parse_json
from serving.scaling.core.decision import LedgerEntry, ScaleKind

# Logs that outlive the board: JSON lines, so many to a value, so that a new row rewrites little.
#
# The store has a bounded number of bounded values.

T = TypeVar("T")

PER_VALUE = 100


class KeyedValues(Protocol):
    """Small values by key that outlive the process; live they are `KeptValues`."""

    def get(self, key: str) -> bytes | None: ...

    def set(self, key: str, value: bytes | None) -> None: ...

    def keys(self, prefix: str = "") -> list[str]: ...


class KeptRow(Protocol):
    """One row; ids count up."""

    @property
    def id(self) -> int: ...

    def kept(self) -> dict[str, Any]:
        """Ready for JSON, with everything that makes the row again."""


class KeptRows:
    """The rows of one log.

    Args:
        kept: where they are kept; None = nowhere. `prefix`: of their keys.
    Attributes:
        warnings: about rows that were left out.
    """

    def __init__(self, kept: KeyedValues | None, prefix: str) -> None:
        self.warnings: list[str] = []
        self._kept = kept
        self._prefix = prefix

    def read(self, make: Callable[[dict[str, Any]], T]) -> list[T]:
        """Rows that are kept, oldest first; what is damaged, or another version wrote, is left out.

        Args:
            make: makes a row of what was kept. Raises: ValueError, TypeError, KeyError if it cannot.
        """
        if self._kept is None:
            return []
        found = []
        for key in self._kept.keys(self._prefix):
            for line in (self._kept.get(key) or b"").decode(errors="replace").splitlines():
                try:
                    found.append(make(dict(parse_json(line))))
                except (ValueError, TypeError, KeyError):
                    self.warnings.append(f"a damaged line of {key} is left out")
        return found

    def write(self, changed: int, rows: Iterable[KeptRow]) -> None:
        """Keep a row that is new or has changed, by its id.

        Args:
            rows: all rows of the log, oldest first.
        Effects: rows older than these are kept no longer, but for those in the value of the oldest.
        """
        if self._kept is None:
            return
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


# The ledger: every change of a target and every hold, with who asked and why; the newest ones are kept.

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
