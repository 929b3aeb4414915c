"""Compiles `attention_exports.cpp` once per instruction set of this machine and calls it from numpy and torch."""

import ctypes
import hashlib
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from serving.model.native import build
from serving.model.native.library import load

FORMS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}

_EXPORTS = Path(__file__).with_name("attention_exports.cpp")
_DEFINES = {
    "portable": (),
    "avx2": ("-DCM_AVX2=1",),
    "avx512": ("-DCM_AVX512=1",),
    "soft_tiles": ("-DCM_AMX=1", "-DCM_AVX512=1", "-DCM_SOFT_TILES=1"),
    "amx": ("-DCM_AMX=1", "-DCM_AVX512=1"),
}
_NEEDS = {
    "portable": set[str](),
    "avx2": {"avx2", "fma", "f16c"},
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16"},
}
_NEEDS["soft_tiles"] = _NEEDS["avx512"]
_NEEDS["amx"] = _NEEDS["avx512"] | {"amx_tile", "amx_bf16", "amx_int8"}


def instruction_sets() -> list[str]:
    """Instruction sets of this list that the processor supports."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text(encoding="ascii").split())
    except OSError:
        flags = set()
    return [name for name, needs in _NEEDS.items() if needs <= flags]


def chosen_sets(names: Sequence[str]) -> list[str]:
    """Those that run with each change: the most common one, and the widest of this machine."""
    native = [name for name in instruction_sets() if name in names and name != "soft_tiles"]
    return [name for name in names if name in ("avx2", *native[-1:])]


def compile_kernels(name: str, folder: Path) -> ctypes.CDLL:
    """The library of one instruction set; compiled unless `folder` has it for these sources."""
    if name == "amx":
        load()  # requests the tiles from the kernel, for the process
    flags = [*build._FLAGS, *build.INSTRUCTIONS.get(f"isa_{'avx512' if name == 'soft_tiles' else name}", ())]
    flags += [f"-DCM_ISA_NAMESPACE={name}", *_DEFINES[name], "-fvisibility=default", f"-I{build.SOURCES}"]
    digest = hashlib.blake2b(f"{build.source_fingerprint()} {flags}".encode() + _EXPORTS.read_bytes(), digest_size=8)
    library = folder / f"{name}-{digest.hexdigest()}.so"
    with build.lock(folder / f"{name}.lock"):
        if not library.exists():
            sources = [_EXPORTS, *(build.SOURCES / other for other in ("pack.cpp", "shorten.cpp", "team.cpp"))]
            part = library.with_suffix(".part")
            command = [*build.find_compiler(), *flags, "-shared", "-o", str(part), *map(str, sources)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stderr[-4000:]
            for old in folder.glob(f"{name}-*.so"):
                old.unlink()
            part.replace(library)
    return ctypes.CDLL(str(library))


class Shape(ctypes.Structure):
    """Mirrors `Shape` in attention_exports.cpp."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("form", "heads", "kv_lora", "nope", "rope", "value", "weight_form")),
        *((name, ctypes.c_int32) for name in ("kv_heads", "head_dim")),
        *((name, ctypes.c_int32) for name in ("cache_form", "blocks", "layers", "block_tokens")),
        *((name, ctypes.c_int32) for name in ("row_bytes", "head_bytes", "rope_offset", "scale_offset")),
        ("scale", ctypes.c_float),
        ("window", ctypes.c_int32),
        ("sinks", ctypes.c_void_p),
    ]


class Weight(ctypes.Structure):
    """Mirrors `Weight` in attention_exports.cpp."""

    _fields_ = [("weight", ctypes.c_void_p), ("scale", ctypes.c_void_p)]


@dataclass(frozen=True)
class Span:
    """Rows of one sequence, as `Span` in attention_job.h."""

    rows: int
    start: int
    table: list[int]
    plain: bool


