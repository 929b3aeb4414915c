"""How much device memory a checkpoint's weights take, without loading them."""

from math import prod
from pathlib import Path

import torch
from safetensors import safe_open

_FP8_SCALE = "_scale_inv"
"""Scales of FP8 blocks; they are gone once the weights are dequantised."""
_INT8_SCALE = ".weight_scale"


def weight_bytes(folder: Path, dtype: torch.dtype) -> int:
    """Bytes of all weights of a folder once they are loaded as `dtype`, read from the file headers alone.

    INT8 matrices stay one byte an element, with a float32 scale per output channel.
    """
    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # not a dict
                if not name.endswith(_FP8_SCALE):
                    part = tensors.get_slice(name)
                    total += prod(part.get_shape()) * _itemsize(name, part.get_dtype(), dtype)
    return total


def _itemsize(name: str, stored: str, dtype: torch.dtype) -> int:
    if stored == "I8":
        return 1
    return torch.float32.itemsize if name.endswith(_INT8_SCALE) else dtype.itemsize
