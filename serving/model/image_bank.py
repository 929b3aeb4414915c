"""The three banks around an image: planning it from shapes, writing it, and giving out what lies in it.

Theory of operation. The *planner* runs an assembly over tensors without bytes and so learns every place in advance;
only then is memory asked for, once and exactly. The *writer* runs the same assembly over the real checkpoint: each
tensor is built, packed, put into its place and dropped, so beside the image only the tensor in work takes memory. The
*image bank* runs it a third time, or in another process, where nothing is built at all.
"""

import torch
from torch import Tensor

from serving.errors import ModelError
from serving.model.heads import HeadLinear, PlainHeads
from serving.model.image import PLAIN, Entry, Image, Manifest, round_up
from serving.model.linear import Linear, LinearWeight, PlainLinear, PrepackedLinear, make_linear, pack, packs
from serving.model.shared_tensor import can_share_packed, packed_bytes, packed_layout, packed_over, plain_over
from serving.model.weight_bank import BuildLinear, BuildTensor

_META = torch.device("meta")
_CPU = torch.device("cpu")


class PlanningBank:
    """Finds out what an image will hold, from tensors of the meta device.

    Args:
        packed: whether products for the CPU are to be packed, where that is their fastest form.
    """

    def __init__(self, *, packed: bool) -> None:
        self._packed = packed and can_share_packed()
        self._entries: dict[str, Entry] = {}
        self._by_tensor: dict[int, Entry] = {}
        self._kept: list[Tensor] = []  # so that their ids stay theirs
        self._layouts: dict[bytes, int] = {}
        self._forms: dict[tuple[tuple[int, ...], torch.dtype], tuple[int, int]] = {}
        self._end = 0

    def tensor(self, name: str, build: BuildTensor) -> Tensor:
        """What `build` gives."""
        value = build()
        self._add(name, value, PLAIN, value.nbytes, None)
        return value

    def linear(self, name: str, build: BuildLinear) -> Linear:
        """A product that cannot be computed."""
        given = build()
        weight, bias = given.weight, given.bias
        bias_name = None if bias is None else name + ".bias"
        if bias is not None and bias_name is not None:
            self._add(bias_name, bias, PLAIN, bias.nbytes, None)
        layout, nbytes = PLAIN, weight.nbytes
        if self._packed and packs(_CPU, weight.dtype):
            layout, nbytes = self._packed_form(weight)
        self._add(name, weight, layout, nbytes, bias_name)
        return PlainLinear(weight, bias)

    def heads(self, name: str, build: BuildTensor) -> HeadLinear:
        """Products that cannot be computed."""
        return PlainHeads(self.tensor(name, build))

    def manifest(self, config: str, dtype: torch.dtype, drafts: range, optional: frozenset[str]) -> Manifest:
        """The plan, once a whole model was assembled."""
        return Manifest(
            config=config,
            dtype=_name(dtype),
            drafts=(drafts.start, drafts.stop),
            optional=tuple(sorted(optional)),
            entries=tuple(self._entries.values()),
            layouts=tuple(self._layouts),
            tensor_bytes=self._end,
        )

    def _add(self, name: str, value: Tensor, layout: int, nbytes: int, bias: str | None) -> None:
        assert name not in self._entries, f"{name} was asked for twice"
        twin = self._by_tensor.get(id(value)) if layout == PLAIN else None
        offset = self._end if twin is None else twin.offset
        entry = Entry(name, _name(value.dtype), tuple(value.shape), offset, nbytes, layout, bias)
        self._entries[name] = entry
        if twin is None:
            self._end = round_up(offset + nbytes)
        if layout == PLAIN:
            self._by_tensor[id(value)] = entry
            self._kept.append(value)

    def _packed_form(self, weight: Tensor) -> tuple[int, int]:
        """Number of the layout and bytes of a weight of this shape, found by packing zeros."""
        key = (tuple(weight.shape), weight.dtype)
        if key not in self._forms:
            packed = pack(torch.zeros(weight.shape, dtype=weight.dtype))
            layout = self._layouts.setdefault(packed_layout(packed), len(self._layouts))
            self._forms[key] = layout, packed_bytes(packed).nbytes
        return self._forms[key]


