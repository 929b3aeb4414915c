"""Copies blocks between this process and memory servers: by mapped memory on one node, else through the connection."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from hardware.errors import HardwareError
from hardware.ub.copy import Hashed, checksum, copy_checked
from serving.errors import PoolError, PoolRefusedError, PoolUnreachableError
from serving.kvpool.core.batch_write import EXPIRED
from serving.kvpool.core.entry import Found, Grant
from serving.kvpool.core.messages import MAX_CHUNK_BYTES, Piece
from serving.kvpool.core.operation import PoolRead, PoolReadDone, PoolWrite, PoolWritten, reason_of
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


# Copies blocks from and to memory servers of other hosts: as many with one request as a frame may carry.

_T = TypeVar("_T")


def read_remote(link: ServerLink, reads: Sequence[tuple[Found, memoryview]], until: float) -> list[int | MissReason]:
    """Read blocks of one server, each into its place. After a failure the rest is not read.

    Returns: for each the checksum of the bytes received, or the reason why there are none.
    """
    digests: list[int | MissReason] = []
    for batch in _batches([found.nbytes for found, _ in reads]):
        if time.monotonic() >= until:
            return _filled_up(digests, len(reads), MissReason.TIMEOUT)
        part = [(found, place.cast("B")) for found, place in reads[batch.start : batch.stop]]
        came = _Came([place for _, place in part])
        try:
            for found, place in part:
                if len(place) != found.nbytes:
                    raise PoolError(f"a block of {found.nbytes} bytes does not fit into {len(place)}")
            if part[0][0].nbytes > MAX_CHUNK_BYTES:
                came.digests.append(_read_large(link, *part[0], until))
            else:
                link.read([(found.version, 0, found.nbytes) for found, _ in part], came.places, until, came.on_filled)
        except PoolRefusedError:
            return _filled_up(digests, len(reads), MissReason.GONE)
        except PoolError as error:
            return _filled_up(digests + came.digests, len(reads), reason_of(error))
        digests += came.digests
        if len(came.digests) < len(part):
            return _filled_up(digests, len(reads), MissReason.GONE)
    return digests


class _Came:
    """Places in memory that are filled in order, and the checksums of the filled ones."""

    def __init__(self, places: Sequence[memoryview]) -> None:
        self.places = places
        self.digests: list[int | MissReason] = []

    def on_filled(self, at: int) -> None:
        self.digests.append(checksum(self.places[at]))


def write_remote(link: ServerLink, writes: Sequence[tuple[Grant, memoryview]], until: float) -> list[int | str]:
    """Write entries into room that one server granted. After a failure the rest is not written.

    Returns: for each the checksum of the bytes written, or one word for the reason why there are none.
    """
    digests: list[int | str] = []
    for batch in _batches([data.nbytes for _, data in writes]):
        if time.monotonic() >= until:
            return _filled_up(digests, len(writes), MissReason.TIMEOUT.value)
        part = [(grant, data.cast("B")) for grant, data in writes[batch.start : batch.stop]]
        try:
            if len(part[0][1]) > MAX_CHUNK_BYTES:
                ok: Sequence[bool] = [_write_large(link, *part[0], until)]
            else:
                pieces = [(grant.version, 0, len(data)) for grant, data in part]
                ok = link.write(pieces, [data for _, data in part], until)
        except PoolRefusedError:
            ok = [False] * len(part)
        except PoolError as error:
            return _filled_up(digests, len(writes), reason_of(error).value)
        digests += [checksum(data) if good else EXPIRED for (_, data), good in zip(part, ok, strict=True)]
    return digests


def pieces_of(version: int, nbytes: int) -> Iterator[Piece]:
    """One entry in pieces that a request may carry."""
    for start in range(0, nbytes, MAX_CHUNK_BYTES):
        yield version, start, min(MAX_CHUNK_BYTES, nbytes - start)


def _read_large(link: ServerLink, found: Found, place: memoryview, until: float) -> int:
    for piece in pieces_of(found.version, found.nbytes):
        link.read([piece], [place[piece[1] : piece[1] + piece[2]]], until)
    return checksum(place)


def _write_large(link: ServerLink, grant: Grant, data: memoryview, until: float) -> bool:
    return all(
        link.write([piece], [data[piece[1] : piece[1] + piece[2]]], until)[0]
        for piece in pieces_of(grant.version, len(data))
    )


def _batches(sizes: Sequence[int]) -> Iterator[range]:
    """Runs of blocks that one request carries; one that is too large for any comes alone."""
    begin = nbytes = 0
    for at, size in enumerate(sizes):
        if at > begin and nbytes + size > MAX_CHUNK_BYTES:
            yield range(begin, at)
            begin, nbytes = at, 0
        nbytes += size
    if sizes:
        yield range(begin, len(sizes))


def _filled_up(digests: list[_T], length: int, reason: _T) -> list[_T]:
    return digests + [reason] * (length - len(digests))
