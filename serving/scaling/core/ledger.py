"""The ledger: every change of a target and every hold, with its origin and reason; the latest entries are stored."""

import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from hardware.nesting import parse_json
from serving.scaling.core.decision import LedgerEntry, ScaleKind

# Logs that survive the board: JSON lines, `PER_VALUE` to a value, so that a new row rewrites little.
#
# The store has a bounded number of values of bounded size.

T = TypeVar("T")

PER_VALUE = 100


class KeyedValues(Protocol):
    """Small values by key that survive the process; `KeptValues` in a live system."""

    def get(self, key: str) -> bytes | None: ...

    def set(self, key: str, value: bytes | None) -> None: ...

    def keys(self, prefix: str = "") -> list[str]: ...


class KeptRow(Protocol):
    """One row of a log, with increasing ids."""

    @property
    def id(self) -> int: ...

    def kept(self) -> dict[str, Any]:
        """The row ready for JSON, with everything needed to restore it."""


class KeptRows:
    """The rows of one log.

    Args:
        kept: where they are stored; None = not stored.
        prefix: of their keys.
    Attributes:
        warnings: about rows that were skipped.
    """

    def __init__(self, kept: KeyedValues | None, prefix: str) -> None:
        self.warnings: list[str] = []
        self._kept = kept
        self._prefix = prefix

    def read(self, make: Callable[[dict[str, Any]], T]) -> list[T]:
        """Stored rows, oldest first; damaged ones, and those of an incompatible version, are skipped.

        Args:
            make: restores a row; raises ValueError, TypeError or KeyError if it cannot.
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
        """Store a new or changed row, given by its id, and delete values that contain only older rows than `rows`.

        Args:
            rows: all rows of the log, oldest first.
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


# The ledger.

KEPT = 1_000
"""Entries in memory and in the store, whose oldest value may contain some more."""
_PREFIX = "decisions/"


class Ledger:
    """Append-only log of changes, which starts with the entries stored by the previous process.

    Args:
        kept: where entries are stored; None = not stored.
    Attributes:
        warnings: about stored entries that cannot be read.
    """

    def __init__(self, kept: KeyedValues | None = None) -> None:
        self._rows = KeptRows(kept, _PREFIX)
        self._entries = deque(self._rows.read(_entry), maxlen=KEPT)
        self.warnings = self._rows.warnings
        self._last_id = self._entries[-1].id if self._entries else 0
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Number of entries by pool and kind, restored ones included."""
        for entry in self._entries:
            self.counts[entry.pool][entry.kind.value] += 1

    def add(self, at: float, pool: str, before: int, target: int, kind: ScaleKind, reason: str, by: str) -> LedgerEntry:
        """Append and store one change; beyond `KEPT` the oldest entry is dropped."""
        self._last_id += 1
        entry = LedgerEntry(self._last_id, at, pool, before, target, kind, reason, by)
        self._entries.append(entry)
        self.counts[pool][kind.value] += 1
        self._rows.write(entry.id, self._entries)
        return entry

    def last(self, pool: str) -> LedgerEntry | None:
        """The latest entry about a pool; None = there is none."""
        return next((entry for entry in reversed(self._entries) if entry.pool == pool), None)

    def newest(self, pool: str | None = None, after: int = 0, limit: int = KEPT) -> list[LedgerEntry]:
        """Entries with an id above `after`, latest first."""
        found = [e for e in reversed(self._entries) if e.id > after and pool in (None, e.pool)]
        return found[:limit]


def _entry(row: dict[str, Any]) -> LedgerEntry:
    return LedgerEntry(**{**row, "kind": ScaleKind(row["kind"])})
