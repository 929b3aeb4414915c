"""Giving back the memory of a segment that has lost its name while others still map a part of it.

A file that was unlinked keeps all of its memory as long as anybody maps any of it. For a memory server's segment these
are the weights used by replicas, for hours, plus all bytes that have become unreachable: its successor, which needs as
much memory again, would not find it. So a process locks the bytes it keeps, and the kernel drops the lock when its
descriptor is closed or the process ends; the rest can go.
"""

import ctypes
import fcntl
import os
import struct

_LOCK = struct.Struct("hhqqi0q")  # struct flock: type, whence, start, length, process
_PUNCH_HOLE = 0x02 | 0x01  # with FALLOC_FL_KEEP_SIZE, which it must have

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]


def keep(fd: int, offset: int, nbytes: int) -> None:
    """Keeps these bytes until the open file is closed, even after it is unlinked.

    Args:
        fd: open to read; the lock belongs to this open file, not to the path.
        nbytes: above zero.
    Effects: sets a read lock on the bytes.
    """
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, offset, nbytes, 0))


def free_leftovers(fd: int) -> int:
    """Gives back the memory of a file, save what others keep.

    Args:
        fd: of a file without a name, so that no process can open it; open to write.
    Returns: bytes of the file that hold no memory any more.
    Effects: those bytes are zero; processes that still map them detect it by checksum.
    """
    freed = 0
    left = [(0, os.fstat(fd).st_size)]
    while left:
        start, end = left.pop()
        kept = _kept_between(fd, start, end)
        if kept is not None:
            left += [piece for piece in ((start, kept[0]), (kept[1], end)) if piece[0] < piece[1]]
        elif _libc.fallocate(fd, _PUNCH_HOLE, start, end - start) == 0:
            freed += end - start
    return freed


def _kept_between(fd: int, start: int, end: int) -> tuple[int, int] | None:
    """A locked range of bytes, as (first, behind the last), in no order; None if there is none."""
    asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, end - start, 0)
    kind, _, first, nbytes, _ = _LOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else (first, first + nbytes if nbytes else end)
