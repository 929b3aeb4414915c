"""At the start of a memory server: what its predecessor left on disk comes back into the ledger, not yet believed."""

import logging

from serving.errors import SsdError
from serving.kvpool.core.entry import Kind
from serving.kvpool.live.server_core import ServerCore
from serving.kvpool.live.ssd_files import ScannedFile, SsdFiles, StoredEntry

logger = logging.getLogger(__name__)


def restore(core: ServerCore, files: SsdFiles) -> int:
    """Takes over every whole file that fits, the most recently used first; the others are removed.

    Only headers are read: the bytes are verified when somebody wants them.

    Returns: entries taken over.
    Raises: SsdError if the folder cannot be read.
    Effects: entries in the ledger, on SSD only; fewer files.
    """
    kept, useless = _chosen(files, core.settings.ssd_bytes)
    taken = 0
    with core.changed:
        now = core.now()
        for _, age_s, entry in reversed(kept):  # oldest first, as they were used
            version = core.manager.restore(
                entry.space, entry.hash, entry.kind, entry.nbytes, entry.checksum, now - age_s, now
            )
            taken += version is not None  # the ledger itself orders the file away if not
            if version is not None and entry.kind is Kind.MODEL:
                core.models[version] = entry.space.layout
        core.dispatch()
    for path in useless:
        try:
            files.unlink(path)
        except SsdError as error:
            logger.warning("%s", error)
    core.meters.add("ssd_restored", taken)
    core.meters.add("ssd_discarded", len(useless))
    if kept or useless:
        logger.info("SSD tier: %d entries taken over, %d useless files removed", taken, len(useless))
    return taken


def _chosen(files: SsdFiles, limit_bytes: int) -> tuple[list[tuple[str, float, StoredEntry]], list[str]]:
    """Files to keep, most recently used first, and the paths of the rest."""
    whole: list[tuple[str, float, StoredEntry]] = []
    useless: list[str] = []
    for file in files.scan():
        _sort_in(file, whole, useless)
    whole.sort(key=lambda one: one[1])
    kept = []
    room = limit_bytes
    for one in whole:
        if one[2].nbytes <= room:
            room -= one[2].nbytes
            kept.append(one)
        else:
            useless.append(one[0])
    return kept, useless


def _sort_in(file: ScannedFile, whole: list[tuple[str, float, StoredEntry]], useless: list[str]) -> None:
    if file.entry is None:
        useless.append(file.path)
    else:
        whole.append((file.path, file.age_s, file.entry))
