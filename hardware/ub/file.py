"""The file of a UB segment: opening it, its header, and the distinction between a live segment and a crash's leftover.

Every function that reads or changes a segment requires the file's lock (`hardware.ub.file`).
"""

import ctypes
import fcntl
import os
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hardware.errors import SpecError, UbBusyError, UbCorruptError, UbExistsError, UbMissingError
from hardware.ub.pages import promise_file, reserve_file
from hardware.ub.process import ProcessStamp
from hardware.ub.region import ENTRY, HEADER, MAGIC, PAGE, VERSION, RegionTable, data_start
from hardware.units import Bytes


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The part of a segment's header that never changes.

    Attributes:
        max_regions: entries of the region table.
        capacity_bytes: that regions can take together.
        owner: process whose life the segment's life follows.
        session: random number of this very segment.
    """

    max_regions: int
    capacity_bytes: Bytes
    owner: ProcessStamp
    session: int

    @property
    def data_start(self) -> int:
        """Offset of the first byte of regions."""
        return data_start(self.max_regions)

    @property
    def file_bytes(self) -> int:
        """Length of the whole file."""
        return self.data_start + self.capacity_bytes


def open_file(path: Path, *, create: bool = False) -> int:
    """Opens a segment's file for reading and writing; a link is never followed.

    Returns: the descriptor, which the caller closes.
    Raises: UbMissingError if it is not there, or with `create` its directory is not; UbExistsError if it is to be
        created and is there; UbCorruptError if it cannot be opened, is no plain file or is another user's.
    Effects: with `create`, an empty file of mode 600.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    flags |= os.O_CREAT | os.O_EXCL if create else 0
    try:
        fd = os.open(path, flags, 0o600)
    except FileNotFoundError:
        if create:
            raise UbMissingError(f"the directory {path.parent} does not exist; create it") from None
        raise UbMissingError(f"there is no UB segment at {path}; start the node's memory first") from None
    except FileExistsError:
        raise UbExistsError(f"{path} is already there; attach to it, or remove it if it is unused") from None
    except OSError as error:
        raise UbCorruptError(
            f"{path} cannot be opened as a UB segment ({error.strerror}); take another path"
        ) from error
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        os.close(fd)
        raise UbCorruptError(f"{path} is no plain file of this user; take another path")
    return fd


def read_header(fd: int, path: Path) -> SegmentHeader | None:
    """Reads and verifies the header.

    Returns: the header; None if the segment was never finished (its header, written last, is still zero).
    Raises: UbCorruptError if the file is not a segment, has another version, or differs from the length in its header.
    """
    raw = os.pread(fd, HEADER.itemsize, 0)
    if len(raw) < HEADER.itemsize or raw[:8] == bytes(8):
        if any(raw):
            raise UbCorruptError(f"{path} is no UB segment; take another path")
        return None
    fields = np.frombuffer(raw, HEADER)[0]
    if int(fields["magic"]) != MAGIC or int(fields["version"]) != VERSION:
        raise UbCorruptError(
            f"{path} is no UB segment of version {VERSION} (magic {int(fields['magic']):#x}, "
            f"version {fields['version']}); remove it if another version left it there"
        )
    owner = ProcessStamp(int(fields["owner_pid"]), int(fields["owner_start"]), int(fields["owner_namespace"]))
    header = SegmentHeader(int(fields["max_regions"]), Bytes(int(fields["capacity"])), owner, int(fields["session"]))
    length = os.fstat(fd).st_size
    if length != header.file_bytes or header.data_start != int(fields["data_start"]):
        raise UbCorruptError(
            f"{path} has {length} bytes, its header says {header.file_bytes}; remove it and start again"
        )
    return header


def initialise(fd: int, path: Path, header: SegmentHeader, *, reserve: bool) -> None:
    """Initialise the file as a segment: its memory, and last of all its header.

    Args:
        reserve: allocate all memory now, instead of each page at the first write to it.
    Raises: UbFullError if the directory has no space; the file is then removed.
    Effects: the file is complete.
    """
    try:
        os.ftruncate(fd, 0)
        if reserve:
            reserve_file(fd, header.file_bytes, str(path))
        else:
            promise_file(fd, header.file_bytes, path)
    except BaseException:
        unlink_if_same(fd, path)
        raise
    fields = np.zeros(1, HEADER)
    fields["version"], fields["max_regions"] = VERSION, header.max_regions
    fields["data_start"], fields["capacity"] = header.data_start, header.capacity_bytes
    fields["owner_pid"], fields["owner_start"] = header.owner.pid, header.owner.start_ticks
    fields["owner_namespace"], fields["session"] = header.owner.pid_namespace, header.session
    fields["next_generation"] = 1
    fields["magic"] = MAGIC
    os.pwrite(fd, fields.tobytes(), 0)  # at once: a header without its magic would look like a stranger's file


