"""Loads a checkpoint folder as a model that is ready to compute."""

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from serving.errors import ModelError
from serving.model.architecture import Architecture, ExpertShape
from serving.model.assembly import Assembly
from serving.model.checkpoint import Checkpoint, Progress
from serving.model.config import read_architecture
from serving.model.dense_form import without_indexers
from serving.model.forms import ProductForms, TorchForms
from serving.model.image import ImageStore, awaited_image, image_key
from serving.model.image_bank import assemble_from, name_of, plan_image, write_image
from serving.model.model import Model
from serving.model.native.library import load as load_library
from serving.model.native.panel_layout import short_weights_pay
from serving.model.native.panels import PanelForms, WithoutExperts
from serving.model.parcel import lacks_weights, model_version, require_weights
from serving.model.tensors import model_tensors, mtp_layers, mtp_optional, mtp_tensors
from serving.model.weight_bank import FreshBank

DtypeName = Literal["auto", "float32", "bfloat16"]

logger = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_LAYER = re.compile(r"model\.layers\.(\d{1,9})\.")


def load_model(
    folder: str | Path,
    *,
    device: str = "cpu",
    dtype: DtypeName = "auto",
    progress: Progress | None = None,
    images: ImageStore | None = None,
    version: str = "",
    native: bool = False,
    coarse_drafts: bool = False,
    short: bool | None = None,
    routed_experts: bool = True,
    bf16_results: bool = False,
    indexers: bool = True,
) -> Model:
    """Load a checkpoint, draft layers included.

    With an image store the weights are in the store's memory, shared by all processes of the node that load the same
    model; only the first reads the checkpoint. If an image fails, the checkpoint is read as without a store.

    Args:
        folder: config.json and safetensors files, with or without an index.
        device: where to compute, `cpu` or `cuda[:n]`.
        dtype: of weights, activations and KV cache; `auto` = the configuration's (float16 becomes float32).
        progress: called after each tensor that is read, with (tensors read, tensors to read).
        images: store to read the weights from, or to write them to.
        version: identifies these weights among images; empty = from their content, see `parcel`.
        native: products as the native library's panels; CPU only.
        coarse_drafts: with `native`, draft layers in INT8: faster, with nearly the same acceptance.
        short: with `native`, bfloat16 weights in twelve bits per number if possible; None = if that is known to be
            faster (`Library.short_weights_pay`): with AMX, else if the last-level cache does not hold them all. Same
            results.
        bf16_results: see `Architecture.bf16_results`.
        indexers: False = without those of sparse attention, see `without_indexers`; always so with `native`.
        routed_experts: False = without a store, `AbsentPanels` replace routed experts, whose weights are not read.
    Raises: ModelError if the folder cannot be served, or the device, dtype or native library is not available.
    Effects: reads files, allocates memory on the device, may fill an image.
    """
    config = replace(read_architecture(folder), bf16_results=bf16_results)
    if native or not indexers:
        config = without_indexers(config)
    target, kind = _device(device), _dtype(config, dtype)
    forms = product_forms(Path(folder), target, native=native, coarse_drafts=coarse_drafts, short=short)
    with torch.inference_mode():
        if images is not None:
            key = image_key(config, version or model_version(folder), name_of(kind), target.type, forms.fingerprint())
            model = _through_image(images, key, config, Path(folder), kind, target, forms, progress)
            if model is not None:
                return model
        checkpoint, drafts = open_checkpoint(config, Path(folder), progress)
        bank = FreshBank(forms) if routed_experts else WithoutExperts(FreshBank(forms))
        return Assembly(config, checkpoint, bank, kind, target).model(drafts)


def _through_image(
    images: ImageStore,
    key: str,
    config: Architecture,
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    forms: ProductForms,
    progress: Progress | None,
) -> Model | None:
    """The model on an image, which is created first if missing; None if that is impossible."""
    image = images.load(key)
    if image is None and lacks_weights(folder):
        image = awaited_image(images, key)
    if image is None:
        try:
            stored = store_image(images, key, config, folder, dtype, forms, progress)
        except ModelError as error:
            logger.warning("the weights could not be put into the pool (%s); reading the checkpoint alone", error)
            return None
        image = images.load(key) if stored else None
    if image is None:
        return None
    try:
        model = assemble_from(image.data, config, dtype, device, forms)
    except ModelError as error:
        logger.warning("an image of the weights in the pool cannot be used (%s); reading the checkpoint", error)
        image.distrust()
        return None
    if device.type != "cpu":
        image.release()
    return model


