"""The SSD tier's files: one per entry, written under a temporary name and renamed, verified byte by byte when read.

    <slot>/data/<namespace>/<layout digest>/<first byte of the hash>/<hash>.<kind>

A file is a header (magic, sizes, checksums and the entry's key) and the entry's bytes. No write is flushed: the
checksum detects the effects of a power failure, like any other damage. The file's modification time is its last use.
"""

import contextlib
import errno
import fcntl
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Self
from urllib.parse import quote

import msgspec
import xxhash

from serving.errors import UNREADABLE, SsdError
from serving.ids import BlockHash
from serving.kvpool.core.entry import Kind, Space

MAGIC = b"CMKVSSD1"
_PREFIX = struct.Struct("<8sIIQ")  # magic, bytes before the entry's own, bytes of the description, its checksum
_ALIGN = 512
_FIRST_READ_BYTES = 4096
_PIECE_BYTES = 8 << 20
_TEMPORARY = ".tmp"
_LONGEST_NAME = 100
_ANY_FILE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Flags for opening files of unknown kind: no link is followed, no pipe waited for. No effect on regular files."""
_READ = os.O_RDONLY | _ANY_FILE
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _ANY_FILE


class StoredEntry(msgspec.Struct, frozen=True, array_like=True):
    """A file's header."""

    space: Space
    hash: BlockHash
    kind: Kind
    nbytes: int
    checksum: int


@dataclass(frozen=True, slots=True)
class ScannedFile:
    """One file of the folder. `entry` is None if it is no whole file of this tier."""

    path: str
    age_s: float
    entry: StoredEntry | None


_decoder = msgspec.msgpack.Decoder(StoredEntry)


class SsdFiles:
    """The files of one slot. One thread writes and removes; any thread reads."""

    def __init__(self, slot: Path, full: Callable[[], bool] | None = None) -> None:
        """
        Args:
            full: whether writes are to fail as on a full disk, for tests; None = never.
        """
        self._root = str(slot / DATA)
        self._full = full
        self._made: set[str] = set()
        self._folders: dict[Space, str] = {}

    def path_of(self, space: Space, block_hash: BlockHash, kind: Kind) -> str:
        """Where an entry's file is, or would be."""
        folder = self._folders.get(space)
        if folder is None:
            layout = blake2b(space.layout.encode(), digest_size=12).hexdigest()
            folder = self._folders[space] = f"{self._root}/{_folder_name(space.namespace)}/{layout}"
        name = block_hash.hex()
        return f"{folder}/{name[:2]}/{name}.{kind.value}"

    def write(self, entry: StoredEntry, data: memoryview) -> None:
        """Store an entry, in place of an older one of the same name. It is written completely or not at all.

        Raises: SsdError if the disk does not take it.
        """
        path = self.path_of(entry.space, entry.hash, entry.kind)
        folder, temporary = os.path.dirname(path), path + _TEMPORARY
        try:
            if self._full is not None and self._full():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if folder not in self._made:
                os.makedirs(folder, mode=0o700, exist_ok=True)
                self._made.add(folder)
            _write_whole(temporary, encode_header(entry), data)
            os.rename(temporary, path)
        except OSError as error:
            self._made.discard(folder)  # perhaps somebody removed it
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise ssd_error("write", path, error) from error

    def read(self, entry: StoredEntry, target: memoryview) -> bool:
        """Read an entry and verify it. Updates the file's last use.

        Args:
            target: writable, `entry.nbytes` long; its content is undefined unless True is returned.
        Returns: False if there is no such file, or it is not exactly this entry.
        Raises: SsdError if the disk cannot read it.
        """
        with self._opened(entry) as (fd, start):
            if start is None or not _read_whole(fd, start, target):
                return False
            good = xxhash.xxh3_64_intdigest(target) == entry.checksum
            if good:
                with contextlib.suppress(OSError):  # a file system that cannot be written can be read
                    os.utime(fd)
            return good

    def verify(self, entry: StoredEntry) -> bool:
        """Verify an entry's file as `read` does, but the bytes go nowhere and the file's last use stays.

        Raises: SsdError if the disk cannot read it.
        """
        state, at, piece = xxhash.xxh3_64(), 0, memoryview(bytearray(min(entry.nbytes, _PIECE_BYTES)))
        with self._opened(entry) as (fd, start):
            while start is not None and at < entry.nbytes:
                part = piece[: entry.nbytes - at]
                if not _read_whole(fd, start + at, part):
                    return False
                state.update(part)
                at += len(part)
            return start is not None and state.intdigest() == entry.checksum

    @contextlib.contextmanager
    def _opened(self, entry: StoredEntry) -> Iterator[tuple[int, int | None]]:
        """The entry's open file and the start of its bytes in it; None if it is not exactly this entry's."""
        path = self.path_of(entry.space, entry.hash, entry.kind)
        fd = -1
        try:
            fd = os.open(path, _READ)
            header = _read_header(fd) if stat.S_ISREG(os.fstat(fd).st_mode) else None
            yield fd, header[1] if header is not None and header[0] == entry else None
        except FileNotFoundError:
            if fd >= 0:
                raise
            yield fd, None
        except OSError as error:
            raise ssd_error("read", path, error) from error
        finally:
            if fd >= 0:
                os.close(fd)

    def unlink(self, path: str) -> None:
        """Remove a file; a missing one is no error.

        Raises: SsdError if the disk cannot remove it.
        """
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise ssd_error("remove", path, error) from error

    def scan(self) -> Iterator[ScannedFile]:
        """Every file of the slot, by its header; temporary ones of a server that died come with no entry.

        Raises: SsdError if a folder cannot be read.
        """
        now = time.time()
        for path in self.files():
            try:
                fd = os.open(path, _READ)
            except OSError:
                yield ScannedFile(path, 0.0, None)
                continue
            try:
                yield self._scanned(path, fd, now)
            finally:
                os.close(fd)

    def files(self, namespace: str | None = None) -> Iterator[str]:
        """Paths of all files of the slot, or of one namespace.

        Raises: SsdError if a folder cannot be read.
        """
        folders = [self._root if namespace is None else f"{self._root}/{_folder_name(namespace)}"]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(folder) as found:
                    for one in found:
                        if one.is_dir(follow_symlinks=False):
                            folders.append(one.path)
                        else:
                            yield one.path
            except FileNotFoundError:
                continue
            except OSError as error:
                raise ssd_error("list", folder, error) from error

    def _scanned(self, path: str, fd: int, now: float) -> ScannedFile:
        """Facts of an open file by its header, size and name."""
        try:
            status = os.fstat(fd)
            header = _read_header(fd) if stat.S_ISREG(status.st_mode) else None
        except OSError:
            return ScannedFile(path, 0.0, None)
        age_s = max(0.0, now - status.st_mtime)
        if header is None:
            return ScannedFile(path, age_s, None)
        entry, start = header
        named = self.path_of(entry.space, entry.hash, entry.kind) == path
        return ScannedFile(path, age_s, entry if named and status.st_size == start + entry.nbytes else None)


