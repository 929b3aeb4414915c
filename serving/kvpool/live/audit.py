"""Compares a memory server's ledger, its segment and its folder on disk, while the server works.

Every byte is hashed, which takes a while. An entry is held in place while it is hashed, but the ledger is not locked.
`kvpool/core/audit` decides what is wrong.
"""

import time
from collections.abc import Callable
from typing import Any

from hardware.errors import UbError
from serving.errors import LedgerError, PoolError, SsdError
from serving.kvpool.core.audit import AuditFindings, stray_files
from serving.kvpool.core.entry import EntryView
from serving.kvpool.live.server_core import ServerCore
from serving.kvpool.live.ssd_files import StoredEntry
from serving.kvpool.live.ssd_worker import SsdWorker

FENCE_S = 60.0


def audit(core: ServerCore, ssd: SsdWorker | None, *, repair: bool) -> dict[str, Any]:
    """Check every entry and every file.

    Args:
        repair: remove wrong entries, and files without an entry.
    Returns: `{ok, problems: [text], problem_count, repaired, entries, dram_entries, dram_bytes, ssd_entries, ssd_bytes,
        skipped}`: what was proved right or wrong; `skipped` entries left, moved or changed during the audit.
    """
    findings = AuditFindings(repair)
    _check_ledger(core, findings)
    for one in core.entries():
        findings.seen()
        if one.in_dram:
            findings.in_dram(one, core.verify(one.version, remove=repair))
        if one.on_ssd and ssd is not None:
            findings.on_ssd(one, _fault(ssd, one))
    if ssd is not None:
        if findings.suspects:
            _check_suspects(core, ssd, findings)
        _check_strays(core, ssd, findings)
    return findings.report()


def _check_ledger(core: ServerCore, findings: AuditFindings) -> None:
    try:
        with core.changed:
            core.manager.check()
    except (LedgerError, AssertionError) as error:
        findings.wrong(f"the ledger does not balance: {error}")
    try:
        core.segment.check()
    except UbError as error:
        findings.wrong(f"the segment: {error}")


def _fault(ssd: SsdWorker, one: EntryView) -> str | None:
    try:
        right = ssd.files.verify(StoredEntry(one.space, one.hash, one.kind, one.nbytes, one.checksum))
    except SsdError as error:
        return str(error)
    return None if right else "its file is missing or damaged"


def _check_suspects(core: ServerCore, ssd: SsdWorker, findings: AuditFindings) -> None:
    seen: list[tuple[EntryView, str | None]] = []

    def look() -> None:
        seen.extend(
            (one, _fault(ssd, one)) for one in core.entries() if one.on_ssd and one.version in findings.suspects
        )

    if not _between_writes(ssd, look, findings):
        return
    for version in findings.judge(seen):
        with core.changed:
            core.manager.distrust(version, core.now())
            core.dispatch()


def _between_writes(ssd: SsdWorker, look: Callable[[], None], findings: AuditFindings) -> bool:
    """Run `look` while no file is written or removed. Returns: whether it finished; if not, that is a finding."""
    try:
        if ssd.run_between_writes(look, FENCE_S):
            return True
        findings.wrong(f"the disk did not finish its queue within {FENCE_S:g} s; files were not compared")
    except SsdError as error:
        findings.wrong(str(error))
    return False


def _check_strays(core: ServerCore, ssd: SsdWorker, findings: AuditFindings) -> None:
    found: list[tuple[str, bool]] = []

    def look() -> None:
        found.extend((path, findings.repair and _removed(ssd, path)) for path in _strays(core, ssd))

    if not _between_writes(ssd, look, findings):
        return
    for path, removed in found:
        findings.wrong(f"file {path} belongs to no entry", repaired=removed)


def _strays(core: ServerCore, ssd: SsdWorker, namespace: str | None = None) -> list[str]:
    """Paths of files without an entry, of all namespaces or of one. Called while no file is written.

    Raises: SsdError if a folder cannot be read.
    """
    files = set(ssd.files.files(namespace))
    entries = core.entries() if files else ()
    claimed = {ssd.files.path_of(one.space, one.hash, one.kind) for one in entries if one.on_ssd}
    with core.changed:  # after the claims: an entry that was given up since has its removal queued
        return stray_files(files, claimed, ssd.unlinking())


def _removed(ssd: SsdWorker, path: str) -> bool:
    try:
        ssd.files.unlink(path)
    except SsdError:
        return False
    return True


def finish_removal(core: ServerCore, ssd: SsdWorker, namespace: str, timeout_s: float) -> None:
    """Wait until the disk has removed every file of a namespace's deleted entries, so that no restart restores one.

    Removals that failed before are tried once more.

    Raises: PoolError if that takes too long, or the disk refuses to remove a file.
    """
    until = time.monotonic() + timeout_s
    kept: list[str] = []
    why = ""

    def look() -> None:
        nonlocal why
        for path in _strays(core, ssd, namespace):
            try:
                ssd.files.unlink(path)
            except SsdError as error:
                kept.append(path)
                why = str(error)

    # Twice: the removal of a file that is just being written is queued behind the first job.
    for job in (lambda: None, look):
        if not ssd.run_between_writes(job, max(0.0, until - time.monotonic())):
            raise PoolError(f"the disk has not removed every file of {namespace!r} in {timeout_s:g} s; delete it again")
    if kept:
        raise PoolError(f"{len(kept)} files of {namespace!r} are still on disk: {why}; then delete it again")
