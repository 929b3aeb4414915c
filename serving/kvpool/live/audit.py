"""Proof that a memory server's ledger, its segment and its folder on disk say the same.

Every byte is hashed, so it takes a while; the server works on meanwhile. An entry is held in place while it is hashed,
the ledger's lock is not. What changes meanwhile is no fault: a file that looks wrong is looked at again, and files are
counted, while nothing is written.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hardware.errors import UbError
from serving.errors import LedgerError, SsdError
from serving.kvpool.core.entries import EntryView
from serving.kvpool.live.server_core import ServerCore
from serving.kvpool.live.ssd_files import StoredEntry
from serving.kvpool.live.ssd_orphans import orphans
from serving.kvpool.live.ssd_worker import SsdWorker

MAX_PROBLEMS = 100
FENCE_S = 60.0


@dataclass(slots=True)
class _Findings:
    repair: bool
    problems: list[str] = field(default_factory=list)
    count: int = 0
    entries: int = 0
    dram_entries: int = 0
    dram_bytes: int = 0
    ssd_entries: int = 0
    ssd_bytes: int = 0
    skipped: int = 0
    repaired: int = 0

    def wrong(self, what: str, *, repaired: bool = False) -> None:
        self.count += 1
        self.repaired += repaired
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(f"{what}{'; removed' if repaired else ''}")


def audit(core: ServerCore, ssd: SsdWorker | None, *, repair: bool) -> dict[str, Any]:
    """Looks at everything.

    Args:
        repair: remove what is wrong.
    Returns: `{ok, problems: [text], problem_count, repaired, entries, dram_entries, dram_bytes, ssd_entries, ssd_bytes,
        skipped}`: what was proved right or wrong; `skipped` entries left, moved or changed while it went on.
    Effects: with `repair`, wrong entries and files without an entry are gone.
    """
    findings = _Findings(repair)
    _check_books(core, findings)
    suspects: set[int] = set()
    for one in core.entries():
        findings.entries += 1
        if one.in_dram:
            _check_dram(core, one, findings)
        if one.on_ssd and ssd is not None:
            _check_ssd(ssd, one, findings, suspects)
    if suspects and ssd is not None:
        _judge(core, ssd, suspects, findings)
    if ssd is not None:
        _check_orphans(core, ssd, findings)
    return {
        "ok": findings.count == 0,
        "problems": findings.problems,
        "problem_count": findings.count,
        "repaired": findings.repaired,
        "entries": findings.entries,
        "dram_entries": findings.dram_entries,
        "dram_bytes": findings.dram_bytes,
        "ssd_entries": findings.ssd_entries,
        "ssd_bytes": findings.ssd_bytes,
        "skipped": findings.skipped,
    }


def _check_books(core: ServerCore, findings: _Findings) -> None:
    """The ledger against itself, and the segment's file against itself."""
    try:
        with core.changed:
            core.manager.check()
    except (LedgerError, AssertionError) as error:
        findings.wrong(f"the ledger does not balance: {error}")
    try:
        core.segment.check()
    except UbError as error:
        findings.wrong(f"the segment: {error}")


def _check_dram(core: ServerCore, one: EntryView, findings: _Findings) -> None:
    """Hashes what the entry has in memory."""
    right = core.verify(one.version, remove=findings.repair)
    if right is None:
        findings.skipped += 1
        return
    findings.dram_entries += 1
    findings.dram_bytes += one.nbytes
    if not right:
        findings.wrong(f"entry {one.hash.hex()}: wrong bytes in memory", repaired=findings.repair)


def _check_ssd(ssd: SsdWorker, one: EntryView, findings: _Findings, suspects: set[int]) -> None:
    """Reads the file of the entry."""
    if _fault(ssd, one) is None:
        findings.ssd_entries += 1
        findings.ssd_bytes += one.nbytes
    else:
        suspects.add(one.version)


def _fault(ssd: SsdWorker, one: EntryView) -> str | None:
    """Fault of the entry's file."""
    try:
        right = ssd.files.verify(StoredEntry(one.space, one.hash, one.kind, one.nbytes, one.checksum))
    except SsdError as error:
        return str(error)
    return None if right else "its file is missing or damaged"


def _judge(core: ServerCore, ssd: SsdWorker, suspects: set[int], findings: _Findings) -> None:
    """Second look at entries that the ledger has on SSD. Nothing is written or removed meanwhile.

    Before, a file may have been on its way: out, since the ledger gives up a copy before its file goes; or out and in
    again, under the same version.
    """
    seen: list[tuple[EntryView, str | None]] = []

    def look() -> None:
        seen.extend((one, _fault(ssd, one)) for one in core.entries() if one.on_ssd and one.version in suspects)

    if not _between_writes(ssd, look, findings):
        return
    findings.skipped += len(suspects) - len(seen)
    findings.ssd_entries += len(seen)
    findings.ssd_bytes += sum(one.nbytes for one, _ in seen)
    for one, fault in seen:
        if fault is None:
            continue
        if findings.repair:
            with core.changed:
                core.manager.distrust(one.version, core.now())
                core.dispatch()
        findings.wrong(f"entry {one.hash.hex()} on SSD: {fault}", repaired=findings.repair)


def _between_writes(ssd: SsdWorker, look: Callable[[], None], findings: _Findings) -> bool:
    """Runs `look` while nothing is written or removed. Returns: whether it came to an end; else that is a finding."""
    try:
        if ssd.run_between_writes(look, FENCE_S):
            return True
        findings.wrong(f"the disk did not finish its queue within {FENCE_S:g} s; files were not compared")
    except SsdError as error:
        findings.wrong(str(error))
    return False


def _check_orphans(core: ServerCore, ssd: SsdWorker, findings: _Findings) -> None:
    """Files that no entry claims and that are not about to be removed. Nothing is written or removed meanwhile."""
    found: list[tuple[str, bool]] = []

    def look() -> None:
        found.extend((path, findings.repair and _removed(ssd, path)) for path in orphans(core, ssd))

    if not _between_writes(ssd, look, findings):
        return
    for path, removed in found:
        findings.wrong(f"file {path} belongs to no entry", repaired=removed)


def _removed(ssd: SsdWorker, path: str) -> bool:
    try:
        ssd.files.unlink(path)
    except SsdError:
        return False
    return True
