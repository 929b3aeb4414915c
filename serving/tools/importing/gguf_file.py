"""GGUF files: keys, tensors and their numbers; every length is checked against the file before use.

The package `gguf` can read such files, too, but trusts their counts: a truncated file causes a traceback or an endless
read. This module takes only the tables of types from it, and the numbers of quantised tensors.

    "GGUF" | version | counts | key, type, value ... | name, shape, type, offset ... | padding | bytes of tensors
"""

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import gguf.quants
import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from torch import Tensor

from hardware.regular_file import IrregularFileError
from serving.errors import ModelError
from serving.regular_file import open_regular

Value = str | bool | int | float | list[str] | list[bool] | list[int] | list[float]
"""Value of a key."""

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_DIMENSIONS = 4
_MOST_TABLE_BYTES = 1 << 30
"""Of all keys and names together; the tokenizers with the most tokens need some 20 MB."""
_LONGEST_NAME = 200
_ALIGNMENT = 32
_NUMBERS = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
}
_SPLIT_NAME = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as stored in a file.

    Args:
        shape: slowest axis first, as in torch.
        offset: of its first byte in the file.
    """

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    path: Path
    offset: int

    @property
    def size_bytes(self) -> int:
        """Bytes in the file."""
        return _size_bytes(self.shape, self.kind)

    def read(self, part: int | None = None) -> Tensor:
        """The tensor's numbers.

        Args:
            part: one index of the first axis, of which alone the numbers are read; None = all.
        Returns: float32 `[*shape]`, or without the first axis.
        Raises: ModelError if the file changed, or has values that are no numbers.
        """
        shape = self.shape if part is None else self.shape[1:]
        size = _size_bytes(shape, self.kind)
        try:
            with open_regular(self.path) as file:
                file.seek(self.offset + (part or 0) * size)
                stored = np.fromfile(file, dtype=np.uint8, count=size)
        except OSError as error:
            raise ModelError(f"{self.path} cannot be read ({error}): fetch it again") from error
        if stored.size != size:
            raise ModelError(f"{self.path} became shorter while it was read: fetch it again")
        rows = stored.reshape(*shape[:-1], -1)
        value = torch.from_numpy(gguf.quants.dequantize(rows, self.kind).astype(np.float32, copy=False)).reshape(shape)
        if not bool(value.sum().isfinite()) and not bool(value.isfinite().all()):
            raise ModelError(f"{self.path}: {self.name} has values that are not numbers: fetch it again")
        return value


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Keys and tensors of a model, whose tensors may be in several files.

    Args:
        values: by key.
        tensors: by name.
    """

    path: Path
    values: Mapping[str, Value]
    tensors: Mapping[str, StoredTensor]

    @classmethod
    def open(cls, path: Path) -> "GgufFile":
        """Read the tables of a file, and of those that it was split into.

        Raises: ModelError if one is missing, is no GGUF file, or is cut short.
        """
        values, tensors = _read_tables(path)
        count = values.get("split.count", 1)
        if not isinstance(count, int) or not 1 <= count < 1 << 16:
            raise ModelError(f"{path} is damaged (split.count is {repr(count)[:40]}): fetch it again")
        if count == 1:
            return cls(path, values, tensors)
        named = _SPLIT_NAME.fullmatch(path.name)
        if named is None or int(named[2]) != count:
            raise ModelError(
                f"{path} is one of {count} files, but its name does not show it: keep the original file names"
            )
        for number in range(count):
            other = path.with_name(f"{named[1]}-{number + 1:05d}-of-{named[2]}.gguf")
            if other != path:
                other_values, other_tensors = _read_tables(other)
                tensors |= other_tensors
                values = other_values if number == 0 else values
        return cls(path, values, tensors)


def is_readable(kind: GGMLQuantizationType) -> bool:
    """Whether the numbers of tensors of a kind can be had."""
    try:
        gguf.quants.dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _size_bytes(shape: Sequence[int], kind: GGMLQuantizationType) -> int:
    block, size = GGML_QUANT_SIZES[kind]
    return math.prod(shape) // block * size


def _read_tables(path: Path) -> tuple[dict[str, Value], dict[str, StoredTensor]]:
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            return _Tables(path, file, size).read()
    except IrregularFileError as error:
        raise ModelError(f"{error}: give a GGUF file") from error
    except FileNotFoundError as error:
        raise ModelError(f"{path} does not exist: give a GGUF file") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}): give a GGUF file") from error


