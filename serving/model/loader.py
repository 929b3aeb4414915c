"""From a checkpoint folder to a model ready to compute."""

import re
from pathlib import Path
from typing import Literal

import torch

from serving.errors import ModelError
from serving.model.assembly import Assembly
from serving.model.checkpoint import Checkpoint, Progress
from serving.model.config import ModelConfig
from serving.model.model import DeepseekModel
from serving.model.tensors import model_tensors, mtp_layers, mtp_optional, mtp_tensors

DtypeName = Literal["auto", "float32", "bfloat16"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def load_model(
    folder: str | Path, *, device: str = "cpu", dtype: DtypeName = "auto", progress: Progress | None = None
) -> DeepseekModel:
    """Load a DeepSeek-V2/V3-style checkpoint, draft layers included.

    Args:
        folder: config.json and safetensors files, with or without an index.
        device: where to compute, `cpu` or `cuda[:n]`.
        dtype: of weights, activations and KV cache; `auto` = as the configuration says (float16 becomes float32).
        progress: called after each tensor with (tensors read, tensors to read).
    Raises: ModelError if the folder cannot be served or the device or dtype is not there.
    Effects: reads files, allocates memory on the device.
    """
    config = ModelConfig.from_folder(folder)
    target, kind = _device(device), _dtype(config, dtype)
    checkpoint = Checkpoint(Path(folder), fp8_block=config.fp8_block, progress=progress)
    required, optional = model_tensors(config), mtp_optional(config)
    drafts = mtp_layers(config) if _has_drafts(config, checkpoint) else range(0)
    if drafts:
        required |= mtp_tensors(config)
    ignored = {name for name in checkpoint.names if _ignorable(config, name, drafts=bool(drafts))}
    checkpoint.check(required, optional, ignored)
    with torch.inference_mode():
        return Assembly(config, checkpoint, kind, target).model(drafts)


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


def _dtype(config: ModelConfig, name: str) -> torch.dtype:
    wanted = config.dtype if name == "auto" else name
    if wanted not in _DTYPES:
        raise ModelError(f"dtype {name!r} is not supported: use auto, float32 or bfloat16")
    return _DTYPES[wanted]


def _has_drafts(config: ModelConfig, checkpoint: Checkpoint) -> bool:
    """Whether any draft weight is there: exporters often keep the configuration's count and drop the layers."""
    return any(_layer_of(name) in mtp_layers(config) for name in checkpoint.names)


def _ignorable(config: ModelConfig, name: str, *, drafts: bool) -> bool:
    """Tensors that may be present and are not needed."""
    if name.endswith("rotary_emb.inv_freq") or (config.tie_word_embeddings and name == "lm_head.weight"):
        return True
    return not drafts and _layer_of(name) >= config.num_hidden_layers


def _layer_of(name: str) -> int:
    match = _LAYER.match(name)
    return int(match.group(1)) if match else -1
