"""A model folder without its weights, as one value to send to a host that lacks the folder.

Small files are included in full. Of weight files only the header is included; they are unpacked as sparse files of the
full size, so that the model's size is the same. A mark records that the weights are missing, and their digest: version
and fingerprint are the same, and reading the weights is refused.
"""

import os
import shutil
import socket
import stat
import zlib
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from hardware.nesting import parse_json
from serving.errors import ModelError
from serving.regular_file import MOST_JSON_BYTES, check_regular, open_regular, read_regular

MARK = "weights-are-elsewhere"
"""File in an unpacked folder with the digest of the weights and the path of the original folder."""
MOST_BYTES = 64 << 20
"""Limit of an uncompressed parcel: a large tokenizer has 20 MB."""
_WEIGHTS = ".safetensors"
_SMALL = (".json", ".jinja", ".txt", ".model")
_LENGTH_BYTES = 8
"""A file of weights starts with the length of its header."""


class ParcelFile(msgspec.Struct, frozen=True):
    """A file. `pieces`: (offset, bytes); the rest is a hole."""

    name: str
    size: int
    mtime_ns: int
    pieces: list[tuple[int, bytes]]


class Parcel(msgspec.Struct, frozen=True):
    """A folder. `path`: of the original; `weights`: digest of the missing weights."""

    path: str
    weights: str
    files: list[ParcelFile]


def pack(folder: Path) -> bytes:
    """The folder as one value.

    Raises: ModelError if a file cannot be read, or the small files are too large to send.
    """
    try:
        weights = weights_digest(folder)
        files = [_file(path) for path in sorted(folder.iterdir()) if path.is_file() and _travels(path)]
    except OSError as error:
        raise ModelError(f"a file of {folder} cannot be read ({error}): fetch it again") from error
    if sum(len(piece) for file in files for _, piece in file.pieces) > MOST_BYTES:
        raise ModelError(f"{folder} has more than {MOST_BYTES >> 20} MiB besides its weights: copy it to every host")
    return zlib.compress(msgspec.msgpack.encode(Parcel(str(folder), weights, files)), level=1)


def unpack(parcel: bytes, folder: Path) -> None:
    """Create the folder atomically, complete except for its weights.

    Raises: ModelError if it cannot be created.
    Effects: replaces a folder that another process has created since; readers never see a partial one.
    """
    whole = msgspec.msgpack.decode(zlib.decompress(parcel), type=Parcel)
    fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
    try:
        fresh.mkdir(mode=0o700, parents=True)
        for file in whole.files:
            _write(fresh / Path(file.name).name, file)
        (fresh / MARK).write_text(f"{whole.weights}\n{whole.path}")
        fresh.rename(folder)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        if not (folder / MARK).is_file():  # otherwise another process of this host was faster
            raise ModelError(f"{socket.gethostname()}: {folder} cannot be created ({error.strerror})") from error


def require_weights(folder: Path) -> None:
    """Raises: ModelError, with the host's name, if this folder represents one on another host."""
    if lacks_weights(folder):
        path = _mark(folder)[1]
        raise ModelError(
            f"host {socket.gethostname()} has no {path}, and no memory server offers its weights: copy or mount the"
            " folder there, or let [kvcache] replicas and models keep weights, and an instance run where the folder is"
        )


def lacks_weights(folder: Path) -> bool:
    """Whether this folder represents one on another host."""
    return (folder / MARK).is_file()


def weights_digest(folder: Path) -> str:
    """Digest of the content of a folder's weights, even if they are on another host.

    Raises: OSError if a file cannot be read.
    Effects: reads files, see `content_digest`.
    """
    return _mark(folder)[0] if lacks_weights(folder) else content_digest(folder)


def name_of(parcel: bytes) -> str:
    """Digest that identifies a parcel and detects damage."""
    return blake2b(parcel, digest_size=12).hexdigest()


def _mark(folder: Path) -> tuple[str, str]:
    weights, _, path = read_regular(folder / MARK, most_bytes=MOST_BYTES).decode().partition("\n")
    return weights, path


def _travels(path: Path) -> bool:
    return path.suffix in (_WEIGHTS, *_SMALL)


def _file(path: Path) -> ParcelFile:
    size, times = check_regular(path), path.stat()
    with open_regular(path) as file:
        if path.suffix != _WEIGHTS:
            if size > MOST_BYTES:
                raise OSError(f"{path.name} has {size} bytes")
            pieces = [(0, file.read(size))]
        else:
            header = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            pieces = [(0, os.pread(file.fileno(), min(_LENGTH_BYTES + header, size, MOST_BYTES), 0))]
    return ParcelFile(path.name, size, times.st_mtime_ns, pieces)


def _write(path: Path, file: ParcelFile) -> None:
    with path.open("xb") as to:
        to.truncate(file.size)
        for place, piece in file.pieces:
            to.seek(place)
            to.write(piece)
    os.utime(path, ns=(file.mtime_ns, file.mtime_ns))


# Identity of a folder's weights: a digest of their content. Imports no torch, because launchers and gateways use it.
#
# File times are unreliable (image layers, Nix and `rsync -t` give all files one time), as are names and sizes: a
# further trained checkpoint has the same. So the digest covers file contents:
#
#     small file      all of it
#     large file      length, header, and of each tensor its first and last page and one in every 16 MiB between
#
# A tensor that was trained, quantised or merged differs on every page. The digest takes some milliseconds per GiB, and
# is cached in the process while a file keeps its path, size, inode and times, including the change time, which users
# cannot set. It is never cached on disk.

WHOLE_BYTES = 64 << 20
"""Files up to this size are read whole."""
PAGE = 4096
EVERY_BYTES = 16 << 20
"""Distance between the sampled pages of a tensor."""
MOST_HEADER_BYTES = 100_000_000
"""Limit of the format."""

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


# Name of a checkpoint's content, which identifies its images and KV blocks. Imports no torch.


def model_version(folder: str | Path) -> str:
    """Short digest of a checkpoint's content: config.json and the weights themselves, see `identity`.

    Copies of a folder on other hosts have the same version for any file times; different weights have different
    versions, even with equal names, sizes and times.

    Raises: ModelError if the folder cannot be read.
    Effects: reads some pages of each tensor, once per process.
    """
    digest = blake2b(digest_size=8)
    try:
        digest.update(read_regular(Path(folder) / "config.json", most_bytes=MOST_JSON_BYTES))
        digest.update(weights_digest(Path(folder)).encode())
    except OSError as error:
        raise ModelError(f"model folder {folder} cannot be read ({error}): fetch it again") from error
    return digest.hexdigest()
