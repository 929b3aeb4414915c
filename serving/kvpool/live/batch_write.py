"""Writing entries into the pool: reserve on all servers, copy, commit on all servers.

What cannot be written is dropped, with the reason in one word; it is never sent to a server that would not be asked
for it. Words beside those of `GrantStatus` and `MissReason`: `no server`, `expired` (the reservation had ended).
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hardware.errors import HardwareError
from hardware.ub.copy import Hashed, checksum, copy_checked
from serving.errors import PoolError, PoolRefusedError
from serving.ids import BlockHash
from serving.kvpool.core.entry import Grant, GrantStatus, Kind, Space
from serving.kvpool.core.messages import MAX_CHUNK_BYTES, Abort, Commit, Committed, Reserve, Reserved
from serving.kvpool.core.operation import LAST_WORD_S, reason_of
from serving.kvpool.live.prefix_read import map_of
from serving.kvpool.live.segments import Mapped, Segments
from serving.kvpool.live.server_link import ServerLink
from serving.values.pool_outcome import MissReason

logger = logging.getLogger(__name__)

RESERVE_SHARE = 0.5
"""Part of the time that reserving may take: one silent server must not use up all of it."""
STORED = "stored"
PRESENT = GrantStatus.PRESENT.value
NO_SERVER = "no server"
EXPIRED = "expired"

Route = Callable[[BlockHash], ServerLink | None]


@dataclass(frozen=True, slots=True)
class NewEntry:
    """Something to be written.

    Args:
        data: contiguous bytes that do not change meanwhile.
        expected: checksum that they must have; another one is not stored (reason `checksum`).
    """

    hash: BlockHash
    data: memoryview
    expected: int | None = None


class BatchWrite:
    """One batch, thrown away afterwards.

    Args:
        route: the server of a block; None = there is none.
    """

    def __init__(self, segments: Segments, route: Route, entries: Sequence[NewEntry], deadline: float) -> None:
        self._segments = segments
        self._entries = entries
        self._deadline = deadline
        self._outcomes = [NO_SERVER] * len(entries)
        self._by_link: dict[ServerLink, list[int]] = defaultdict(list)
        for index, entry in enumerate(entries):
            link = route(entry.hash)
            if link is not None:
                self._by_link[link].append(index)

    def run(self, space: Space, kind: Kind) -> list[str]:
        """Writes.

        Returns: for each entry `stored`, `present`, or why it was dropped.
        Effects: new entries in the pool; reservations that were not used are given back.
        """
        granted = self._reserve(space, kind)
        written: dict[ServerLink, list[tuple[int, int, int]]] = {}
        # Local ones first: a slow connection then costs only its own blocks.
        for link, grants in sorted(granted.items(), key=lambda item: not item[0].local):
            written[link] = self._copy(link, grants)
        self._commit(written)
        return self._outcomes

    def _reserve(self, space: Space, kind: Kind) -> dict[ServerLink, list[tuple[int, Grant]]]:
        asked: list[tuple[ServerLink, list[int]]] = []
        now = time.monotonic()
        until = now + (self._deadline - now) * RESERVE_SHARE
        # Those that can be asked at once come first: they answer while others are waited for.
        for link, indices in sorted(self._by_link.items(), key=lambda item: not item[0].prompt):
            items = tuple((self._entries[i].hash, self._entries[i].data.nbytes) for i in indices)
            try:
                link.send(Reserve(space, kind, items), until)
                asked.append((link, indices))
            except PoolError as error:
                self._drop(indices, error)
        granted: dict[ServerLink, list[tuple[int, Grant]]] = {}
        for link, indices in asked:
            try:
                grants = link.receive(Reserved, until).grants
            except PoolError as error:
                self._drop(indices, error)
                continue
            for index, grant in zip(indices, grants, strict=False):
                self._outcomes[index] = grant.status.value
            pairs = zip(indices, grants, strict=False)
            granted[link] = [(index, grant) for index, grant in pairs if grant.status is GrantStatus.GRANTED]
        return granted

    def _copy(self, link: ServerLink, grants: Sequence[tuple[int, Grant]]) -> list[tuple[int, int, int]]:
        """Copies what was granted. Returns (index, version, checksum) of what is ready to be committed."""
        ready: list[tuple[int, int, int]] = []
        unused: list[int] = []
        connection = link.connection
        mapped = map_of(self._segments, link) if grants else None
        for index, grant in grants:
            digest = self._copy_one(link, mapped, grant, index) if link.connection == connection else None
            if digest is None:
                unused.append(grant.version)
            else:
                ready.append((index, grant.version, digest))
        if unused and link.welcome is not None:
            try:
                link.post(Abort(tuple(unused)), max(self._deadline, time.monotonic() + LAST_WORD_S))
            except PoolError:
                link.close()  # which gives the reservations back as well
        return ready

    def _copy_one(self, link: ServerLink, mapped: Mapped | None, grant: Grant, index: int) -> int | None:
        """Returns the checksum of what was written; None if it could not be, then the outcome says why."""
        entry = self._entries[index]
        if time.monotonic() >= self._deadline:
            # Nothing may be written after the write lease, which is longer than any deadline of ours.
            self._outcomes[index] = MissReason.TIMEOUT.value
            return None
        try:
            if mapped is not None:
                target = mapped.view(grant.offset, entry.data.nbytes)
                digest = copy_checked(target, entry.data, hashed=Hashed.SOURCE)
            else:
                digest = self._write_remote(link, grant.version, entry.data)
        except PoolRefusedError:
            self._outcomes[index] = EXPIRED
            return None
        except PoolError as error:
            self._drop([index], error)
            return None
        except HardwareError as error:
            logger.warning("an entry cannot be copied to memory server %s: %s", link.name, error)
            self._outcomes[index] = MissReason.ERROR.value
            return None
        if entry.expected is not None and digest != entry.expected:
            self._outcomes[index] = MissReason.CHECKSUM.value
            return None
        return digest

    def _write_remote(self, link: ServerLink, version: int, data: memoryview) -> int:
        flat = data.cast("B")
        for start in range(0, len(flat), MAX_CHUNK_BYTES):
            link.write(version, start, flat[start : start + MAX_CHUNK_BYTES], self._deadline)
        return checksum(flat)

    def _commit(self, written: dict[ServerLink, list[tuple[int, int, int]]]) -> None:
        # What is copied is worth a moment more: without its commit all of the work is lost.
        until = max(self._deadline, time.monotonic() + LAST_WORD_S)
        asked: list[tuple[ServerLink, list[int]]] = []
        for link, ready in written.items():
            if not ready:
                continue
            # Last block first: the beginning of a chain is then the younger one, and stays longer than its end.
            ready = ready[::-1]
            indices = [index for index, _, _ in ready]
            try:
                link.send(Commit(tuple((version, digest) for _, version, digest in ready)), until)
                asked.append((link, indices))
            except PoolError as error:
                self._drop(indices, error)
        for link, indices in asked:
            try:
                ok = link.receive(Committed, until).ok
            except PoolError as error:
                self._drop(indices, error)
                continue
            for index, good in zip(indices, ok, strict=False):
                self._outcomes[index] = STORED if good else EXPIRED

    def _drop(self, indices: Sequence[int], error: PoolError) -> None:
        for index in indices:
            self._outcomes[index] = reason_of(error).value
