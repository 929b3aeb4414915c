"""The ledger: every change of a target and every hold, with who asked and why; the newest ones are kept.

They are kept as JSON lines, so many to a value, so that an entry rewrites little: the store has a bounded number of
bounded values.
"""

import json
import logging
from collections import Counter, defaultdict, deque
from dataclasses import asdict, dataclass
from typing import Any

from hardware.nesting import parse_json
from serving.cluster.kept_values import KeptValues
from serving.scaling.core.decision import ScaleKind

logger = logging.getLogger(__name__)

KEPT = 1_000
"""Entries in memory, and kept, but for what its last value holds beyond."""
PER_VALUE = 100
_PREFIX = "decisions/"


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
        kept: where they are kept.
    """

    def __init__(self, kept: KeptValues) -> None:
        self._kept = kept
        found = [entry for key in kept.keys(_PREFIX) for entry in _read(key, kept.get(key) or b"")]
        self._entries: deque[LedgerEntry] = deque(found, maxlen=KEPT)
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
        place = entry.id // PER_VALUE
        here = (one for one in self._entries if one.id // PER_VALUE == place)
        self._kept.set(_key(place), "".join(f"{json.dumps(one.row())}\n" for one in here).encode())
        oldest = _key(self._entries[0].id // PER_VALUE)
        for key in self._kept.keys(_PREFIX):
            if key < oldest:
                self._kept.set(key, None)
        return entry

    def newest(self, pool: str | None = None, after: int = 0, limit: int = KEPT) -> list[LedgerEntry]:
        """Entries with an id above `after`, newest first."""
        found = [e for e in reversed(self._entries) if e.id > after and pool in (None, e.pool)]
        return found[:limit]


def _key(place: int) -> str:
    return f"{_PREFIX}{place:09d}"


def _read(key: str, value: bytes) -> list[LedgerEntry]:
    """Entries of one value; a line that makes no sense is left out."""
    found = []
    for line in value.decode(errors="replace").splitlines():
        try:
            row = parse_json(line)
            found.append(LedgerEntry(**{**row, "kind": ScaleKind(row["kind"])}))
        except (ValueError, TypeError, KeyError):
            logger.warning("a damaged line of %s is left out", key)
    return found
