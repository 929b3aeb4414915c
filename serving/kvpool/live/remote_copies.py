"""Copies blocks from and to memory servers of other hosts: as many with one request as a frame may carry."""

import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from hardware.ub.copy import checksum
from serving.errors import PoolError, PoolRefusedError
from serving.kvpool.core.batch_write import EXPIRED
from serving.kvpool.core.entry import Found, Grant
from serving.kvpool.core.messages import MAX_CHUNK_BYTES, Piece
from serving.kvpool.core.operation import reason_of
from serving.kvpool.live.server_link import ServerLink
from serving.values.pool_outcome import MissReason

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
    """Places that are filled in order, and the checksums of those that are."""

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
