"""Three weight banks of an image: planning it from shapes, writing it, and reading from it.

Theory of operation. The *planner* runs an assembly over tensors without data and thereby determines every offset in
advance; then exactly that much memory is requested once. The *writer* runs the same assembly over the real checkpoint:
each tensor is built, packed, written and dropped, so only the current tensor takes memory in addition to the image. The
*image bank* runs it a third time, possibly in another process, without building any tensor.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from serving.errors import ModelError
from serving.model.architecture import Architecture
from serving.model.assembly import Assembly
from serving.model.checkpoint import Checkpoint, CheckpointShapes, Int8Weight
from serving.model.forms import PackedShape, ProductForms, StoredProduct
from serving.model.image import PLAIN, Image, ImageEntry, Manifest, config_fingerprint, encode_start, round_up
from serving.model.linear import HeadLinear, Linear, LinearWeight, PlainHeads, PlainLinear
from serving.model.model import Model
from serving.model.shared_tensor import plain_over
from serving.model.tensors import mtp_optional
from serving.model.weight_bank import BuildLinear, BuildTensor

_META = torch.device("meta")


class PlanningBank:
    """Determines the contents of an image from tensors on the meta device.

    Args:
        forms: the forms of its products.
    """

    def __init__(self, forms: ProductForms) -> None:
        self._product_forms = forms
        self.coarse_drafts = forms.coarse_drafts
        self.w8a16_inputs = forms.w8a16_inputs
        self._entries: dict[str, ImageEntry] = {}
        self._by_tensor: dict[int, ImageEntry] = {}
        self._kept: list[Tensor] = []  # keeps their ids unique
        self._layouts: dict[bytes, int] = {}
        self._end = 0

    def tensor(self, name: str, build: BuildTensor) -> Tensor:
        """Returns the result of `build`."""
        value = build()
        self._add_plain(name, value)
        return value

    def linear(self, name: str, build: BuildLinear) -> Linear:
        """A product that cannot be computed."""
        given = build()
        self._add_product(name, given)
        return PlainLinear(given.weight, given.bias)

    def heads(self, name: str, build: BuildLinear) -> HeadLinear:
        """Products that cannot be computed."""
        given = build()
        self._add_product(name, given)
        return PlainHeads(given.weight)

    def manifest(self, config: str, dtype: torch.dtype, drafts: range, optional: frozenset[str]) -> Manifest:
        """The plan, after the assembly of a whole model."""
        return Manifest(
            config=config,
            dtype=name_of(dtype),
            drafts=(drafts.start, drafts.stop),
            optional=tuple(sorted(optional)),
            entries=tuple(self._entries.values()),
            layouts=tuple(self._layouts),
            tensor_bytes=self._end,
        )

    def _add_product(self, name: str, given: LinearWeight) -> None:
        bias = None if given.bias is None else self._add_plain(name + ".bias", given.bias)
        shape = self._product_forms.packed_shape(given)
        if shape is None:
            scale = None if given.scale is None else self._add_plain(name + ".scale", given.scale)
            self._add_plain(name, given.weight, bias, scale)
            return
        layout = self._layouts.setdefault(shape.layout, len(self._layouts))
        weight = given.weight
        self._add(ImageEntry(name, name_of(weight.dtype), tuple(weight.shape), self._end, shape.nbytes, layout, bias))

    def _add_plain(self, name: str, value: Tensor, bias: str | None = None, scale: str | None = None) -> str:
        """Add a tensor unchanged; one that is already present is stored once."""
        twin = self._by_tensor.get(id(value))
        offset = self._end if twin is None else twin.offset
        entry = ImageEntry(name, name_of(value.dtype), tuple(value.shape), offset, value.nbytes, PLAIN, bias, scale)
        self._add(entry)
        self._by_tensor[id(value)] = entry
        self._kept.append(value)
        return name

    def _add(self, entry: ImageEntry) -> None:
        assert entry.name not in self._entries, f"{entry.name} was requested twice"
        self._entries[entry.name] = entry
        if entry.offset == self._end:
            self._end = round_up(entry.offset + entry.nbytes)


class WritingBank:
    """Writes each requested tensor into an image and frees its other memory.

    Args:
        image: on writable memory that already contains header and manifest.
        forms: those of the plan.
    Effects: writes the memory.
    """

    def __init__(self, image: Image, forms: ProductForms) -> None:
        self._image = image
        self._forms = forms
        self.coarse_drafts = forms.coarse_drafts
        self.w8a16_inputs = forms.w8a16_inputs
        self._written: set[int] = set()

    def tensor(self, name: str, build: BuildTensor) -> Tensor:
        """The tensor at its place in the image.

        Raises: ModelError if it differs from the plan.
        """
        entry = self._image.entry(name)
        if entry.offset not in self._written:
            self._put(entry, build())
        return plain_over(self._image.bytes_of(entry), entry.shape, _dtype(entry))

    def linear(self, name: str, build: BuildLinear) -> Linear:
        """The product at its place in the image.

        Raises: ModelError if it differs from the plan.
        """
        return PlainLinear(self._put_product(name, build()))

    def heads(self, name: str, build: BuildLinear) -> HeadLinear:
        """The products at their place in the image.

        Raises: ModelError if they differ from the plan.
        """
        return PlainHeads(self._put_product(name, build()))

    def _put_product(self, name: str, given: LinearWeight) -> Tensor:
        """A tensor of the weight's shape without bytes."""
        entry = self._image.entry(name)
        for part, partner in ((given.bias, entry.bias), (given.scale, entry.scale)):
            if part is not None and partner is not None:
                self._put(self._image.entry(partner), part)
        if entry.layout != PLAIN:
            _check_planned(entry, given.weight)
            shape = PackedShape(self._image.manifest.layouts[entry.layout], entry.nbytes)
            self._forms.write(given, shape, self._image.bytes_of(entry))
        elif entry.offset not in self._written:
            self._put(entry, given.weight)
        return torch.empty(entry.shape, dtype=_dtype(entry), device=_META)

    def _put(self, entry: ImageEntry, value: Tensor) -> None:
        _check_planned(entry, value)
        plain_over(self._image.bytes_of(entry), entry.shape, value.dtype).copy_(value)
        self._written.add(entry.offset)


