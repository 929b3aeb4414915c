"""Reading tensors of a Hugging Face checkpoint by name: one or many safetensors files, FP8 and MXFP4 dequantised.

Experts that a file stores in one tensor are read one by one, under separate names (`fused_experts.py`).

INT8 matrices can be read as stored, for products that compute in INT8 (`int8`), or dequantised like FP8 ones
(`tensor`).
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from serving.errors import ModelError
from serving.model.fused_experts import SCALES, TensorPart, is_fused, mxfp4, told_apart
from serving.model.weight_files import weight_files
from serving.regular_file import check_regular


class _TensorFile(Protocol):
    """Type of the used part of safetensors' untyped `safe_open`."""

    def keys(self) -> list[str]: ...

    def get_tensor(self, name: str) -> Tensor: ...

    def get_slice(self, name: str) -> Any: ...  # noqa: ANN401 - its get_shape() and get_dtype() are used


class Int8Weight(NamedTuple):
    """A matrix whose value is `weight * scale[:, None]`.

    Args:
        weight: `[out_features, in_features] int8`.
        scale: `[out_features] float32`.
    """

    weight: Tensor
    scale: Tensor


class TensorSource(Protocol):
    """Source of a checkpoint's tensors for an assembly."""

    @property
    def names(self) -> frozenset[str]:
        """Names of all tensors, except the scales of quantised ones."""
        ...

    def tensor(self, name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        """One tensor, dequantised and converted."""
        ...

    def int8(self, name: str, device: torch.device) -> Int8Weight | None:
        """A matrix stored as INT8, unconverted; None if it is stored in another form."""
        ...


Progress = Callable[[int, int], None]
"""Called with (tensors read, tensors to read)."""

FP8_SCALE = "_scale_inv"
"""Suffix for the name of an FP8 tensor's block scales."""
INT8_SCALE = "_scale"
"""Suffix for the name of an INT8 tensor's channel scales."""

_FP8 = torch.float8_e4m3fn
_READ = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16, _FP8, torch.int8})