def is_stale(fd: int, header: SegmentHeader) -> bool:
    """Whether a crash left this segment: its owner is dead, and so is every process that holds a region."""
    if header.owner.is_alive():
        return False
    entries = np.frombuffer(os.pread(fd, header.max_regions * ENTRY.itemsize, PAGE), ENTRY)
    table = RegionTable(entries, header.data_start, header.file_bytes)
    return not any(holder.is_alive() for holder in table.holders())


def unlink_if_same(fd: int, path: Path) -> bool:
    """Removes the path if it still names the open file.

    Returns: whether it did.
    Effects: the file has no name any more.
    """
    try:
        same = os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False
    if same:
        os.unlink(path)
    return same


def discard(fd: int, path: Path) -> bool:
    """Removes a segment whose owner has ended or is about to end: memory that no process keeps is freed immediately.

    Returns: whether the path still named the open file, so that it was removed.
    Effects: the file has no name any more, and memory only for what processes keep (`leftover.keep`).
    """
    removed = unlink_if_same(fd, path)
    if removed:
        free_leftovers(fd)
    return removed


def remove_stale(directory: str | os.PathLike[str], prefix: str) -> list[Path]:
    """Removes the segments that a crash left in a directory; called at the next start.

    Live segments, other files, segments of other versions and those of other users are kept.

    Args:
        directory: where the segments are.
        prefix: prefix of their file names; not empty, because unfinished files are removed too.
    Returns: what was removed, in order.
    Raises: SpecError if the prefix is empty; UbMissingError if there is no such directory.
    Effects: the memory of the removed segments is free, but for what processes keep (`leftover.keep`).
    """
    where = Path(directory)
    if not prefix:
        raise SpecError("remove_stale needs a prefix: without one it would look at files of others")
    if not where.is_dir():
        raise UbMissingError(f"the directory {where} does not exist; create it")
    return [path for path in sorted(where.iterdir()) if path.name.startswith(prefix) and _remove_if_stale(path)]


def _remove_if_stale(path: Path) -> bool:
    try:
        fd = open_file(path)
    except (UbMissingError, UbCorruptError):
        return False
    try:
        with locked(fd, str(path), timeout_s=0.0):
            header = read_header(fd, path)
            return (header is None or is_stale(fd, header)) and discard(fd, path)
    except (UbBusyError, UbCorruptError):
        return False  # held right now, so alive; or not ours
    finally:
        os.close(fd)


# Giving back the memory of a segment that has lost its name while others still map a part of it.
#
# A file that was unlinked keeps all of its memory as long as anybody maps any of it. For a memory server's segment
# these are the weights used by replicas, for hours, plus all bytes that have become unreachable: its successor, which
# needs as much memory again, would not find it. So a process locks the bytes it keeps, and the kernel drops the lock
# when its descriptor is closed or the process ends; the rest can go.

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


# The lock of a UB segment: between processes and between threads, dropped by the kernel when its holder dies.

LOCK_TIMEOUT_S = 30.0
"""Long enough to wait for a creator that is touching tens of gigabytes."""

_FIRST_PAUSE_S = 20e-6
_LONGEST_PAUSE_S = 5e-3


@contextmanager
def locked(fd: int, name: str, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Holds the exclusive lock of an open file.

    The file is reopened for each lock, because flock belongs to the open file: a descriptor shared by threads or
    inherited by a fork would let both of them in. Opening through /proc also works once the file has been unlinked.

    Args:
        fd: any descriptor of the file.
        name: what to call the file in a message.
        timeout_s: how long to wait for the present holder; a stopped process holds its lock for ever.
    Raises: UbBusyError if the lock was not given in time.
    Effects: other processes and threads wait.
    """
    own = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        _acquire(own, name, timeout_s)
        yield
    finally:
        os.close(own)  # closing releases the lock


def _acquire(fd: int, name: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    pause = _FIRST_PAUSE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise UbBusyError(
                    f"the lock of {name} was held by others for {timeout_s:g} s; look for a stopped process"
                ) from None
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
