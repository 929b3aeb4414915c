"""Files of the SSD tier that no entry claims: an audit tells of them, and a deletion is over when it leaves none."""

import time

from serving.errors import PoolError, SsdError
from serving.kvpool.live.server_core import ServerCore
from serving.kvpool.live.ssd_worker import SsdWorker


def orphans(core: ServerCore, ssd: SsdWorker, namespace: str | None = None) -> list[str]:
    """Paths of files that no entry claims and that are not about to be removed. Called between writes.

    Args:
        namespace: look at its files only.
    Raises: SsdError if a folder cannot be read.
    """
    there = set(ssd.files.files(namespace))
    if there:
        there -= {ssd.files.path_of(one.space, one.hash, one.kind) for one in core.entries() if one.on_ssd}
    with core.changed:  # after the claims: what was given up since is waiting for us to end
        there -= ssd.unlinking()
    return sorted(there)


def finish_removal(core: ServerCore, ssd: SsdWorker, namespace: str, timeout_s: float) -> None:
    """Waits until no file of the entries is left that a namespace has lost, so that a restart brings nothing back.

    Raises: PoolError if that takes too long, or the disk does not let a file go.
    Effects: tries once more to remove what the disk did not let go.
    """
    until = time.monotonic() + timeout_s
    kept: list[str] = []
    why = ""

    def look() -> None:
        nonlocal why
        for path in orphans(core, ssd, namespace):
            try:
                ssd.files.unlink(path)
            except SsdError as error:
                kept.append(path)
                why = str(error)

    # Twice: the removal of what was just being written is ordered when it has been written, behind the first look.
    for job in (lambda: None, look):
        if not ssd.run_between_writes(job, max(0.0, until - time.monotonic())):
            raise PoolError(f"the disk has not removed every file of {namespace!r} in {timeout_s:g} s; delete it again")
    if kept:
        raise PoolError(f"{len(kept)} files of {namespace!r} are still on disk: {why}; then delete it again")