class ImageBank:
    """Provides tensors from an image without building any.

    Args:
        device: on the CPU all tensors stay in place, shared; otherwise each is copied to the device once.
        forms: those of the plan.
    """

    def __init__(self, image: Image, device: torch.device, forms: ProductForms) -> None:
        self._image = image
        self._device = device
        self._forms = forms
        self.coarse_drafts = forms.coarse_drafts
        self.w8a16_inputs = forms.w8a16_inputs
        self._copies: dict[tuple[int, str], Tensor] = {}

    def tensor(self, name: str, build: BuildTensor) -> Tensor:
        """The tensor.

        Raises: ModelError if the image lacks it.
        """
        return self._plain(name)

    def linear(self, name: str, build: BuildLinear) -> Linear:
        """The product: on the image if it was packed there, else in its form on this device.

        Raises: ModelError if the image lacks it or its form cannot be used here.
        """
        entry = self._image.entry(name)
        if entry.layout != PLAIN:
            return self._over(entry)
        scale = None if entry.scale is None else self._plain(entry.scale)
        return self._forms.linear(LinearWeight(self._plain(name), self._bias(entry), scale))

    def heads(self, name: str, build: BuildLinear) -> HeadLinear:
        """The products, likewise.

        Raises: ModelError if the image lacks them or their form cannot be used here.
        """
        entry = self._image.entry(name)
        return self._over(entry) if entry.layout != PLAIN else self._forms.heads(LinearWeight(self._plain(name)))

    def _over(self, entry: ImageEntry) -> Linear:
        layout = self._image.manifest.layouts[entry.layout]
        memory = self._image.bytes_of(entry)
        return self._forms.over(StoredProduct(memory, entry.shape, _dtype(entry), layout, self._bias(entry)))

    def _bias(self, entry: ImageEntry) -> Tensor | None:
        return None if entry.bias is None else self._plain(entry.bias)

    def _plain(self, name: str) -> Tensor:
        entry = self._image.entry(name)
        if entry.layout != PLAIN:
            raise ModelError(f"{entry.name} of a model image is packed where it should not be")
        here = plain_over(self._image.bytes_of(entry), entry.shape, _dtype(entry))
        if self._device.type == "cpu":
            return here
        key = (entry.offset, entry.dtype)
        if key not in self._copies:
            self._copies[key] = here.to(self._device)
        return self._copies[key]


