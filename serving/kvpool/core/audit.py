"""Findings and repairs of a memory server's audit.

An audit compares entries, bytes in memory and files on SSD while the server works. Changes during the audit are no
fault: an entry that left is skipped, a file that looks wrong is checked again while no file is written, and a file
without an entry counts only if its removal is not queued. Virtual time has no such strays, because its disk is derived
from the ledger: every file belongs to an entry and every entry on SSD has a file.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from serving.kvpool.core.entry import EntryView

MAX_PROBLEMS = 100


def stray_files(files: Iterable[str], claimed: Set[str], unlinking: Set[str]) -> list[str]:
    """Files of the SSD tier that belong to no entry, in order of their paths.

    Args:
        claimed: files of entries on SSD. unlinking: files whose removal is queued.
    """
    return sorted(set(files) - claimed - unlinking)


@dataclass(slots=True)
class AuditFindings:
    """Findings of one audit.

    Args:
        repair: wrong entries and stray files are removed.
    Attributes:
        suspects: versions whose files looked wrong while the disk worked; `judge` decides.
    """

    repair: bool
    suspects: set[int] = field(default_factory=set)
    _problems: list[str] = field(default_factory=list)
    _count: int = 0
    _entries: int = 0
    _dram_entries: int = 0
    _dram_bytes: int = 0
    _ssd_entries: int = 0
    _ssd_bytes: int = 0
    _skipped: int = 0
    _repaired: int = 0

    def wrong(self, what: str, *, repaired: bool = False) -> None:
        """Add a fault."""
        self._count += 1
        self._repaired += repaired
        if len(self._problems) < MAX_PROBLEMS:
            self._problems.append(f"{what}{'; removed' if repaired else ''}")

    def seen(self) -> None:
        """Count an entry."""
        self._entries += 1

    def in_dram(self, one: EntryView, right: bool | None) -> None:
        """Add the result for an entry's bytes in memory.

        Args:
            right: whether they match the checksum; None if the entry left memory in the meantime.
        """
        if right is None:
            self._skipped += 1
            return
        self._dram_entries += 1
        self._dram_bytes += one.nbytes
        if not right:
            self.wrong(f"entry {one.hash.hex()}: wrong bytes in memory", repaired=self.repair)

    def on_ssd(self, one: EntryView, fault: str | None) -> None:
        """Add the first check of an entry's file; a failed one makes the entry a suspect."""
        if fault is None:
            self._ssd_entries += 1
            self._ssd_bytes += one.nbytes
        else:
            self.suspects.add(one.version)

    def judge(self, suspects: Sequence[tuple[EntryView, str | None]]) -> list[int]:
        """Add the second check of suspects that are still on SSD, made while no file was written or removed.

        During the first check the file may have been in transition: the ledger drops a copy before its file is removed,
        and may write it again under the same version.

        Returns: versions to distrust.
        """
        self._skipped += len(self.suspects) - len(suspects)
        self._ssd_entries += len(suspects)
        self._ssd_bytes += sum(one.nbytes for one, _ in suspects)
        faults = [(one, fault) for one, fault in suspects if fault is not None]
        for one, fault in faults:
            self.wrong(f"entry {one.hash.hex()} on SSD: {fault}", repaired=self.repair)
        return [one.version for one, _ in faults] if self.repair else []

    def report(self) -> dict[str, Any]:
        """The audit's result, as `audit` returns it."""
        return {
            "ok": self._count == 0,
            "problems": self._problems,
            "problem_count": self._count,
            "repaired": self._repaired,
            "entries": self._entries,
            "dram_entries": self._dram_entries,
            "dram_bytes": self._dram_bytes,
            "ssd_entries": self._ssd_entries,
            "ssd_bytes": self._ssd_bytes,
            "skipped": self._skipped,
        }
