"""Whole models and images: planning one, writing one, and assembling a model from one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from serving.errors import ModelError
from serving.model.architecture import Architecture
from serving.model.assembly import Assembly
from serving.model.checkpoint import Checkpoint, CheckpointShapes, Int8Weight
from serving.model.forms import ProductForms
from serving.model.image import Image, Manifest, config_fingerprint, encode_start
from serving.model.image_bank import ImageBank, PlanningBank, WritingBank
from serving.model.model import Model
from serving.model.tensors import mtp_optional


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
    if (manifest.config, manifest.dtype) != (config_fingerprint(config), str(dtype).removeprefix("torch.")):
        raise ModelError("the model image is of another configuration or dtype")
    source = _NoCheckpoint(frozenset(manifest.optional))
    with torch.inference_mode():
        return Assembly(config, source, ImageBank(image, device, forms), dtype, device).model(range(*manifest.drafts))