def _check_planned(entry: ImageEntry, value: Tensor) -> None:
    if tuple(value.shape) != entry.shape or value.dtype != _dtype(entry):
        raise ModelError(f"{entry.name} is {value.dtype} {list(value.shape)}, planned was {entry}")


def name_of(dtype: torch.dtype) -> str:
    """The dtype as images name it."""
    return str(dtype).removeprefix("torch.")


def _dtype(entry: ImageEntry) -> torch.dtype:
    dtype = getattr(torch, entry.dtype)
    assert isinstance(dtype, torch.dtype)  # an image checks it when it is opened
    return dtype


# Whole models and images: planning one, writing one, and assembling a model from one.


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """An image before it has memory."""

    manifest: Manifest
    start: bytes
    """Header and manifest."""
    dtype: torch.dtype
    forms: ProductForms

    @property
    def nbytes(self) -> int:
        """Size of the whole image."""
        return len(self.start) + self.manifest.tensor_bytes


class _NoCheckpoint:
    """Replaces a checkpoint: reports which optional tensors it had."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    @property
    def names(self) -> frozenset[str]:
        return self._names

    def tensor(self, name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        raise AssertionError(f"{name} was to be read although the model lies in an image")

    def int8(self, name: str, device: torch.device) -> Int8Weight | None:
        raise AssertionError(f"{name} was to be read although the model lies in an image")


def plan_image(
    config: Architecture, checkpoint: Checkpoint, drafts: range, dtype: torch.dtype, forms: ProductForms
) -> ImagePlan:
    """Plan of an image of this checkpoint, determined from shapes alone.

    Args:
        drafts: draft layers to include.
        forms: the forms of its products.
    """
    bank = PlanningBank(forms)
    Assembly(config, CheckpointShapes(checkpoint), bank, dtype, torch.device("meta")).model(drafts)
    optional = checkpoint.names & mtp_optional(config).keys()
    manifest = bank.manifest(config_fingerprint(config), dtype, drafts, optional)
    return ImagePlan(manifest, encode_start(manifest), dtype, forms)


def write_image(plan: ImagePlan, config: Architecture, checkpoint: Checkpoint, memory: memoryview) -> None:
    """Read the checkpoint into an image.

    Args:
        memory: `plan.nbytes` writable bytes, at a multiple of 64.
    Raises: ModelError if the checkpoint cannot be read or differs from the plan.
    Effects: writes the memory.
    """
    memory[: len(plan.start)] = plan.start
    bank = WritingBank(Image(memory), plan.forms)
    with torch.inference_mode():
        Assembly(config, checkpoint, bank, plan.dtype, torch.device("cpu")).model(range(*plan.manifest.drafts))


def assemble_from(
    data: memoryview, config: Architecture, dtype: torch.dtype, device: torch.device, forms: ProductForms
) -> Model:
    """A model on an image. On the CPU its weights are the image's own bytes, which it keeps alive.

    Args:
        data: the image; may be longer, may be read-only.
        forms: those of the plan.
    Raises: ModelError if the image is damaged or belongs to another model.
    """
    image = Image(data)
    manifest = image.manifest
    if (manifest.config, manifest.dtype) != (config_fingerprint(config), name_of(dtype)):
        raise ModelError("the model image is of another configuration or dtype")
    source = _NoCheckpoint(frozenset(manifest.optional))
    with torch.inference_mode():
        return Assembly(config, source, ImageBank(image, device, forms), dtype, device).model(range(*manifest.drafts))
