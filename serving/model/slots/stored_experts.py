"""Experts without the model: from an image of its weights, or from the checkpoint's files. Imports no torch.

Expert ranks have nothing else of a model. Forms that only torch reads (FP8, MXFP4, fused tensors, products of which one
part is INT8) are left to `CheckpointExperts`, which imports it.
"""

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hardware.nesting import parse_json
from hardware.ub.pages import let_go
from serving.errors import ModelError
from serving.model.architecture import Architecture, ExpertShape
from serving.model.image import ALIGNMENT, PLAIN, Image, ImageEntry
from serving.model.native.layout import SHORT_INPUTS, Form, NativeLinear
from serving.model.native.library import Library
from serving.model.native.panel_layout import nbytes_of, open_panels
from serving.model.slots.expert_record import PackedExpert, PackedProduct, record_bytes
from serving.model.weight_files import weight_files
from serving.regular_file import check_regular

Array = npt.NDArray[Any]

INT8_SCALE = "_scale"
SHARED = "shared_experts."
"""Prefix of shared experts within the names of a layer's feed-forward tensors."""
_MOST_HEADER_BYTES = 1 << 30
_READ = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "i1"}
"""Types of stored numbers that are read here, by safetensors' names; bfloat16 as its bits."""


def expert_numbers(config: Architecture, *, drafts: bool) -> list[int]:
    """Numbers of the layers with routed experts in the checkpoint; of draft layers only the first."""
    numbers = [number for number, layer in enumerate(config.layers) if isinstance(layer.feed, ExpertShape)]
    if drafts and isinstance(config.drafts[0].feed, ExpertShape):
        numbers.append(len(config.layers))
    return numbers


def names_of_layers(config: Architecture, numbers: Sequence[int]) -> tuple[str, ...]:
    """Names of these layers for people: the number in the model, or `draft`."""
    return tuple("draft" if number == len(config.layers) else str(number) for number in numbers)


class ImageExperts:
    """Experts of an image, in place; see `expert_slots.ExpertSource`.

    Args:
        image: of the native library's panels.
        numbers: of the layers with routed experts.
    """

    in_place = True

    def __init__(self, library: Library, image: Image, config: Architecture, numbers: Sequence[int]) -> None:
        self._library, self._image, self._numbers = library, image, tuple(numbers)
        self._experts = config.expert_count

    @property
    def layers(self) -> int:
        """Layers with routed experts."""
        return len(self._numbers)

    def room(self, layer: int) -> int:
        """Exact, since the forms are known."""
        return max(self.expert(layer, expert).record_bytes for expert in range(self._experts))

    def expert(self, layer: int, expert: int) -> PackedExpert:
        """The expert on the image's memory.

        Raises: ModelError if the image lacks it, or it is no panels.
        """
        return self._net(layer, f"experts.{expert}.")

    def shared(self, layer: int) -> PackedExpert:
        """The shared experts on the image's memory. Raises: as `expert`."""
        return self._net(layer, SHARED)

    def _net(self, layer: int, part: str) -> PackedExpert:
        prefix = f"model.layers.{self._numbers[layer]}.mlp.{part}"
        return PackedExpert(self._product(prefix + "gate_up"), self._product(prefix + "down_proj"))

    def forget(self) -> None:
        """Unmap the pages of the experts from this process."""
        let_go(self._image.bytes_of(entry) for entry in self._image.manifest.entries if ".mlp.experts." in entry.name)

    def _product(self, name: str) -> PackedProduct:
        entry = self._image.entry(name)
        if entry.layout == PLAIN or len(entry.shape) != 2:
            raise ModelError(f"{name} of a model image is not panels: slots hold panels of the native library")
        layout = self._image.manifest.layouts[entry.layout]
        linear, panels = open_panels(self._library, self._image.bytes_of(entry), layout, entry.dtype, entry.shape)
        return _packed(linear, panels, None if entry.bias is None else self._floats(self._image.entry(entry.bias)))

    def _floats(self, entry: ImageEntry) -> Array:
        stored = {"float32": "F32", "bfloat16": "BF16"}.get(entry.dtype)
        if stored is None or entry.layout != PLAIN:
            raise ModelError(f"{entry.name} of a model image is {entry.dtype}: a bias is float32 or bfloat16")
        return _as_float32(stored, np.frombuffer(self._image.bytes_of(entry), _READ[stored]))


# The checkpoint's files.


class _Stored(NamedTuple):
    """A tensor in its file."""

    kind: str
    values: Array


