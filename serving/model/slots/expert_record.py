"""An expert as one run of bytes: the form in which slots and staging memory hold it and ranks send it.

    head    256 bytes: magic, layer and expert, sizes and offsets of both products, checksums of the body and of the
    head body    gate_up as packed by the native library, its bias, down, its bias, each at a multiple of 64

Any process with the same panel layout can use a body in place. The head is written last and cleared first, so a
record being written is invalid, and a reader that copies it at that time detects this by the checksum.
"""

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from hardware.ub.copy import Hashed, checksum, copy_checked
from serving.errors import ExpertError
from serving.model.native.panel_layout import LAYOUT

MAGIC = b"CMEXPERT"
VERSION = 1
HEAD_BYTES = 256
ALIGNMENT = 64
PANELS = zlib.crc32(LAYOUT)
"""Fingerprint of the panel layout, for records."""
_NO_BYTES = memoryview(b"")

_PRODUCT = struct.Struct("<4i4Q")  # outputs, inputs, groups, form; place and bytes of the panels, and of the bias
_HEAD = struct.Struct(f"<8sIIIIQQ{2 * _PRODUCT.size}s")  # magic, version, panels, layer, expert, bytes, checksum
_DIGEST = struct.Struct("<Q")

Pace = Callable[[int], None]
"""Called with each copied run of bytes; may wait, or raise to abort."""


@dataclass(frozen=True, slots=True)
class PackedProduct:
    """A product packed by the native library.

    Args:
        form: a number of `native.layout.Form`.
        packed: panels, including scales.
        bias: `[groups * out_features] float32`; empty = none.
    """

    out_features: int
    in_features: int
    groups: int
    form: int
    packed: memoryview
    bias: memoryview = _NO_BYTES


@dataclass(frozen=True, slots=True)
class PackedExpert:
    """Both products of an expert."""

    gate_up: PackedProduct
    down: PackedProduct

    @property
    def parts(self) -> tuple[memoryview, ...]:
        """The expert's memory, in the order of a record's body."""
        return self.gate_up.packed, self.gate_up.bias, self.down.packed, self.down.bias

    @property
    def record_bytes(self) -> int:
        """Size of its record."""
        return record_bytes(*(part.nbytes for part in self.parts))


def record_bytes(*parts: int) -> int:
    """Size of a record with parts of these sizes."""
    return HEAD_BYTES + sum(_aligned(nbytes) for nbytes in parts)


def write_record(
    memory: memoryview, layer: int, expert: int, packed: PackedExpert, panels: int, pace: Pace | None = None
) -> None:
    """Copy an expert's products into a record.

    Args:
        memory: as long as the record or longer.
        panels: fingerprint of the panel layout.
    Raises: ExpertError if the memory is too small, or its content afterwards differs from the source.
    Effects: writes the memory; a previous record becomes invalid immediately.
    """
    nbytes = packed.record_bytes
    if nbytes > memory.nbytes:
        raise ExpertError(f"layer {layer}, expert {expert}: {nbytes} bytes do not fit into {memory.nbytes}")
    clear_record(memory)
    at, places = HEAD_BYTES, list[int]()
    for part in packed.parts:
        places.append(at if part.nbytes else 0)
        target = memory[at : at + part.nbytes]
        if part.nbytes and copy_checked(target, part, hashed=Hashed.SOURCE, pace=pace) != checksum(target):
            raise ExpertError(f"layer {layer}, expert {expert}: its bytes changed while they were copied; try again")
        at += _aligned(part.nbytes)
        memory[at - _aligned(part.nbytes) + part.nbytes : at] = bytes(_aligned(part.nbytes) - part.nbytes)
    body = checksum(memory[HEAD_BYTES:nbytes])
    products = b"".join(
        _PRODUCT.pack(
            *(product.out_features, product.in_features, product.groups, product.form),
            *(place, product.packed.nbytes, bias_place, product.bias.nbytes),
        )
        for product, place, bias_place in zip((packed.gate_up, packed.down), places[::2], places[1::2], strict=True)
    )
    _put_head(memory, _HEAD.pack(MAGIC, VERSION, panels, layer, expert, nbytes, body, products))


