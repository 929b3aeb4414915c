"""Stored forms of a model's products: one object chooses the form for all of them, freshly loaded or from an image.

A form is opaque to its storage: a number of bytes and a description (`layout`) by which the same form recognises them.
A product without such a form is stored in an image as plain tensors and converted when loaded.
"""

import hashlib
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from serving.errors import ModelError
from serving.model.linear import HeadLinear, Linear, LinearWeight, PlainHeads, PrepackedLinear, make_linear, pack, packs
from serving.model.shared_tensor import can_share_packed, packed_bytes, packed_layout, packed_over

_PROBES = ((64, 64), (512, 384), (33, 2816))


@dataclass(frozen=True, slots=True)
class PackedShape:
    """Sizes of a packed product, known before it is made."""

    layout: bytes
    nbytes: int


@dataclass(frozen=True, slots=True)
class StoredProduct:
    """A packed product in memory.

    Args:
        shape: of the dense weight: `[out_features, in_features]`, or of heads `[heads, in_features, out_features]`.
        bias: `[out_features]`, floating point.
    """

    memory: memoryview
    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: bytes
    bias: Tensor | None


class ProductForms(Protocol):
    """Chooses how each weight matrix of a model (a product) is stored and multiplied on one device.

    Args:
        coarse_drafts: whether products of draft layers are INT8.
        w8a16_inputs: most inputs of a product that may be W8A16; 0 = all such products are in floating point.
    """

    coarse_drafts: bool
    w8a16_inputs: int

    def fingerprint(self) -> str:
        """Identifies all that packed bytes depend on: processes with equal fingerprints can use each other's bytes."""
        ...

    def linear(self, given: LinearWeight) -> Linear:
        """A weight matrix in its form, in memory of this process."""
        ...

    def heads(self, given: LinearWeight) -> HeadLinear:
        """One weight matrix per head, given as `[heads, in_features, out_features]`, in memory of this process."""
        ...

    def packed_shape(self, given: LinearWeight) -> PackedShape | None:
        """Packed form of this product or these heads (three axes); None = they stay plain.

        Args:
            given: values are ignored; the tensors may be on the meta device.
        """
        ...

    def write(self, given: LinearWeight, shape: PackedShape, memory: memoryview) -> None:
        """Pack into memory of `shape.nbytes` bytes at a multiple of 64.

        Raises: ModelError if the result does not match `packed_shape`.
        Effects: writes the memory.
        """
        ...

    def over(self, stored: StoredProduct) -> Linear:
        """A product, or heads, on memory that `write` filled; it keeps the memory alive.

        Raises: ModelError if the bytes cannot be used here.
        """
        ...


class TorchForms:
    """Torch's forms: oneDNN's blocked layout on the CPU if it can be in shared memory, else plain.

    Args:
        device: where products are computed.
    """

    coarse_drafts = False
    w8a16_inputs = 0

    def __init__(self, device: torch.device) -> None:
        self._cpu = device.type == "cpu"
        self._shapes: dict[tuple[tuple[int, ...], torch.dtype], PackedShape] = {}

    def fingerprint(self) -> str:
        """Torch's build, and on the CPU its kind, the number of threads, and this process's way of packing."""
        torch_build = f"torch-{torch.__version__}"
        if not self._cpu or not can_share_packed():
            return torch_build
        capability = torch.backends.cpu.get_cpu_capability()
        return f"{torch_build}/{capability}/threads-{torch.get_num_threads()}/{_packing()}"

    def linear(self, given: LinearWeight) -> Linear:
        """The fastest exact form for the weight's device and dtype."""
        return make_linear(given)

    def heads(self, given: LinearWeight) -> HeadLinear:
        """Returns the heads unchanged."""
        return PlainHeads(given.weight)

    def packed_shape(self, given: LinearWeight) -> PackedShape | None:
        """The shape, determined by packing zeros."""
        weight = given.weight
        if weight.dim() != 2 or not (self._cpu and packs(torch.device("cpu"), weight.dtype) and can_share_packed()):
            return None
        key = (tuple(weight.shape), weight.dtype)
        if key not in self._shapes:
            packed = pack(torch.zeros(weight.shape, dtype=weight.dtype))
            self._shapes[key] = PackedShape(packed_layout(packed), packed_bytes(packed).nbytes)
        return self._shapes[key]

    def write(self, given: LinearWeight, shape: PackedShape, memory: memoryview) -> None:
        """Pack with oneDNN, then copy."""
        packed = pack(given.weight)
        source = packed_bytes(packed)
        if packed_layout(packed) != shape.layout or source.nbytes != memory.nbytes:
            raise ModelError("a product was not packed as planned; the number of threads changed")
        memory[:] = source

    def over(self, stored: StoredProduct) -> Linear:
        """The product, through torch's interface for compiled models."""
        try:
            weight = packed_over(stored.memory, stored.shape, stored.dtype, stored.layout)
        except (OSError, AttributeError, RuntimeError) as error:
            raise ModelError(f"a packed product cannot be used by this torch ({error})") from error
        return PrepackedLinear(weight, stored.bias, stored.memory)


def _packing() -> str:
    """Fingerprint of how this process packs: CPUs of one capability may still differ in matrix extensions."""
    digest = hashlib.blake2b(digest_size=8)
    for dtype in (torch.float32, torch.bfloat16):
        if packs(torch.device("cpu"), dtype):
            digest.update(str(dtype).encode())
            for shape in _PROBES:
                digest.update(packed_layout(pack(torch.zeros(shape, dtype=dtype))))
    return digest.hexdigest()