class Checkpoint:
    """An opened checkpoint.

    Args:
        fp8_block: rows and columns that share a scale in FP8 weights; None when the checkpoint has none.
    Raises: ModelError if there is no safetensors file or one cannot be opened.
    Effects: keeps the files mapped while the object lives.
    """

    def __init__(
        self, folder: Path, *, fp8_block: tuple[int, int] | None = None, progress: Progress | None = None
    ) -> None:
        self.folder = folder
        self._fp8_block = fp8_block
        self._progress = progress
        self._files = {path.name: _open(path, folder) for path in weight_files(folder)}
        self._file_of = {name: file for file, handle in self._files.items() for name in handle.keys()}
        fused = {name: self._stored_shape(name) for name in self._file_of if is_fused(name)}
        self._parts = told_apart(fused)
        own = frozenset(name for name in self._file_of if not self._is_scale(name)) - fused.keys()
        if twice := sorted(own & self._parts.keys()):
            raise ModelError(f"{folder} has {twice[0]} twice, by itself and in one tensor: fetch it again")
        self._names = own | self._parts.keys()
        self._read = 0

    @property
    def names(self) -> frozenset[str]:
        """Names of all tensors, except the scales of quantised ones."""
        return self._names

    def check(
        self,
        required: Mapping[str, tuple[int, ...]],
        optional: Mapping[str, tuple[int, ...]],
        ignored: Collection[str] = (),
    ) -> None:
        """Compare with the tensors that a configuration requires.

        Raises: ModelError naming the first missing, unexpected or wrongly shaped tensors, and their number.
        """
        problems = [
            _problem("lacks", sorted(required.keys() - self.names)),
            _problem("has unexpected", sorted(self.names - required.keys() - optional.keys() - set(ignored))),
            _problem("has wrongly shaped", self._wrong_shapes({**optional, **required})),
        ]
        found = [p for p in problems if p]
        if found:
            raise ModelError(f"{self.folder} does not fit its config.json: it {'; it '.join(found)}. Fetch it again")

    def tensor(self, name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Read one tensor, dequantised and converted.

        Raises: ModelError if a quantised tensor has no fitting scales or the configuration gives no block shape; if
            a value is not a finite number.
        """
        value = self._raw(name)
        if value.dtype not in _READ:
            raise ModelError(f"{self.folder}: {name} is stored as {self.stored_dtype(name)}, which is not read")
        if value.dtype == _FP8:
            value = self._dequantised(name, value)
        elif value.dtype == torch.int8:
            value = value * self._channel_scales(name).unsqueeze(1)
        self._check_finite(name, value)
        self._tell()
        return value.to(device=device, dtype=dtype).contiguous()

    def int8(self, name: str, device: torch.device) -> Int8Weight | None:
        """Read an INT8 matrix as stored; None, without reading, if it has another form.

        Raises: ModelError if it does not have one scale per output channel.
        """
        if not self.is_int8(name):
            return None
        scale = self._channel_scales(name)
        weight = self._raw(name)
        self._tell()
        return Int8Weight(weight.to(device).contiguous(), scale.to(device))

    def is_int8(self, name: str) -> bool:
        """Whether a tensor is stored as INT8; reads no data."""
        return self.stored_dtype(name) == "I8"

    def stored_dtype(self, name: str) -> str:
        """The stored type in safetensors' terms (`BF16`, `F32`, `F8_E4M3`, `I8` ...), without reading the tensor."""
        stored = self._parts[name].file_tensor if name in self._parts else name
        dtype: str = self._slice(stored).get_dtype()
        return dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, without reading it."""
        return self._parts[name].shape if name in self._parts else self._stored_shape(name)

    def _stored_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def _slice(self, name: str) -> Any:  # noqa: ANN401 - as get_slice()
        return self._files[self._file_of[name]].get_slice(name)

    def _is_scale(self, name: str) -> bool:
        if name.endswith(FP8_SCALE):
            return True
        return name.endswith(".weight" + INT8_SCALE) and name.removesuffix(INT8_SCALE) in self._file_of

    def _raw(self, name: str) -> Tensor:
        if name in self._parts:
            return self._part(self._parts[name])
        return self._files[self._file_of[name]].get_tensor(name)

    def _part(self, part: TensorPart) -> Tensor:
        """A part of a fused tensor; only its expert is read."""
        if part.kind == "whole":
            return self._raw(part.stored)
        one: Tensor = self._slice(part.file_tensor)[part.expert]
        if part.kind == "matrix":
            one = one.t()
        own = one[part.first :: part.step]
        if part.kind != "mxfp4":
            return own
        if self._slice(part.stored + SCALES).get_dtype() != "U8" or own.dtype != torch.uint8:
            raise ModelError(f"{self.folder}: {part.file_tensor} and its {SCALES} are not bytes, so they are not MXFP4")
        return mxfp4(own, self._slice(part.stored + SCALES)[part.expert][part.first :: part.step])

    def _tell(self) -> None:
        self._read += 1
        if self._progress is not None:
            self._progress(self._read, len(self.names))

    def _dequantised(self, name: str, value: Tensor) -> Tensor:
        if name + FP8_SCALE not in self._file_of or self._fp8_block is None:
            raise ModelError(f"{self.folder}: FP8 tensor {name} has no {FP8_SCALE} scales or no weight_block_size")
        scales = self._raw(name + FP8_SCALE)
        wanted = [-(-size // block) for size, block in zip(value.shape, self._fp8_block, strict=False)]
        if value.dim() != 2 or list(scales.shape) != wanted:
            blocks = " x ".join(map(str, self._fp8_block))
            raise ModelError(
                f"{self.folder}: FP8 tensor {name} has scales of {list(scales.shape)}, not one for each block of "
                f"{blocks}, which are {wanted}: its weight_block_size differs, or the file is damaged"
            )
        return dequantise(value, scales, self._fp8_block)

    def _channel_scales(self, name: str) -> Tensor:
        """`[rows] float32`."""
        shape, scale = self.shape(name), name + INT8_SCALE
        rows = shape[0]
        if len(shape) != 2 or scale not in self._file_of or self.shape(scale) not in ((rows,), (rows, 1)):
            raise ModelError(f"{self.folder}: INT8 tensor {name} has no {INT8_SCALE} of [{rows}, 1]: quantise it again")
        scales = self._raw(scale).float().reshape(rows)
        self._check_finite(scale, scales)
        return scales

    def _check_finite(self, name: str, value: Tensor) -> None:
        """Check the sum first, which is not finite if a value is not, at a twentieth of the cost of checking each."""
        if not bool(value.sum().isfinite()) and not bool(value.isfinite().all()):
            raise ModelError(f"{self.folder}: {name} has values that are not numbers: fetch it again")

    def _wrong_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
        wrong = []
        for name in sorted(self.names & shapes.keys()):
            shape = self.shape(name)
            if shape != shapes[name]:
                wrong.append(f"{name} {list(shape)} instead of {list(shapes[name])}")
        return wrong


class CheckpointShapes:
    """A checkpoint whose tensors have shapes but no bytes, to plan a model before it is read."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @property
    def names(self) -> frozenset[str]:
        """Names of all tensors, except the scales of quantised ones."""
        return self._checkpoint.names

    def tensor(self, name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor on the meta device; `device` is ignored."""
        return torch.empty(self._checkpoint.shape(name), dtype=dtype, device="meta")

    def int8(self, name: str, device: torch.device) -> Int8Weight | None:
        """An INT8 matrix on the meta device; None if it is stored in another form."""
        if not self._checkpoint.is_int8(name):
            return None
        rows, columns = self._checkpoint.shape(name)
        weight = torch.empty((rows, columns), dtype=torch.int8, device="meta")
        return Int8Weight(weight, torch.empty(rows, dtype=torch.float32, device="meta"))


def dequantise(value: Tensor, scales: Tensor, block: tuple[int, int]) -> Tensor:
    """Block-scaled FP8 -> float32.

    Args:
        value: `[rows, columns] float8_e4m3fn`.
        scales: `[ceil(rows / block rows), ceil(columns / block columns)] float32`, one factor per block.
    """
    rows, columns = value.shape
    high, wide = min(block[0], rows), min(block[1], columns)  # a declared block may exceed the matrix
    factors = scales.float().repeat_interleave(high, 0)[:rows].repeat_interleave(wide, 1)[:, :columns]
    return value.float() * factors


def _open(path: Path, folder: Path) -> _TensorFile:
    try:
        check_regular(path, within=folder)
        return cast(_TensorFile, safe_open(path, framework="pt"))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} is not a readable safetensors file ({error}): fetch it again") from error


def _problem(verb: str, names: list[str]) -> str:
    return f"{verb} {_listed(names)}" if names else ""


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
