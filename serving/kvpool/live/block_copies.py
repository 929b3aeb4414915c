"""Copies blocks between this process and memory servers: by mapped memory on one node, else through the connection."""

import logging
import time
from collections.abc import Callable, Mapping

from hardware.errors import HardwareError
from hardware.ub.copy import Hashed, checksum, copy_checked
from serving.errors import PoolError, PoolRefusedError, PoolUnreachableError
from serving.kvpool.core.batch_write import EXPIRED
from serving.kvpool.core.entry import Found
from serving.kvpool.core.messages import MAX_CHUNK_BYTES
from serving.kvpool.core.operation import PoolRead, PoolReadDone, PoolWrite, PoolWritten, reason_of
from serving.kvpool.live.segments import Mapped, Segments
from serving.kvpool.live.server_link import ServerLink
from serving.values.pool_outcome import MissReason

logger = logging.getLogger(__name__)


class BlockCopies:
    """Carries out the copies of one operation.

    Args:
        place: the memory of the block of an index, contiguous; where it goes, or where it comes from.
    """

    def __init__(self, segments: Segments, links: Mapping[str, ServerLink], place: Callable[[int], memoryview]) -> None:
        self._segments = segments
        self._links = links
        self._place = place
        self._memory: dict[str, Mapped | None] = {}

    def read(self, order: PoolRead) -> PoolReadDone:
        """Copies in order, up to the first that fails.

        Effects: fills places; that of the block that failed holds anything.
        """
        good = 0
        for index, server, found in zip(order.indices, order.servers, order.found, strict=False):
            if time.monotonic() >= order.until:
                return PoolReadDone(good, MissReason.TIMEOUT)
            try:
                mapped = self._memory[server] if server in self._memory else self._map(server)
                if mapped is not None:
                    source = mapped.view(found.offset, found.nbytes)
                    digest = copy_checked(self._place(index), source, hashed=Hashed.TARGET)
                else:
                    digest = _read_remote(self._links[server], found, self._place(index), order.until)
            except PoolRefusedError:
                return PoolReadDone(good, MissReason.GONE)
            except PoolError as error:
                return PoolReadDone(good, reason_of(error))
            except HardwareError as error:
                logger.warning("a block from memory server %s cannot be copied: %s", server, error)
                return PoolReadDone(good, MissReason.ERROR)
            if digest != found.checksum:
                logger.warning("a block from memory server %s arrived with other bytes than were stored", server)
                return PoolReadDone(good, MissReason.CHECKSUM)
            good += 1
        return PoolReadDone(good)

    def write(self, order: PoolWrite) -> PoolWritten:
        """Copies all that can be copied; a server that fails takes no more.

        Effects: fills granted room.
        """
        server = order.server
        link = self._links[server]
        mapped = self._map(server)
        digests: list[int | str] = []
        lost: str | None = None
        for index, grant in order.grants:
            if lost is None and time.monotonic() >= order.until:
                lost = MissReason.TIMEOUT.value
            if lost is not None:
                digests.append(lost)
                continue
            try:
                data = self._place(index)
                if mapped is not None:
                    target = mapped.view(grant.offset, data.nbytes)
                    digests.append(copy_checked(target, data, hashed=Hashed.SOURCE))
                else:
                    digests.append(_write_remote(link, grant.version, data, order.until))
            except PoolRefusedError:
                digests.append(EXPIRED)
            except PoolError as error:
                lost = reason_of(error).value
                digests.append(lost)
            except HardwareError as error:
                logger.warning("an entry cannot be copied to memory server %s: %s", server, error)
                digests.append(MissReason.ERROR.value)
        return PoolWritten(server, digests)

    def _map(self, server: str) -> Mapped | None:
        """The server's memory, None if it has to be read and written through the connection."""
        self._memory[server] = mapped = map_of(self._segments, self._links[server])
        return mapped


def _read_remote(link: ServerLink, found: Found, target: memoryview, until: float) -> int:
    if target.nbytes != found.nbytes:
        raise PoolError(f"a block of {found.nbytes} bytes does not fit into {target.nbytes}")
    flat = target.cast("B")
    for start in range(0, found.nbytes, MAX_CHUNK_BYTES):
        link.read(found.version, start, flat[start : start + MAX_CHUNK_BYTES], until)
    return checksum(flat)


def _write_remote(link: ServerLink, version: int, data: memoryview, until: float) -> int:
    flat = data.cast("B")
    for start in range(0, len(flat), MAX_CHUNK_BYTES):
        link.write(version, start, flat[start : start + MAX_CHUNK_BYTES], until)
    return checksum(flat)


def map_of(segments: Segments, link: ServerLink) -> Mapped | None:
    """The memory of a link's server, if it can be mapped here: same node, and the file can be seen.

    Effects: the segment is mapped.
    """
    welcome = link.welcome
    if welcome is None or not link.local:
        return None
    try:
        return segments.get(welcome.segment, welcome.generation)
    except PoolUnreachableError as error:
        logger.debug("memory server %s is read through its connection: %s", link.name, error)
        return None
