"""Device memory of a checkpoint's weights, computed without loading them."""

import re
from math import prod
from pathlib import Path

from safetensors import safe_open

from serving.regular_file import check_regular

_FP8_SCALE = "_scale_inv"
"""Suffix of the scales of FP8 blocks, which dequantisation drops."""
_MXFP4_SCALE = re.compile(r"\.mlp\.experts\.\w+_scales")
_MXFP4 = re.compile(r"\.mlp\.experts\.\w+_blocks")
"""MXFP4 tensors: two numbers per byte; dequantisation drops the exponents."""
_INT8_SCALE = ".weight_scale"
_FLOAT32_BYTES = 4
_ROUTED = re.compile(r"\.mlp\.experts\.")


def weight_bytes(folder: Path, itemsize: int) -> int:
    """Bytes of all weights of a folder once they are loaded, read from the file headers alone.

    Args:
        itemsize: bytes of the computation type. INT8 matrices keep one byte per element, with a float32 scale per
            output channel.
    Raises: SafetensorError if a file's header cannot be read; OSError, also for an entry that is not a regular file.
    """
    return sum(_weight_bytes(folder, itemsize))


def rank_weight_bytes(folder: Path, itemsize: int, experts: int, slots: int) -> int:
    """Bytes of a rank's weights: all except the routed experts, plus its slots.

    Args:
        itemsize: as in `weight_bytes`.
        experts: routed experts of a layer.
        slots: slots of the rank in each layer.
    Raises: as `weight_bytes`.
    """
    other, routed = _weight_bytes(folder, itemsize)
    return other + -(-routed * slots // experts)


def _weight_bytes(folder: Path, itemsize: int) -> tuple[int, int]:
    """Bytes of all other weights, and of routed experts."""
    found = [0, 0]
    for path in sorted(folder.glob("*.safetensors")):
        check_regular(path, within=folder)
        with safe_open(path, framework="numpy") as tensors:
            for name in tensors.keys():  # `tensors` is not a dict
                if not name.endswith(_FP8_SCALE) and _MXFP4_SCALE.search(name) is None:
                    part = tensors.get_slice(name)
                    routed = _ROUTED.search(name) is not None
                    found[routed] += prod(part.get_shape()) * _itemsize(name, part.get_dtype(), itemsize)
    return found[0], found[1]


def _itemsize(name: str, stored: str, itemsize: int) -> int:
    if stored == "I8":
        return 1
    if _MXFP4.search(name) is not None:
        return 2 * itemsize
    return _FLOAT32_BYTES if name.endswith(_INT8_SCALE) else itemsize