class TensorFiles:
    """Safetensors files of a folder, mapped. The library's reader has no bfloat16 without torch.

    Raises: ModelError if one cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[str, tuple[memoryview, dict[str, Any]]] = {}
        for path in weight_files(folder):
            try:
                check_regular(path, within=folder)
                self._open(path)
            except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
                raise ModelError(f"{path} is not a readable safetensors file ({error}): fetch it again") from error

    @property
    def names(self) -> frozenset[str]:
        """Names of all tensors, scales included."""
        return frozenset(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape."""
        return tuple(self._places[name][1]["shape"])

    def kind(self, name: str) -> str:
        """A tensor's type, as safetensors names it."""
        return str(self._places[name][1]["dtype"])

    def read(self, name: str) -> _Stored:
        """A tensor, in place.

        Raises: ModelError if its values are not numbers.
        """
        data, entry = self._places[name]
        start, end = entry["data_offsets"]
        found = _Stored(self.kind(name), np.frombuffer(data[start:end], _READ[self.kind(name)]).reshape(entry["shape"]))
        if found.kind != "I8" and not np.isfinite(_as_float32(*found)).all():
            raise ModelError(f"{self._folder}: {name} has values that are not numbers: fetch it again")
        return found

    def _open(self, path: Path) -> None:
        with path.open("rb") as file:
            whole = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        (length,) = struct.unpack_from("<Q", whole)
        if length > min(whole.nbytes - 8, _MOST_HEADER_BYTES):
            raise ValueError(f"its header has {length} bytes")
        header, data = parse_json(bytes(whole[8 : 8 + length])), whole[8 + length :]
        header.pop("__metadata__", None)
        for name, entry in header.items():
            start, end = entry["data_offsets"]
            if not 0 <= start <= end <= data.nbytes:
                raise ValueError(f"{name} is not in the file")
            self._places[name] = data, entry


@dataclass(frozen=True, slots=True)
class _Weight:
    """A product's weight: in the model's dtype (bfloat16 as bits), or INT8 with scales."""

    values: Array
    scale: Array | None
    bias: Array | None


class StoredExperts:
    """Experts of a checkpoint's files, packed on each access; see `expert_slots.ExpertSource`.

    Args:
        numbers: of the layers with routed experts.
        dtype: the model's, `float32` or `bfloat16`.
        coarse_drafts, short: as for `load_model`.
    """

    in_place = False

    def __init__(
        self,
        library: Library,
        folder: Path,
        config: Architecture,
        numbers: Sequence[int],
        dtype: str,
        *,
        coarse_drafts: bool,
        short: bool,
    ) -> None:
        self._library, self._folder, self._config, self._numbers = library, folder, config, tuple(numbers)
        self._dtype, self._coarse, self._short = dtype, coarse_drafts, short
        self._opened: TensorFiles | None = None

    @property
    def layers(self) -> int:
        """Layers with routed experts."""
        return len(self._numbers)

    def readable(self, *, shared: bool = False) -> bool:
        """Whether all experts, and the shared ones if they are needed, have forms that are read here."""
        files = self._files()
        shape, checked = self._config.experts, 0
        assert shape is not None
        for number in self._numbers:
            for part in (*(f"experts.{expert}." for expert in range(shape.experts)), *[SHARED] * shared):
                prefix = f"model.layers.{number}.mlp.{part}"
                names = [f"{prefix}{part}.weight" for part in ("gate_proj", "up_proj", "down_proj")]
                if not files.names.issuperset(names) or not {files.kind(name) for name in names} <= _READ.keys():
                    return False
                if (files.kind(names[0]) == "I8") != (files.kind(names[1]) == "I8"):
                    return False
                checked += 1
        return checked > 0

    def room(self, layer: int) -> int:
        """Determined from shapes; if the form depends on the values, the size of the larger one."""
        files, prefix = self._files(), self._prefix(layer, 0)
        shape = self._config.experts
        assert shape is not None
        bias = 4 * any(name.startswith(prefix) and name.endswith(".bias") for name in files.names)
        hidden, width = self._config.hidden_size, shape.width
        int8 = [
            self._is_coarse(layer) or files.kind(f"{prefix}{part}.weight") == "I8" for part in ("up_proj", "down_proj")
        ]
        gate_up, down = (Form.INT8 if one else self._plain_form for one in int8)
        return record_bytes(
            nbytes_of(self._library, NativeLinear(2 * width, hidden, 1, gate_up)), 2 * width * bias,
            nbytes_of(self._library, NativeLinear(hidden, width, 1, down)), hidden * bias,
        )  # fmt: skip

    def expert(self, layer: int, expert: int) -> PackedExpert:
        """Read and pack an expert, into separate memory.

        Raises: ModelError if the checkpoint cannot be read.
        Effects: keeps the checkpoint's files mapped until `forget`.
        """
        return self._net(layer, self._prefix(layer, expert))

    def shared(self, layer: int) -> PackedExpert:
        """Read and pack the shared experts, as `expert`."""
        return self._net(layer, f"model.layers.{self._numbers[layer]}.mlp.{SHARED}")

    def _net(self, layer: int, prefix: str) -> PackedExpert:
        finish = _coarse if self._is_coarse(layer) else _same
        gate, up = self._weight(prefix + "gate_proj"), self._weight(prefix + "up_proj")
        gate_up, down = finish(_fused(gate, up), self._dtype), finish(self._weight(prefix + "down_proj"), self._dtype)
        return PackedExpert(self._pack(gate_up), self._pack(down))

    def forget(self) -> None:
        """Close the files; the next expert opens them again."""
        self._opened = None

    @property
    def _plain_form(self) -> Form:
        return Form.F32 if self._dtype == "float32" else Form.BF16

    def _files(self) -> TensorFiles:
        opened = self._opened  # another thread may close it at any time
        if opened is None:
            self._opened = opened = TensorFiles(self._folder)
        return opened

    def _prefix(self, layer: int, expert: int) -> str:
        return f"model.layers.{self._numbers[layer]}.mlp.experts.{expert}."

    def _is_coarse(self, layer: int) -> bool:
        return self._coarse and self._numbers[layer] >= len(self._config.layers)

    def _weight(self, name: str) -> _Weight:
        files = self._files()
        stored = files.read(name + ".weight")
        bias = None
        if name + ".bias" in files.names:
            bias = _as_float32(*_in_dtype(files.read(name + ".bias"), self._dtype))
        if stored.kind != "I8":
            return _Weight(_in_dtype(stored, self._dtype).values, None, bias)
        scale, rows = f"{name}.weight{INT8_SCALE}", stored.values.shape[0]
        if scale not in files.names or files.shape(scale) not in ((rows,), (rows, 1)):
            raise ModelError(
                f"{self._folder}: INT8 tensor {name} has no {INT8_SCALE} of [{rows}, 1]: quantise it again"
            )
        return _Weight(stored.values, _as_float32(*files.read(scale)).reshape(rows), bias)

    def _pack(self, given: _Weight) -> PackedProduct:
        values, short = np.ascontiguousarray(given.values), self._short and given.values.shape[1] <= SHORT_INPUTS
        forms = [Form.INT8] if given.scale is not None else [self._plain_form]
        if short and forms == [Form.BF16]:
            forms = [Form.BF16_SHORT, Form.BF16]
        scale = None if given.scale is None else np.ascontiguousarray(given.scale, np.float32)
        for form in forms:
            linear = NativeLinear(*values.shape, 1, form)
            memory = _aligned(nbytes_of(self._library, linear))
            address = np.frombuffer(memory, np.uint8).ctypes.data
            scales = None if scale is None else scale.ctypes.data
            if self._library.pack(values.ctypes.data, scales, linear, address):
                return _packed(linear, memory, given.bias)
        raise AssertionError("the last form always can be")


