"""Tests matrix tiles before they are used: compares the same products with and without them.

The AMX kernels were written and tested on a software model of the tiles. On a processor with real tiles, two small
products cost less than a millisecond, once per process, and a wrong token would cost more.
"""

import ctypes

import numpy as np

from serving.model.native.layout import Form, NativeLinear

_OUT, _IN, _ROWS = 96, 160, 21
_TOLERANCE = 0.02
"""Relative to the largest value: bfloat16 products summed in another order, then rounded."""


def tiles_agree(library: ctypes.CDLL) -> bool:
    """Whether products on tiles equal those of the portable kernels; the tiles are in use afterwards.

    Args:
        library: the functions, their types declared.
    """
    rng = np.random.default_rng(0)
    floats = (rng.standard_normal((_OUT, _IN), np.float32).view(np.uint32) >> 16).astype(np.uint16)
    bytes_ = rng.integers(-127, 128, (_OUT, _IN), np.int8)
    x = (rng.standard_normal((_ROWS, _IN), np.float32).view(np.uint32) >> 16).astype(np.uint16)
    scale = rng.random(_OUT, np.float32)
    for form, weight in ((Form.BF16, floats), (Form.INT8, bytes_)):
        plain = _product(library, b"portable", form, weight, scale, x)
        tiles = _product(library, b"amx", form, weight, scale, x)
        error = float(np.abs(tiles - plain).max())
        if not error <= (_TOLERANCE if form is Form.BF16 else 0.0) * float(np.abs(plain).max()):
            return False
    return True


def _product(
    library: ctypes.CDLL, name: bytes, form: Form, weight: np.ndarray, scale: np.ndarray, x: np.ndarray
) -> np.ndarray:
    """`[rows, out] float32`; NaN everywhere if the library declines."""
    packed = np.zeros(library.cm_packed_bytes(_OUT, _IN, 1, form) + 64, np.uint8)
    start = packed.ctypes.data + -packed.ctypes.data % 64
    y = np.zeros((_ROWS, _OUT), np.uint16)
    linear = NativeLinear(out_features=_OUT, in_features=_IN, groups=1, form=form, packed=start, bias=None)
    given = scale.ctypes.data if form is Form.INT8 else None
    failed = (
        library.cm_use_instructions(name)
        or library.cm_pack(weight.ctypes.data, given, _OUT, _IN, 1, form, start)
        or library.cm_apply(ctypes.byref(linear), x.ctypes.data, _ROWS, Form.BF16, y.ctypes.data, 1)
    )
    if failed:
        return np.full((_ROWS, _OUT), np.nan, np.float32)
    return (y.astype(np.uint32) << 16).view(np.float32)
