"""Splits a layer's fused expert tensors, as in gpt-oss: names and shapes as if each expert had its own.

    mlp.experts.gate_up_proj         [experts, hidden, 2 * width]             gate and up in turns
    mlp.experts.down_proj            [experts, width, hidden]
    ... _bias                        [experts, outputs]
    ... _blocks                      [experts, outputs, inputs / 32, 16]      in place of a matrix: MXFP4
    ... _scales                      [experts, outputs, inputs / 32]          with it
    mlp.router.weight, .bias         the gate's

The rest of the package uses `mlp.experts.<number>.gate_proj.weight` and so on, and `mlp.gate`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import embedding

from serving.errors import ModelError

Kind = Literal["whole", "matrix", "bias", "mxfp4"]
"""Form of a part: see `TensorPart`."""

BLOCKS, SCALES = "_blocks", "_scales"
"""Suffixes of the names of a tensor's MXFP4 numbers and of their exponents."""

_STORED = re.compile(r"(.+\.mlp)\.(?:experts\.(gate_up_proj|down_proj)(_bias|_blocks|_scales)?|router\.(weight|bias))")
_GROUP = 32
"""Number of MXFP4 values that share an exponent."""
_GROUP_BYTES = _GROUP // 2
_MOST_EXPERTS = 4096
"""More experts than any layer has; a list of their names still fits in memory."""
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Values of the sixteen e2m1 codes."""


@dataclass(frozen=True, slots=True)
class TensorPart:
    """One tensor under the package's name, and its location in the checkpoint.

    Args:
        stored: name of the file's tensor, in MXFP4 without `_blocks`.
        shape: of the part.
        kind: `mxfp4`, `matrix` (inputs by outputs) and `bias` belong to one expert; `whole` is only renamed.
        expert: its number.
        first, step: the outputs that belong to it.
    """

    stored: str
    shape: tuple[int, ...]
    kind: Kind
    expert: int = 0
    first: int = 0
    step: int = 1

    @property
    def file_tensor(self) -> str:
        """Name of the file's tensor that holds its values."""
        return self.stored + BLOCKS if self.kind == "mxfp4" else self.stored


def told_apart(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, TensorPart]:
    """Parts of fused tensors by the names that the rest of the package uses.

    Args:
        shapes: of a checkpoint's fused tensors, by their names.
    Raises: ModelError for tensors of a shape that cannot be split.
    """
    return {part: where for name in shapes for part, where in _parts(name, shapes)}


def is_fused(name: str) -> bool:
    """Whether a tensor is a fused expert tensor."""
    return _STORED.fullmatch(name) is not None


def _parts(name: str, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, TensorPart]]:
    found = _STORED.fullmatch(name)
    assert found is not None, "only fused tensors have parts"
    prefix, product, suffix, router = found.groups()
    shape = shapes[name]
    if router is not None:
        yield f"{prefix}.gate.{router}", TensorPart(name, shape, "whole")
        return
    if suffix == SCALES:
        if name.removesuffix(SCALES) + BLOCKS not in shapes:
            raise ModelError(f"{name} has no {BLOCKS}: fetch the checkpoint again")
        return
    kind: Kind = "bias" if suffix == "_bias" else "mxfp4" if suffix == BLOCKS else "matrix"
    one = _shape_of_one(name, shape, kind)
    if kind == "mxfp4" and shapes.get(name.removesuffix(BLOCKS) + SCALES) != shape[:3]:
        raise ModelError(f"{name} has no {SCALES} of {list(shape[:3])}: fetch the checkpoint again")
    halves = {"gate_proj": 0, "up_proj": 1} if product == "gate_up_proj" else {"down_proj": 0}
    if one[0] % len(halves):
        raise ModelError(f"{name} has {one[0]} outputs, not as many of gate as of up")
    ending, size = "bias" if kind == "bias" else "weight", (one[0] // len(halves), *one[1:])
    for expert in range(shape[0]):
        for half, first in halves.items():
            part = TensorPart(name.removesuffix(BLOCKS), size, kind, expert, first, len(halves))
            yield f"{prefix}.experts.{expert}.{half}.{ending}", part


def _shape_of_one(name: str, shape: tuple[int, ...], kind: Kind) -> tuple[int, ...]:
    """Outputs by inputs of one expert."""
    axes = {"matrix": 3, "bias": 2, "mxfp4": 4}[kind]
    if len(shape) != axes or not 0 < shape[0] <= _MOST_EXPERTS or (kind == "mxfp4" and shape[3] != _GROUP_BYTES):
        raise ModelError(f"{name} of {list(shape)} cannot be split into experts")
    if kind == "bias":
        return shape[1:]
    return (shape[2], shape[1]) if kind == "matrix" else (shape[1], shape[2] * _GROUP)


def mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """MXFP4 -> float32, exactly.

    Args:
        blocks: `[rows, groups, 16] uint8`, two numbers per byte, the lower four bits first.
        scales: `[rows, groups] uint8`, exponents of two with bias 127.
    Returns: `[rows, groups * 32]`; NaN or infinite where a scale is 255, which encodes no number.
    """
    pairs = torch.tensor([(_FP4[byte & 15], _FP4[byte >> 4]) for byte in range(256)])
    exponents = (scales.int() << 23).masked_fill_(scales == 0, 1 << 22)  # as in float32, where 2**-127 is subnormal
    factors = exponents.view(torch.float32)
    return embedding(blocks.int(), pairs).flatten(-2).mul_(factors.unsqueeze(-1)).flatten(-2)