def copy_record(
    memory: memoryview, record: memoryview, layer: int, expert: int, panels: int, pace: Pace | None = None
) -> None:
    """Copy a record, and check that the copy is complete and is this expert.

    Args:
        memory: as long as the record or longer.
        record: may be longer; a peer may change it during the copy.
    Raises: ExpertError otherwise.
    Effects: writes the memory, which then holds no record.
    """
    clear_record(memory)
    head = bytes(record[:HEAD_BYTES])
    nbytes, body = _check_head(head, record.nbytes, layer, expert, panels)
    if nbytes > memory.nbytes:
        raise ExpertError(f"layer {layer}, expert {expert}: {nbytes} bytes do not fit into {memory.nbytes}")
    found = copy_checked(memory[HEAD_BYTES:nbytes], record[HEAD_BYTES:nbytes], hashed=Hashed.TARGET, pace=pace)
    if found != body:
        raise ExpertError(f"layer {layer}, expert {expert}: the checksum of its weights is wrong")
    memory[:HEAD_BYTES] = head


def open_record(record: memoryview, layer: int, expert: int, panels: int) -> PackedExpert:
    """The expert of a record, on its memory.

    Raises: ExpertError if there is no complete record of this expert. The body's checksum is not checked.
    """
    head = bytes(record[:HEAD_BYTES])
    nbytes, _ = _check_head(head, record.nbytes, layer, expert, panels)
    products = _HEAD.unpack_from(head)[-1]
    return PackedExpert(
        *(_product(record[:nbytes], products[at : at + _PRODUCT.size], layer) for at in (0, _PRODUCT.size))
    )


def clear_record(memory: memoryview) -> None:
    """Invalidate the memory's record. Effects: overwrites its head."""
    memory[:HEAD_BYTES] = bytes(HEAD_BYTES)


def _put_head(memory: memoryview, head: bytes) -> None:
    whole = head.ljust(HEAD_BYTES - _DIGEST.size, b"\0")
    memory[:HEAD_BYTES] = whole + _DIGEST.pack(checksum(whole))


def _check_head(head: bytes, room: int, layer: int, expert: int, panels: int) -> tuple[int, int]:
    """Size of the record and checksum of its body. Raises: ExpertError."""
    where = f"layer {layer}, expert {expert}"
    magic, version, made_for, held_layer, held, nbytes, body, _ = _HEAD.unpack_from(head.ljust(HEAD_BYTES, b"\0"))
    if magic != MAGIC or _DIGEST.unpack_from(head, HEAD_BYTES - _DIGEST.size)[0] != checksum(head[: -_DIGEST.size]):
        raise ExpertError(f"{where}: its source holds no expert, or one that is being written")
    if (version, made_for) != (VERSION, panels):
        raise ExpertError(f"{where}: its source runs another version of this program; all ranks must run the same")
    if (held_layer, held) != (layer, expert):
        raise ExpertError(f"{where}: its source holds expert {held} of layer {held_layer}")
    if not HEAD_BYTES <= nbytes <= room:
        raise ExpertError(f"{where}: a record of {nbytes} bytes in {room}")
    return nbytes, body


def _product(record: memoryview, raw: bytes, layer: int) -> PackedProduct:
    outputs, inputs, groups, form, place, nbytes, bias_place, bias_bytes = _PRODUCT.unpack(raw)
    if max(place + nbytes, bias_place + bias_bytes) > record.nbytes or place < HEAD_BYTES:
        raise ExpertError(f"layer {layer}: a product of {nbytes} bytes at {place} is not in its record")
    bias = record[bias_place : bias_place + bias_bytes] if bias_bytes else _NO_BYTES
    return PackedProduct(outputs, inputs, groups, form, record[place : place + nbytes], bias)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