def _packed(linear: NativeLinear, panels: memoryview, bias: Array | None) -> PackedProduct:
    sizes = linear.out_features, linear.in_features, linear.groups, int(linear.form)
    held = memoryview(b"") if bias is None else np.ascontiguousarray(bias, np.float32).data.cast("B")
    return PackedProduct(*sizes, panels, held)


def _aligned(nbytes: int) -> memoryview:
    whole = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -whole.ctypes.data % ALIGNMENT
    return whole.data[start : start + nbytes]


def _as_float32(kind: str, values: Array) -> Array:
    """Numbers as float32; exact but for float64."""
    if kind == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)


def _in_dtype(stored: _Stored, dtype: str) -> _Stored:
    """The numbers in the model's dtype, rounded to nearest even as torch does."""
    if dtype == "float32":
        return _Stored("F32", _as_float32(*stored))
    if stored.kind == "BF16":
        return stored
    bits = np.ascontiguousarray(_as_float32(*stored)).view(np.uint32)
    return _Stored("BF16", ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16))


def _fused(*parts: _Weight) -> _Weight:
    """One product in place of several, all INT8 or none; the outputs are concatenated, a missing bias is zeros."""
    scales = [part.scale for part in parts if part.scale is not None]
    bias = None
    if any(part.bias is not None for part in parts):
        zeros = [np.zeros(len(part.values), np.float32) if part.bias is None else part.bias for part in parts]
        bias = np.concatenate(zeros)
    return _Weight(np.concatenate([part.values for part in parts]), np.concatenate(scales) if scales else None, bias)


def _same(given: _Weight, dtype: str) -> _Weight:
    return given


def _coarse(given: _Weight, dtype: str) -> _Weight:
    """The product in INT8, as `weight_bank.coarse` rounds it."""
    if given.scale is not None:
        return given
    wide = _as_float32("F32" if dtype == "float32" else "BF16", given.values)
    largest = np.abs(wide).max(1, keepdims=True)
    factor = np.float32(127.0) / np.maximum(largest, np.float32(1e-30))
    rounded = np.clip(np.rint(wide * factor), -128, 127).astype(np.int8)
    return _Weight(rounded, (largest / np.float32(127))[:, 0], given.bias)
