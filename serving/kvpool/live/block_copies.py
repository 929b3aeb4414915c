"""Copies blocks between this process and memory servers: by mapped memory on one node, else through the connection."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

from hardware.errors import HardwareError
from hardware.ub.copy import Hashed, copy_checked
from serving.errors import PoolError, PoolUnreachableError
from serving.kvpool.core.entry import Found
from serving.kvpool.core.operation import PoolRead, PoolReadDone, PoolWrite, PoolWritten, reason_of
from serving.kvpool.live.remote_copies import read_remote, write_remote
from serving.kvpool.live.segments import Mapped, Segments
from serving.kvpool.live.server_link import ServerLink
from serving.values.pool_outcome import MissReason

logger = logging.getLogger(__name__)


class BlockCopies:
    """Carries out the copies of one operation.

    Args:
        place: returns the memory of the block of an index, contiguous: target of a read, source of a write.
    """

    def __init__(self, segments: Segments, links: Mapping[str, ServerLink], place: Callable[[int], memoryview]) -> None:
        self._segments = segments
        self._links = links
        self._place = place
        self._memory: dict[str, Mapped | None] = {}

    def read(self, order: PoolRead) -> PoolReadDone:
        """Copy all blocks that can be copied; the result counts those before the first failure.

        Places behind the first failure have undefined content.
        """
        blocks = list(zip(order.indices, order.servers, order.found, strict=False))
        digests: list[int | MissReason] = [MissReason.TIMEOUT] * len(blocks)
        far: dict[str, list[int]] = defaultdict(list)
        for at, (index, server, found) in enumerate(blocks):
            mapped = self._memory[server] if server in self._memory else self._map(server)
            if mapped is None:
                far[server].append(at)
                continue
            digests[at] = self._read_mapped(mapped, index, server, found, order.until)
            if isinstance(digests[at], MissReason):
                break
        for server, places in far.items():  # those of this node first: they do not wait for a slow connection
            reads = [(found, self._place(index)) for index, _, found in (blocks[at] for at in places)]
            for at, digest in zip(places, read_remote(self._links[server], reads, order.until), strict=True):
                digests[at] = digest
        for good, (digest, (_, server, found)) in enumerate(zip(digests, blocks, strict=True)):
            if isinstance(digest, MissReason):
                return PoolReadDone(good, digest)
            if digest != found.checksum:
                logger.warning("a block from memory server %s differs from what was stored", server)
                return PoolReadDone(good, MissReason.CHECKSUM)
        return PoolReadDone(len(blocks))

    def _read_mapped(self, mapped: Mapped, index: int, server: str, found: Found, until: float) -> int | MissReason:
        if time.monotonic() >= until:
            return MissReason.TIMEOUT
        try:
            source = mapped.view(found.offset, found.nbytes)
            return copy_checked(self._place(index), source, hashed=Hashed.TARGET)
        except PoolError as error:
            return reason_of(error)
        except HardwareError as error:
            logger.warning("a block from memory server %s cannot be copied: %s", server, error)
            return MissReason.ERROR

    def write(self, order: PoolWrite) -> PoolWritten:
        """Copy all entries that can be copied into granted room; after a failure no more go to that server."""
        server = order.server
        mapped = self._map(server)
        if mapped is None:
            writes = [(grant, self._place(index)) for index, grant in order.grants]
            return PoolWritten(server, write_remote(self._links[server], writes, order.until))
        digests: list[int | str] = []
        for index, grant in order.grants:
            if time.monotonic() >= order.until:
                digests.append(MissReason.TIMEOUT.value)
                continue
            try:
                data = self._place(index)
                digests.append(copy_checked(mapped.view(grant.offset, data.nbytes), data, hashed=Hashed.SOURCE))
            except PoolError as error:
                digests.append(reason_of(error).value)
            except HardwareError as error:
                logger.warning("an entry cannot be copied to memory server %s: %s", server, error)
                digests.append(MissReason.ERROR.value)
        return PoolWritten(server, digests)

    def _map(self, server: str) -> Mapped | None:
        """The server's memory, None if it has to be read and written through the connection."""
        self._memory[server] = mapped = map_of(self._segments, self._links[server])
        return mapped


def map_of(segments: Segments, link: ServerLink) -> Mapped | None:
    """The memory of a link's server, mapped if it is on the same node and its file is visible; else None."""
    welcome = link.welcome
    if welcome is None or not link.local:
        return None
    try:
        return segments.get(welcome.segment, welcome.generation)
    except PoolUnreachableError as error:
        logger.debug("memory server %s is read through its connection: %s", link.name, error)
        return None