def encode_header(entry: StoredEntry) -> bytes:
    """The bytes that precede an entry's own."""
    body = msgspec.msgpack.encode(entry)
    start = -(-(_PREFIX.size + len(body)) // _ALIGN) * _ALIGN
    return (_PREFIX.pack(MAGIC, start, len(body), xxhash.xxh3_64_intdigest(body)) + body).ljust(start, b"\0")


def ssd_error(action: str, path: str, error: OSError) -> SsdError:
    """An error of the disk, with what to do about it."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "free some of the disk, or set [kvcache] ssd_mib lower" if full else "look after the disk"
    return SsdError(f"cannot {action} {path} ({error.strerror}); {remedy}")


def _read_header(fd: int) -> tuple[StoredEntry, int] | None:
    """The description at the start of a file and the offset of the entry's bytes; None if there is none."""
    head = os.pread(fd, _FIRST_READ_BYTES, 0)
    if len(head) < _PREFIX.size:
        return None
    magic, start, body_bytes, digest = _PREFIX.unpack_from(head)
    if magic != MAGIC or not _PREFIX.size + body_bytes <= start <= (1 << 20):
        return None
    if len(head) < _PREFIX.size + body_bytes:
        head = os.pread(fd, _PREFIX.size + body_bytes, 0)
    body = head[_PREFIX.size : _PREFIX.size + body_bytes]
    if xxhash.xxh3_64_intdigest(body) != digest:
        return None
    try:
        return _decoder.decode(body), start
    except UNREADABLE:
        return None


def _write_whole(path: str, header: bytes, data: memoryview) -> None:
    fd = os.open(path, _WRITE, 0o600)
    try:
        for part in (memoryview(header), data):
            at = 0
            while at < len(part):
                at += os.write(fd, part[at : at + _PIECE_BYTES])
    finally:
        os.close(fd)  # may raise what a remote file system kept back


def _read_whole(fd: int, start: int, target: memoryview) -> bool:
    at = 0
    while at < len(target):
        got = os.preadv(fd, [target[at : at + _PIECE_BYTES]], start + at)
        if got == 0:
            return False
        at += got
    return True


def _folder_name(namespace: str) -> str:
    """A namespace as a folder: readable, and never the same for two namespaces."""
    name = quote(namespace, safe="").replace(".", "%2E")
    if name and len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:_LONGEST_NAME]}%-{blake2b(namespace.encode(), digest_size=12).hexdigest()}"


# A memory server's folder on disk: the first one that no living server holds, so that a dead one's is found again.

MAX_SLOTS = 1024
DATA = "data"
"""Where a slot has its files."""
_LOCK = "lock"


@dataclass(slots=True)
class SsdSlot:
    """A folder `slot-<index>` that belongs to this process until `give_back` or its end: the kernel holds the lock."""

    index: int
    path: Path
    fd: int

    @classmethod
    def take(cls, folder: Path) -> Self:
        """Take and lock the first free slot.

        Raises: SsdError if the folder cannot be made, written or locked, or a slot is a symbolic link.
        """
        for index in range(MAX_SLOTS):
            path = folder / f"slot-{index}"
            for own in (path, path / DATA):
                if own.is_symlink():  # what is not an entry is removed there
                    raise SsdError(f"{own} is a link: remove it, or change [kvcache] ssd_path")
            try:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                fd = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise _unusable(folder, error) from error
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return cls(index, path, fd)
            except OSError as error:
                os.close(fd)
                if error.errno != errno.EWOULDBLOCK:
                    raise _unusable(folder, error) from error
        raise SsdError(f"all {MAX_SLOTS} slots of {folder} are held by running servers; use another [kvcache] ssd_path")

    def give_back(self) -> None:
        """Unlock the slot, with all its files, for the next server. Twice is allowed."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _unusable(folder: Path, error: OSError) -> SsdError:
    return SsdError(
        f"the SSD folder {folder} cannot be used ({error.strerror}); make it writable or change [kvcache] ssd_path"
    )
