"""Copying KV bytes with a checksum, in one pass through the cache.

A chunk that fits into the cache is hashed and, while it is still there, copied, so that memory is crossed once instead
of twice. Both steps release the interpreter's lock, so other threads can run during the copy.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from hardware.errors import UbRangeError
from hardware.units import KIB

CHUNK_BYTES = 512 * KIB
"""Best compromise of 32 KiB to 1 MiB, measured for copies of 1 to 64 MiB with 1 MiB of second-level cache per core.

xxhash keeps the interpreter's lock below about 100 KB, so it should not be much smaller.
"""

BytesLike = bytes | bytearray | memoryview | npt.NDArray[np.uint8]


class Hashed(Enum):
    """The side of a copy, source or target, whose bytes the checksum is computed from."""

    SOURCE = "source"
    """Checksum of the intended bytes: for a writer into the segment that publishes the checksum. The faster variant."""
    TARGET = "target"
    """Checksum of the bytes that arrived: for a reader that verifies; also detects changes during the copy."""


def copy_checked(
    dst: memoryview | npt.NDArray[np.uint8],
    src: BytesLike,
    chunk_bytes: int = CHUNK_BYTES,
    hashed: Hashed = Hashed.TARGET,
    pace: Callable[[int], None] | None = None,
) -> int:
    """Copies bytes and returns their xxh3_64 checksum, equal to `checksum` of the whole.

    Args:
        dst: writable, contiguous, not overlapping `src`.
        src: contiguous, as long as `dst`.
        chunk_bytes: copied and hashed at a time.
        hashed: which end the checksum is taken of.
        pace: called with the bytes of each chunk once it is copied; may wait, or raise to give up.
    Returns: the checksum, an unsigned 64-bit number.
    Raises: UbRangeError if the lengths differ, `dst` is read-only or the chunk size is not above zero.
    Effects: `dst` holds the bytes of `src`.
    """
    target, source = as_bytes(dst), as_bytes(src)
    if len(target) != len(source) or not target.flags.writeable or chunk_bytes <= 0:
        raise UbRangeError(
            f"cannot copy {len(source)} bytes into {len(target)} (writable: {target.flags.writeable}) in chunks of "
            f"{chunk_bytes}; both ends must have one length and the target must be writable"
        )
    state = xxhash.xxh3_64()
    update: Callable[[Any], None] = state.update  # takes arrays as they are; a view of each would cost 3 % of a copy
    of_source = hashed is Hashed.SOURCE
    for start in range(0, len(source), chunk_bytes):
        here, there = source[start : start + chunk_bytes], target[start : start + chunk_bytes]
        if of_source:
            update(here)
            np.copyto(there, here)
        else:
            np.copyto(there, here)
            update(there)
        if pace is not None:
            pace(len(there))
    return state.intdigest()


class RunningChecksum:
    """Checksum of bytes that arrive in pieces."""

    def __init__(self) -> None:
        self._state = xxhash.xxh3_64()

    def add(self, piece: BytesLike) -> None:
        """Add contiguous bytes after the earlier ones."""
        self._state.update(as_bytes(piece).data)

    @property
    def digest(self) -> int:
        """The xxh3_64 checksum of all bytes so far."""
        return self._state.intdigest()


def checksum(buf: BytesLike) -> int:
    """The xxh3_64 checksum of contiguous bytes, an unsigned 64-bit number."""
    return xxhash.xxh3_64_intdigest(as_bytes(buf).data)


def as_bytes(buf: BytesLike) -> npt.NDArray[np.uint8]:
    """The same memory as an array of bytes, without a copy.

    Raises: UbRangeError if the memory is not contiguous.
    """
    try:
        return np.frombuffer(buf, np.uint8)
    except (ValueError, BufferError) as error:
        raise UbRangeError(f"these bytes are not contiguous ({error}); copy them together first") from error