@dataclass(frozen=True)
class Case:
    """A random attention layer: weights in float32 (rounded to `dtype`), and a cache with known rows.

    Args:
        factor: of scores; None = that of the query's size.
        int8_cache, int8_weights: keep the latents, or the three products' weights, as int8.
        w8a16: weights as int8 and activations in 16 bits; `expand` is then the dequantised weight.
    """

    heads: int = 4
    kv_lora: int = 32
    nope: int = 16
    rope: int = 8
    value: int = 12
    dtype: torch.dtype = torch.float32
    block_tokens: int = 4
    blocks: int = 64
    layers: int = 2
    int8_cache: bool = False
    int8_weights: bool = False
    w8a16: bool = False
    seed: int = 0
    factor: float | None = None
    expand: Tensor = field(init=False)  # [heads, nope + value, kv_lora]
    rows: Tensor = field(init=False)  # [blocks * block_tokens, kv_lora + rope], in order of the cache

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.heads, self.nope + self.value, self.kv_lora)
        expand = torch.randn(shape, generator=generator) * self.kv_lora**-0.5
        rows = torch.randn(self.blocks * self.block_tokens, self.kv_lora + self.rope, generator=generator)
        exact = dequantised(*in_int8(expand)) if self.w8a16 else expand.to(self.dtype).float()
        object.__setattr__(self, "expand", exact)
        object.__setattr__(self, "rows", rows.to(self.dtype).float())

    @property
    def scale(self) -> float:
        """Factor on scores."""
        return (self.nope + self.rope) ** -0.5 if self.factor is None else self.factor

    def queries(self, rows: int) -> Tensor:
        """`[rows, heads, nope + rope]`, some of them with sharp scores."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        return (torch.randn(rows, self.heads, self.nope + self.rope, generator=generator) * 2).to(self.dtype)

    def shape(self) -> Shape:
        """Layout of the cache rows as kv_layout.py has it."""
        size = self.dtype.itemsize
        rope_at = -(-self.kv_lora // 4) * 4 if self.int8_cache else self.kv_lora * size
        scale_at = -(-(rope_at + self.rope * size) // 4) * 4 if self.int8_cache else -1
        row_bytes = scale_at + 4 if self.int8_cache else (self.kv_lora + self.rope) * size
        form = FORMS[self.dtype]
        weights = 3 if self.w8a16 else 2 if self.int8_weights else form
        return Shape(
            *(form, self.heads, self.kv_lora, self.nope, self.rope, self.value, weights, 0, 0),
            *(2 if self.int8_cache else form, self.blocks, self.layers, self.block_tokens),
            *(row_bytes, 0, rope_at, scale_at, self.scale),
        )

    def cache(self, kernels: ctypes.CDLL, layer: int = 1) -> np.ndarray:
        """The arena's bytes with all rows written."""
        shape = self.shape()
        arena = np.zeros(self.blocks * self.layers * self.block_tokens * shape.row_bytes, np.uint8)
        table = np.arange(self.blocks, dtype=np.int32)
        kernels.test_write(
            ctypes.byref(shape), at(arena), layer, at(table), 0, self.rows.shape[0], at(self.rows.contiguous().numpy())
        )
        return arena

    def weights(self) -> tuple[ctypes.Array[Weight], list[Tensor]]:
        """Expand, key_absorb and value_absorb for the call, and the objects that keep them alive."""
        if self.w8a16:
            return self._w8a16_weights()
        key, value = self.expand.split((self.nope, self.value), 1)
        kept = []
        array = (Weight * 3)()
        for place, dense in zip(array, (self.expand.flatten(0, 1), key.transpose(1, 2), value), strict=True):
            if self.int8_weights:
                scale = dense.abs().amax(-1) / 127
                kept += [(dense / scale[..., None]).round().to(torch.int8).contiguous(), scale.contiguous()]
                place.weight, place.scale = kept[-2].data_ptr(), kept[-1].data_ptr()
            else:
                kept.append(dense.to(self.dtype).contiguous())
                place.weight = kept[-1].data_ptr()
        return array, kept

    def _w8a16_weights(self) -> tuple[ctypes.Array[Weight], list[Tensor]]:
        """A scale for each row of kv_b_proj: they are inputs where it is absorbed into queries, else outputs."""
        levels, scale = in_int8(self.expand)
        (key, value), (key_scale, value_scale) = (part.split((self.nope, self.value), 1) for part in (levels, scale))
        ones, each_head = torch.ones(self.kv_lora), torch.ones(self.heads * self.kv_lora)
        kept = []
        array = (Weight * 3)()
        for place, dense, outputs, inputs in zip(
            array,
            (levels, key.transpose(1, 2), value),
            (scale, each_head, value_scale),
            (ones, key_scale, each_head),
            strict=True,
        ):
            kept += [dense.contiguous(), torch.cat((outputs.flatten(), inputs.flatten()))]
            place.weight, place.scale = kept[-2].data_ptr(), kept[-1].data_ptr()
        return array, kept

    def attend(
        self,
        kernels: ctypes.CDLL,
        query: Tensor,
        spans: list[Span],
        cache: np.ndarray,
        threads: int = 1,
        layer: int = 1,
    ) -> Tensor:
        """`[rows, heads, value]` of all spans, whose rows are consecutive in `query`."""
        query = query.contiguous()
        array, tables = listed(spans)
        out = torch.full((query.shape[0], self.heads, self.value), float("nan"), dtype=self.dtype)
        weights, kept = self.weights()
        kernels.test_attend(
            *(ctypes.byref(self.shape()), weights, at(cache), layer, at(array), len(spans), at(tables)),
            *(ctypes.c_void_p(query.data_ptr()), ctypes.c_void_p(out.data_ptr()), threads),
        )
        del kept
        return out

    def reference(self, query: Tensor, spans: list[Span]) -> Tensor:
        """The same in float64, with the latents as given."""
        out, row = [], 0
        for span in spans:
            slots = torch.tensor(span.table)[:, None] * self.block_tokens + torch.arange(self.block_tokens)
            context = self.rows[slots.flatten()[: span.start + span.rows]].double()
            latent, rope = context.split((self.kv_lora, self.rope), 1)
            expanded = torch.einsum("sl,hdl->hsd", latent, self.expand.double())
            key = torch.cat((expanded[..., : self.nope], rope.expand(self.heads, -1, -1)), -1)
            scores = torch.einsum("rhd,hsd->hrs", query[row : row + span.rows].double(), key) * self.scale
            position = span.start + torch.arange(span.rows)
            scores = scores.masked_fill(torch.arange(context.shape[0]) > position[:, None], float("-inf"))
            out.append(torch.einsum("hrs,hsv->rhv", scores.softmax(-1), expanded[..., self.nope :]))
            row += span.rows
        return torch.cat(out)


def listed(spans: list[Span]) -> tuple[np.ndarray, np.ndarray]:
    """Arguments of `test_attend` for spans with consecutive rows: each in five numbers, and all tables."""
    numbers, row, begin = [], 0, 0
    for span in spans:
        numbers.append((row, span.rows, span.start, begin, int(span.plain)))
        row += span.rows
        begin += len(span.table)
    return np.array(numbers, np.int32), np.array([block for span in spans for block in span.table], np.int32)


def in_int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Levels, and a scale for each row, `[..., 1]`. Quantised input is unchanged."""
    scale = rows.abs().amax(-1, keepdim=True) / 127
    return (rows / scale).round().to(torch.int8), scale


def dequantised(levels: Tensor, scale: Tensor) -> Tensor:
    """Dequantised values."""
    return levels * scale


def at(array: np.ndarray) -> ctypes.c_void_p:
    """Address of an array's data; the caller keeps it alive."""
    return ctypes.c_void_p(array.ctypes.data)
