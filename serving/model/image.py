"""A loaded model's weights as one contiguous sequence of bytes that many processes map: the image.

    header      magic, format version, length and CRC of the manifest, length of the image
    manifest    MessagePack: every tensor's name, dtype, shape, place, and the layouts of packed ones
    tensors     each at a multiple of 64 bytes

Tensors have the layout that the kernels of one kind of device use, and products the form of their `ProductForms`, which
may be readable only by the same build of torch on the same kind of CPU. The image's key contains all of this
(`image_key`), and a mismatching image is not repaired: the checkpoint is read again. The image store verifies
whole-image checksums. Imports no torch, because expert ranks read images, too.
"""

import hashlib
import math
import struct
import time
import zlib
from collections.abc import Callable, Container
from typing import Protocol

import msgspec
import numpy as np

from serving.errors import UNREADABLE, ModelError
from serving.model.architecture import Architecture

MAGIC = b"CMWEIGHT"
FORMAT = 2
"""Raise it whenever the assembly of a model changes its final tensors, since images outlive releases on SSD."""
ALIGNMENT = 64
"""Bytes; the alignment of torch's own allocator, so that kernels take the same path."""
PLAIN = -1
"""Layout number of a tensor that is not packed."""

_ITEM_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "int32": 4, "int64": 8}
"""Sizes of the dtypes that tensors of an image have, by torch's names."""

_HEADER = struct.Struct("<8sIIQQ")  # magic, format, CRC-32 of the manifest, its bytes, bytes of the image