class WritingBank:
    """Puts what it is asked for into an image, and drops it elsewhere.

    Args:
        image: on writable memory that already holds header and manifest.
    Effects: writes the memory.
    """

    def __init__(self, image: Image) -> None:
        self._image = image
        self._written: set[int] = set()

    def tensor(self, name: str, build: BuildTensor) -> Tensor:
        """The tensor in its place.

        Raises: ModelError if it is not what was planned.
        """
        entry = self._image.entry(name)
        if entry.offset not in self._written:
            self._put(entry, build())
        return plain_over(self._image.bytes_of(entry), entry.shape, _dtype(entry))

    def linear(self, name: str, build: BuildLinear) -> Linear:
        """The product in its place.

        Raises: ModelError if it is not what was planned.
        """
        entry = self._image.entry(name)
        given = build()
        weight, bias = given.weight, given.bias
        if bias is not None and entry.bias is not None:
            self._put(self._image.entry(entry.bias), bias)
        if entry.offset not in self._written:
            self._put(entry, pack(weight) if entry.layout != PLAIN else weight)
        return PlainLinear(torch.empty(entry.shape, dtype=_dtype(entry), device=_META))

    def heads(self, name: str, build: BuildTensor) -> HeadLinear:
        """The products in their place.

        Raises: ModelError if they are not what was planned.
        """
        return PlainHeads(self.tensor(name, build))

    def _put(self, entry: Entry, value: Tensor) -> None:
        if tuple(value.shape) != entry.shape or value.dtype != _dtype(entry):
            raise ModelError(f"{entry.name} came out as {value.dtype} {list(value.shape)}, planned was {entry}")
        place = self._image.bytes_of(entry)
        if entry.layout == PLAIN:
            plain_over(place, entry.shape, value.dtype).copy_(value)
        else:
            source = packed_bytes(value)
            if source.nbytes != entry.nbytes or packed_layout(value) != self._image.manifest.layouts[entry.layout]:
                raise ModelError(f"{entry.name} was packed otherwise than planned; the number of threads changed")
            place[:] = source
        self._written.add(entry.offset)


class ImageBank:
    """Gives out what lies in an image; nothing is ever built.

    Args:
        device: the CPU: everything stays where it is, shared. Otherwise each tensor is copied to the device, once.
    """

    def __init__(self, image: Image, device: torch.device) -> None:
        self._image = image
        self._device = device
        self._copies: dict[tuple[int, str], Tensor] = {}

    def tensor(self, name: str, build: BuildTensor) -> Tensor:
        """The tensor.

        Raises: ModelError if the image lacks it.
        """
        return self._plain(self._image.entry(name))

    def linear(self, name: str, build: BuildLinear) -> Linear:
        """The product, on the image where it was packed before; else in this device's fastest form.

        Raises: ModelError if the image lacks it or torch cannot use its layout.
        """
        entry = self._image.entry(name)
        bias = None if entry.bias is None else self._plain(self._image.entry(entry.bias))
        if entry.layout == PLAIN:
            return make_linear(LinearWeight(self._plain(entry), bias))
        memory = self._image.bytes_of(entry)
        try:
            weight = packed_over(memory, entry.shape, _dtype(entry), self._image.manifest.layouts[entry.layout])
        except (OSError, AttributeError, RuntimeError) as error:
            raise ModelError(f"{name} of a model image cannot be used by this torch ({error})") from error
        return PrepackedLinear(weight, bias, memory)

    def heads(self, name: str, build: BuildTensor) -> HeadLinear:
        """The products.

        Raises: ModelError if the image lacks them.
        """
        return PlainHeads(self.tensor(name, build))

    def _plain(self, entry: Entry) -> Tensor:
        if entry.layout != PLAIN:
            raise ModelError(f"{entry.name} of a model image is packed where it should not be")
        here = plain_over(self._image.bytes_of(entry), entry.shape, _dtype(entry))
        if self._device.type == "cpu":
            return here
        key = (entry.offset, entry.dtype)
        if key not in self._copies:
            self._copies[key] = here.to(self._device)
        return self._copies[key]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(entry: Entry) -> torch.dtype:
    dtype = getattr(torch, entry.dtype)
    assert isinstance(dtype, torch.dtype)  # an image checks it when it is opened
    return dtype