class _Tables:
    """Reader of the tables before the tensors of one file."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self._path = path
        self._file = file
        self._size = size
        self._left = min(size, _MOST_TABLE_BYTES)

    def read(self) -> tuple[dict[str, Value], dict[str, StoredTensor]]:
        if self._left < len(_MAGIC) or self._bytes(len(_MAGIC)) != _MAGIC:
            raise ModelError(f"{self._path} is not a GGUF file: it does not start with {_MAGIC.decode()}")
        version = self._whole("<I")
        if version not in _VERSIONS:
            likely = " (big-endian?)" if version.to_bytes(4, "big")[0] in _VERSIONS else ""
            raise ModelError(
                f"{self._path} is GGUF of version {version}{likely}; versions 2 and 3 are read: convert it again"
            )
        tensors, keys = self._whole("<Q"), self._whole("<Q")
        values: dict[str, Value] = {}
        for _ in range(keys):
            name = self._name()
            if name in values:
                raise self._damaged(f"{name!r} stands there twice")
            values[name] = self._value(self._kind())
        found = [self._tensor() for _ in range(tensors)]
        return values, self._placed(found, values)

    def _tensor(self) -> StoredTensor:
        name = self._name()
        dimensions = self._whole("<I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise self._damaged(f"{name} has {dimensions} dimensions")
        shape = tuple(reversed(struct.unpack(f"<{dimensions}Q", self._bytes(8 * dimensions))))
        number, offset = self._whole("<I"), self._whole("<Q")
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            raise ModelError(f"{self._path}: {name} is stored as type {number}, which is not supported") from None
        if min(shape) < 1 or shape[-1] % GGML_QUANT_SIZES[kind][0]:
            raise self._damaged(f"{name} has the shape {list(shape)}, which {kind.name} cannot have")
        return StoredTensor(name, shape, kind, self._path, offset)

    def _placed(self, found: list[StoredTensor], values: Mapping[str, Value]) -> dict[str, StoredTensor]:
        """The tensors with offsets in the file instead of behind its tables."""
        alignment = values.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
            raise self._damaged(f"general.alignment is {repr(alignment)[:40]}")
        start = -(-self._file.tell() // alignment) * alignment
        placed: dict[str, StoredTensor] = {}
        for tensor in found:
            if tensor.name in placed:
                raise self._damaged(f"{tensor.name} stands there twice")
            offset = start + tensor.offset
            if offset + tensor.size_bytes > self._size:
                raise ModelError(
                    f"{self._path} is cut short: {tensor.name} should end at byte {offset + tensor.size_bytes:,}, and "
                    f"the file has {self._size:,}: fetch it again"
                )
            placed[tensor.name] = StoredTensor(tensor.name, tensor.shape, tensor.kind, self._path, offset)
        return placed

    def _value(self, kind: GGUFValueType) -> Value:
        if kind == GGUFValueType.STRING:
            return self._text()
        if kind == GGUFValueType.ARRAY:
            return self._array(self._kind(), self._whole("<Q"))
        (value,) = self._numbers(kind, 1)
        return value

    def _array(self, kind: GGUFValueType, length: int) -> list[str] | list[bool] | list[int] | list[float]:
        if kind == GGUFValueType.STRING:
            return [self._text() for _ in range(length)]
        if kind == GGUFValueType.ARRAY:
            raise self._damaged("it has a list of lists")
        return self._numbers(kind, length)

    def _numbers(self, kind: GGUFValueType, count: int) -> list[bool] | list[int] | list[float]:
        form = np.dtype(_NUMBERS[kind])
        read = np.frombuffer(self._bytes(count * form.itemsize), dtype=form)
        if kind == GGUFValueType.FLOAT32:  # 1e-5 is meant by what is 9.999999747378752e-06 in 64 bits
            return [float(str(one)) for one in read]
        values: list[bool] | list[int] | list[float] = read.tolist()
        return values

    def _kind(self) -> GGUFValueType:
        number = self._whole("<I")
        try:
            return GGUFValueType(number)
        except ValueError:
            raise self._damaged(f"it has a value of type {number}") from None

    def _name(self) -> str:
        """Name of a key or a tensor, safe for messages."""
        name = self._text()
        if not name.isprintable() or len(name) > _LONGEST_NAME:
            raise self._damaged(f"it has the name {name[:40]!r}")
        return name

    def _text(self) -> str:
        try:
            return self._bytes(self._whole("<Q")).decode()
        except UnicodeDecodeError:
            raise self._damaged("it has a text that is not UTF-8") from None

    def _whole(self, form: str) -> int:
        (value,) = struct.unpack(form, self._bytes(struct.calcsize(form)))
        return int(value)

    def _bytes(self, count: int) -> bytes:
        if count > self._left:
            raise ModelError(f"{self._path} is cut short or damaged within its tables: fetch it again")
        self._left -= count
        return self._file.read(count)

    def _damaged(self, what: str) -> ModelError:
        return ModelError(f"{self._path} is damaged ({what}): fetch it again")
