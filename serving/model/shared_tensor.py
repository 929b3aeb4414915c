"""Tensors over existing memory, shared and possibly read-only, without a copy.

A plain tensor is a view. A weight packed for oneDNN is opaque to torch's ordinary functions, but torch's C interface
for ahead-of-time compiled models can create one over existing bytes, given the description of their layout.
That interface is versioned by name and may change: `can_share_packed` tries it once, on a small product.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from serving.model.image import address_of
from serving.model.linear import PrepackedLinear, pack, packs


def plain_over(memory: memoryview, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A dense tensor on `memory`, which it keeps alive. Do not write to it, since the memory may be read-only.

    Args:
        memory: contiguous, exactly as long as the tensor, not empty.
    """
    # Not through Python's buffer interface: torch warns about read-only buffers and has no read-only tensors.
    span: Any = (ctypes.c_char * memory.nbytes).from_address(address_of(memory))
    span.memory = memory
    return torch.frombuffer(span, dtype=dtype).view(tuple(shape))


def packed_over(memory: memoryview, shape: Sequence[int], dtype: torch.dtype, layout: bytes) -> Tensor:
    """A packed weight on `memory`. The caller keeps the memory alive: the tensor does not.

    Args:
        memory: the bytes from `packed_bytes`.
        shape: `[out_features, in_features]` of the plain weight.
        layout: from `packed_layout`, by the same torch on the same kind of CPU.
    Raises: RuntimeError if torch refuses.
    """
    lib = _library()
    handle = ctypes.c_void_p()
    numbers = ctypes.c_int64 * len(shape)
    failed = lib.aoti_torch_create_tensor_from_blob_v2(
        ctypes.c_void_p(address_of(memory)),
        ctypes.c_int64(len(shape)),
        numbers(*shape),
        numbers(shape[1], 1),
        ctypes.c_int64(0),
        ctypes.c_int32(_dtype_code(lib, dtype)),
        ctypes.c_int32(lib.aoti_torch_device_type_cpu()),
        ctypes.c_int32(0),
        ctypes.byref(handle),
        ctypes.c_int32(lib.aoti_torch_layout__mkldnn()),
        layout,
        ctypes.c_int64(len(layout)),
    )
    if failed:
        raise RuntimeError("torch could not lay a packed tensor over existing memory")
    return torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(_capsule(handle, None, None))


def packed_bytes(packed: Tensor) -> memoryview:
    """The memory of a packed weight, valid while the tensor lives."""
    start, nbytes = torch.ops.mkldnn.data_ptr(packed), torch.ops.mkldnn._nbytes(packed)
    return memoryview((ctypes.c_char * nbytes).from_address(start)).cast("B")


def packed_layout(packed: Tensor) -> bytes:
    """oneDNN's description of the order of a packed weight's bytes; independent of the values."""
    return bytes(torch.ops.mkldnn._get_mkldnn_serialized_md(packed).numpy().tobytes())


@cache
def can_share_packed() -> bool:
    """Whether `packed_over` gives products with the same bits on this machine.

    Effects: computes one small product, once per process.
    """
    if not packs(torch.device("cpu"), torch.float32):
        return False
    generator = torch.Generator().manual_seed(0)
    rows, weight = torch.randn(3, 64, generator=generator), torch.randn(32, 64, generator=generator)
    packed = pack(weight)
    try:
        memory = packed_bytes(packed)
        again = packed_over(memory, weight.shape, weight.dtype, packed_layout(packed))
        lies_there = torch.ops.mkldnn.data_ptr(again) == address_of(memory)
    except (OSError, AttributeError, RuntimeError):
        return False
    return lies_there and torch.equal(PrepackedLinear(again)(rows), PrepackedLinear(packed)(rows))


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))


def _dtype_code(lib: ctypes.CDLL, dtype: torch.dtype) -> int:
    return int(getattr(lib, f"aoti_torch_dtype_{str(dtype).removeprefix('torch.')}")())


_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
