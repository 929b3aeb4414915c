"""How much device memory a checkpoint's weights take, without loading them."""

from math import prod
from pathlib import Path

import torch
from safetensors import safe_open

SCALE_SUFFIX = "_scale_inv"
"""Scales of FP8 blocks; they are gone once the weights are dequantised."""


def weight_bytes(folder: Path, dtype: torch.dtype) -> int:
    """Bytes of all weights of a folder once they are loaded as `dtype`, read from the file headers alone."""
    elements = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as tensors:
            names = [name for name in tensors.keys() if not name.endswith(SCALE_SUFFIX)]  # not a dict
            elements += sum(prod(tensors.get_slice(name).get_shape()) for name in names)
    return elements * dtype.itemsize