def store_image(
    images: ImageStore,
    key: str,
    config: Architecture,
    folder: Path,
    dtype: torch.dtype,
    forms: ProductForms,
    progress: Progress | None = None,
) -> bool:
    """Write a checkpoint's image, or wait for another process that does. Returns: whether the store has it now.

    Raises: ModelError if the checkpoint cannot be read.
    """
    checkpoint, drafts = open_checkpoint(config, folder, progress)
    with torch.inference_mode():
        plan = plan_image(config, checkpoint, drafts, dtype, forms)
        return images.store(key, plan.nbytes, lambda memory: write_image(plan, config, checkpoint, memory))


def open_checkpoint(config: Architecture, folder: Path, progress: Progress | None) -> tuple[Checkpoint, range]:
    """The validated checkpoint and its draft layers. Raises: ModelError, also if the weights are on another host."""
    require_weights(folder)
    checkpoint = Checkpoint(folder, fp8_block=config.quantization.fp8_block, progress=progress)
    _require_as_many(config, checkpoint)
    required, optional = model_tensors(config), mtp_optional(config)
    drafts = mtp_layers(config) if _has_drafts(config, checkpoint) else range(0)
    if drafts:
        required |= mtp_tensors(config)
    ignored = {name for name in checkpoint.names if _ignorable(config, name, drafts=bool(drafts))}
    checkpoint.check(required, optional, ignored)
    return checkpoint, drafts


def product_forms(
    folder: Path, device: torch.device, *, native: bool, coarse_drafts: bool = False, short: bool | None = None
) -> ProductForms:
    """Forms of a model's products; arguments as for `load_model`.


    Raises: ModelError if there is no native library, or `folder` cannot be read.
    """
    if not native:
        return TorchForms(device)
    library = load_library() if device.type == "cpu" else None
    if library is None:
        raise ModelError(f"there is no native library for {device.type} here: load the model without it")
    if short is None:
        short = short_weights_pay(library, folder)
    return PanelForms(library, coarse_drafts=coarse_drafts, short=short)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"device {name!r} is unknown: use cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError("device cuda is not available here: use cpu, or install a CUDA build of torch")
    if device.type not in ("cpu", "cuda"):
        raise ModelError(f"device {name!r} is not supported: use cpu or cuda")
    return device


def _dtype(config: Architecture, name: str) -> torch.dtype:
    wanted = config.dtype if name == "auto" else name
    if wanted not in _DTYPES:
        raise ModelError(f"dtype {name!r} is not supported: use auto, float32 or bfloat16")
    return _DTYPES[wanted]


def _require_as_many(config: Architecture, checkpoint: Checkpoint) -> None:
    """Require at least as many tensors in a checkpoint as layers and experts, before their names are listed.

    A list with a malformed configuration's length could exhaust memory.
    Raises: ModelError if there are fewer tensors than layers or experts.
    """
    there = len(checkpoint.names)
    layers, drafts = len(config.layers), len(config.drafts)
    experts = sum(layer.feed.experts for layer in config.layers if isinstance(layer.feed, ExpertShape))
    for key, count in (("layers", layers), ("draft layers", drafts), ("experts", experts)):
        if count > there:
            raise ModelError(f"{checkpoint.folder}: config.json means {count} {key}, and there are {there} tensors")


def _has_drafts(config: Architecture, checkpoint: Checkpoint) -> bool:
    """Whether any draft weight is present: exporters often keep the configuration's count but drop the layers."""
    return any(_layer_of(name) in mtp_layers(config) for name in checkpoint.names)


def _ignorable(config: Architecture, name: str, *, drafts: bool) -> bool:
    """Whether a tensor may be present but is not needed."""
    if name.endswith("rotary_emb.inv_freq") or (config.tie_word_embeddings and name == "lm_head.weight"):
        return True
    if any(part in name for part in config.unused):
        return True
    return not drafts and _layer_of(name) >= len(config.layers)


def _layer_of(name: str) -> int:
    match = _LAYER.match(name)
    return int(match.group(1)) if match else -1