class ImageEntry(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of an image.

    Args:
        offset: from the first byte after the manifest (rounded up), a multiple of 64.
        nbytes: for a packed tensor more than its elements take.
        shape: of the plain tensor.
        layout: number in the manifest's `layouts`; `PLAIN` = dense, row-major.
        bias: name of this weight's bias entry, or None.
        scale: name of the entry with the scales of a plain int8 weight, or None; packed weights contain their scales.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    layout: int = PLAIN
    bias: str | None = None
    scale: str | None = None


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """Contents of an image.

    Args:
        config: fingerprint of the model's configuration.
        dtype: the model's.
        drafts: first draft layer and one past the last.
        optional: names of a draft layer's optional checkpoint tensors that are present.
        layouts: descriptions of stored forms that packed entries refer to.
        tensor_bytes: length of all data after the manifest.
    """

    config: str
    dtype: str
    drafts: tuple[int, int]
    optional: tuple[str, ...]
    entries: tuple[ImageEntry, ...]
    layouts: tuple[bytes, ...]
    tensor_bytes: int


class Image:
    """An image's manifest and memory, checked against each other.

    Args:
        data: the whole image; may be longer.
    Raises: ModelError if it is not an image of this format, is damaged, or is misaligned for tensors.
    """

    def __init__(self, data: memoryview) -> None:
        self.manifest, start = _read_manifest(data)
        self._tensors = data[start : start + self.manifest.tensor_bytes]
        if address_of(data) % ALIGNMENT:
            raise ModelError(f"a model image must start at a multiple of {ALIGNMENT} bytes in memory")
        self._entries = {entry.name: entry for entry in self.manifest.entries}
        for entry in self.manifest.entries:
            _check_entry(entry, self.manifest, self._entries)

    def entry(self, name: str) -> ImageEntry:
        """An entry by name.

        Raises: ModelError if it does not exist.
        """
        if name not in self._entries:
            raise ModelError(f"the model image lacks {name}: it was made from another checkpoint")
        return self._entries[name]

    def has(self, name: str) -> bool:
        """Whether there is an entry of this name."""
        return name in self._entries

    def bytes_of(self, entry: ImageEntry) -> memoryview:
        """An entry's memory."""
        return self._tensors[entry.offset : entry.offset + entry.nbytes]


def encode_start(manifest: Manifest) -> bytes:
    """Header and manifest, padded to the start of the tensors."""
    body = msgspec.msgpack.encode(manifest)
    start = round_up(_HEADER.size + len(body))
    header = _HEADER.pack(MAGIC, FORMAT, zlib.crc32(body), len(body), start + manifest.tensor_bytes)
    return (header + body).ljust(start, b"\0")


def round_up(nbytes: int) -> int:
    """The next offset at which a tensor may start."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def config_fingerprint(config: Architecture) -> str:
    """Short digest of a configuration."""
    return hashlib.blake2b(repr(config).encode(), digest_size=8).hexdigest()


def address_of(memory: memoryview) -> int:
    """Address of contiguous memory."""
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


def image_key(config: Architecture, version: str, dtype: str, device: str, forms: str) -> str:
    """Key of an image: processes with the same key can use the same bytes.

    Args:
        version: of the weights, see `serving.model.parcel`.
        dtype: the model's, as torch names it.
        device: kind of device.
        forms: fingerprint of the forms of its products.
    """
    parts = [f"{config.model_type}-{config_fingerprint(config)}@{version}", f"image-{FORMAT}"]
    return "/".join([*parts, dtype, device, forms])


def _read_manifest(data: memoryview) -> tuple[Manifest, int]:
    """The manifest, and the offset of the tensors."""
    if data.nbytes < _HEADER.size:
        raise ModelError(f"a model image of {data.nbytes} bytes has no header")
    magic, version, crc, body_bytes, nbytes = _HEADER.unpack_from(data)
    if magic != MAGIC or version != FORMAT:
        raise ModelError(f"these bytes are not a model image of format {FORMAT} ({magic!r}, format {version})")
    body = data[_HEADER.size : _HEADER.size + body_bytes]
    if nbytes > data.nbytes or body.nbytes != body_bytes or zlib.crc32(body) != crc:
        raise ModelError("the manifest of a model image is damaged, or the image was cut off")
    try:
        manifest = msgspec.msgpack.decode(body, type=Manifest)
    except UNREADABLE as error:
        raise ModelError(f"the manifest of a model image cannot be read ({error})") from error
    start = round_up(_HEADER.size + body_bytes)
    if start + manifest.tensor_bytes != nbytes:
        raise ModelError("the length of a model image differs from its manifest")
    return manifest, start


def _check_entry(entry: ImageEntry, manifest: Manifest, names: Container[str]) -> None:
    item_bytes = _ITEM_BYTES.get(entry.dtype)
    if item_bytes is None:
        raise ModelError(f"{entry.name} of a model image has dtype {entry.dtype!r}")
    inside = 0 <= entry.offset and 0 < entry.nbytes <= manifest.tensor_bytes - entry.offset
    plain_bytes = math.prod(entry.shape) * item_bytes
    packed = entry.layout != PLAIN
    right_size = entry.nbytes >= plain_bytes if packed else entry.nbytes == plain_bytes
    layout_there = not packed or (0 <= entry.layout < len(manifest.layouts) and len(entry.shape) in (2, 3))
    partners_there = all(name is None or name in names for name in (entry.bias, entry.scale))
    if not (inside and right_size and layout_there and partners_there) or entry.offset % ALIGNMENT:
        raise ModelError(f"the position of {entry.name} in a model image is not valid: {entry}")


# Port between the loader and the KV-cache pool, which keeps model images.


class MappedImage(Protocol):
    """An image in this process's memory."""

    @property
    def data(self) -> memoryview:
        """Bytes of the image, read-only; valid while this view or a part of it is referenced."""
        ...

    def release(self) -> None:
        """Declare the image unused by this process, so that the store may evict it."""
        ...

    def distrust(self) -> None:
        """Report that the image's bytes are wrong. Implies `release`."""
        ...


class ImageStore(Protocol):
    """Stores images by key. Failures are not errors to the caller: an image that cannot be stored is skipped."""

    def load(self, key: str) -> MappedImage | None:
        """The image, with a verified checksum; None = currently unavailable."""
        ...

    def store(self, key: str, nbytes: int, fill: Callable[[memoryview], None]) -> bool:
        """Store a new image, or wait for another process that is creating it.

        Args:
            nbytes: size of the image.
            fill: writes the whole image into the given memory; not called if no write is needed.
        Returns: whether the image now exists.
        Raises: errors of `fill`; no image is stored in that case.
        """
        ...


IMAGE_WAIT_S = 120.0
"""How long a host without the weights waits for another host to store them in the pool."""
_IMAGE_PAUSE_S = 0.5


def awaited_image(images: ImageStore, key: str) -> MappedImage | None:
    """An image that an instance on a host with the weights will store, or None."""
    end = time.monotonic() + IMAGE_WAIT_S
    while time.monotonic() < end:
        image = images.load(key)
        if image is not None:
            return image
        time.sleep(_IMAGE_PAUSE_S)
    return None
