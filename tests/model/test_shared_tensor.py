"""Tensors over existing memory: no copy, the same products, and the memory stays as long as they do."""

import ctypes
import gc
import mmap
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from serving.model import shared_tensor
from serving.model.image import address_of
from serving.model.linear import PrepackedLinear, pack, packs
from serving.model.shared_tensor import (
    can_share_packed,
    packed_bytes,
    packed_layout,
    packed_over,
    plain_over,
)

GENERATOR = torch.Generator().manual_seed(2)


def copied(data: memoryview) -> tuple[memoryview, mmap.mmap]:
    """A copy of the bytes, and its owner."""
    memory = mmap.mmap(-1, data.nbytes)
    view = memoryview(memory)
    view[:] = data
    return view, memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(512, 384), (320, 64), (33, 2816), (7, 5), (1, 64)])
def test_a_packed_weight_over_a_copy_of_its_bytes(shape: tuple[int, int], dtype: torch.dtype) -> None:
    if not packs(torch.device("cpu"), dtype):
        pytest.skip("this processor has no kernels for it")
    weight = torch.randn(shape, generator=GENERATOR).to(dtype)
    rows = torch.randn(9, shape[1], generator=GENERATOR).to(dtype)
    packed = pack(weight)
    memory, _ = copied(packed_bytes(packed))
    linear = PrepackedLinear(packed_over(memory, shape, dtype, packed_layout(packed)), None, memory)
    assert (linear.out_features, linear.in_features) == shape
    assert torch.equal(linear(rows), PrepackedLinear(packed)(rows))
    assert torch.equal(linear(rows[:1]), PrepackedLinear(packed)(rows)[:1])
    memory[:] = bytes(len(memory))
    assert not linear(rows).any()  # it is not a copy


def test_a_linear_keeps_the_memory_of_its_weight() -> None:
    packed = pack(torch.randn(64, 32, generator=GENERATOR))
    memory, owner = copied(packed_bytes(packed))
    linear = PrepackedLinear(packed_over(memory, (64, 32), torch.float32, packed_layout(packed)), None, memory)
    gone = weakref.ref(owner)
    del memory, owner
    gc.collect()
    assert gone() is not None
    linear(torch.ones(1, 32))
    del linear
    gc.collect()
    assert gone() is None


@pytest.fixture(autouse=True, scope="module")
def few_objects() -> Iterator[None]:
    """`gc.collect` only examines objects of these tests, not all objects of the process."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_plain_tensor_is_a_view_of_read_only_memory_too(dtype: torch.dtype) -> None:
    values = torch.randn(4, 6, generator=GENERATOR).to(dtype)
    memory, owner = copied(memoryview(values.view(torch.uint8).numpy().tobytes()))
    tensor = plain_over(memory.toreadonly(), (4, 6), dtype)
    assert torch.equal(tensor, values)
    assert tensor.data_ptr() == address_of(memory)
    gone = weakref.ref(owner)
    del memory, owner
    part = tensor[1:2]
    del tensor
    gc.collect()
    assert torch.equal(part, values[1:2])
    del part
    gc.collect()
    assert gone() is None


def test_this_torch_can_and_layouts_depend_on_shapes_only() -> None:
    zeros, ones = pack(torch.zeros(96, 64)), pack(torch.ones(96, 64))
    assert packed_layout(zeros) == packed_layout(ones)
    assert packed_layout(zeros) != packed_layout(pack(torch.zeros(64, 96)))
    assert can_share_packed()


def no_library() -> ctypes.CDLL:
    raise OSError("no such library")


class _Refuses:
    """A library whose every function reports a failure."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_arguments: 1


@pytest.mark.parametrize("library", [no_library, object, _Refuses])
def test_a_torch_that_cannot(monkeypatch: pytest.MonkeyPatch, library: Callable[[], Any]) -> None:
    monkeypatch.setattr(shared_tensor, "_library", library)
    assert not can_share_packed.__wrapped__()
    if library is _Refuses:
        with pytest.raises(RuntimeError, match="could not lay"):
            packed_over(memoryview(bytes(64)), (4, 4), torch.float32, b"")
