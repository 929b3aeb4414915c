"""Identity of a folder's weights: a digest of their content. Imports no torch, because launchers and gateways use it.

File times are unreliable (image layers, Nix and `rsync -t` give all files one time), as are names and sizes: a further
trained checkpoint has the same. So the digest covers file contents:

    small file      all of it
    large file      length, header, and of each tensor its first and last page and one in every 16 MiB between

A tensor that was trained, quantised or merged differs on every page. The digest takes some milliseconds per GiB, and is
cached in the process while a file keeps its path, size, inode and times, including the change time, which users cannot
set. It is never cached on disk.
"""

import os
import stat
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from hardware.nesting import parse_json

WHOLE_BYTES = 64 << 20
"""Files up to this size are read whole."""
PAGE = 4096
EVERY_BYTES = 16 << 20
"""Distance between the sampled pages of a tensor."""
MOST_HEADER_BYTES = 100_000_000
"""Limit of the format."""
_LENGTH_BYTES = 8
"""A file starts with the length of its header."""

_known: dict[tuple[str, int, int, int, int], bytes] = {}
"""Digests computed by this process, by path, size, inode and times."""


def content_digest(folder: Path) -> str:
    """Digest of all weight files in a folder and of their names; that of an empty set if there are none.

    Raises: OSError if one cannot be read.
    Effects: reads files; keeps their digests in this process.
    """
    whole = blake2b(digest_size=16)
    for path in sorted(folder.glob("*.safetensors")):
        whole.update(f"\0{path.name}\0".encode() + _of_file(path))
    return whole.hexdigest()


def _of_file(path: Path) -> bytes:
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):  # reading a pipe would never end; no model is loaded from it
        return b"no regular file"
    key = (str(path.absolute()), facts.st_size, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns)
    if key not in _known:
        _known[key] = _read(path, facts.st_size)
    return _known[key]


def _read(path: Path, size: int) -> bytes:
    digest = blake2b(str(size).encode(), digest_size=16)
    with path.open("rb") as file:
        if size <= WHOLE_BYTES:
            while piece := file.read(1 << 20):
                digest.update(piece)
            return digest.digest()
        fd = file.fileno()
        length = int.from_bytes(os.pread(fd, _LENGTH_BYTES, 0), "little")
        header = os.pread(fd, min(length, MOST_HEADER_BYTES), _LENGTH_BYTES)
        digest.update(length.to_bytes(_LENGTH_BYTES) + header)
        for first, last in _tensors(header, _LENGTH_BYTES + length, size):
            for place in _pages(first, last):
                digest.update(os.pread(fd, min(PAGE, last - place), place))
    return digest.digest()


def _pages(first: int, last: int) -> Iterator[int]:
    end = max(first, last - PAGE)
    yield from range(first, end, EVERY_BYTES)
    yield end


def _tensors(header: bytes, start: int, size: int) -> Iterator[tuple[int, int]]:
    """First byte and one past the last of each tensor; for a file without a usable header, those of the whole file."""
    try:
        entries: dict[str, Any] = parse_json(header)
        offsets = [entry["data_offsets"] for name, entry in entries.items() if name != "__metadata__"]
        places = sorted((start + int(first), start + int(last)) for first, last in offsets)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):  # damaged: the loader reports it
        places = [(0, size)]
    for first, last in places:
        if 0 <= first < last <= size:
            yield first, last
