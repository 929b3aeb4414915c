"""A random checkpoint in INT8, each matrix rounded directly: the quantiser's format, without its optimisations."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from serving.model.quantization import INT8_ACTIVATIONS, INT8_FORMAT, INT8_METHOD, INT8_WEIGHTS
from serving.tools.quantize.quantize_run import quantised_config
from tests.model.random_checkpoint import write_random_checkpoint

OUT = "model.layers.0.self_attn.o_proj.weight"
QUANTISED = (
    *("q_a_proj", "q_b_proj", "kv_a_proj", "kv_b_proj", "q_proj", "k_proj", "v_proj", "o_proj"),
    *("gate_proj", "up_proj", "down_proj", "lm_head", "eh_proj"),
)


def round_to_int8(folder: Path) -> Path:
    """Round the weights of a folder with one file.

    Returns: the folder.
    Effects: every `*_proj.weight` becomes int8 with a scale per row, and config.json declares it.
    """
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        weight = tensors[name].float()
        scale = weight.abs().amax(1, keepdim=True).clamp_min(1e-9) / 127
        tensors[name] = (weight / scale).round().to(torch.int8)
        tensors[name.removesuffix("weight") + "weight_scale"] = scale
    save_file(tensors, file)
    config = folder / "config.json"
    content = json.loads(config.read_text(encoding="utf-8"))
    groups = {"all": {"targets": ["Linear"], "weights": INT8_WEIGHTS, "input_activations": INT8_ACTIVATIONS}}
    content["quantization_config"] = {"quant_method": INT8_METHOD, "format": INT8_FORMAT, "config_groups": groups}
    config.write_text(json.dumps(content), encoding="utf-8")
    return folder


def int8_checkpoint(folder: Path, names: list[str], *, write: bool = True) -> Path:
    """A random checkpoint, or the existing one, with some matrices in INT8, rounded directly as tools do."""
    if write:
        write_random_checkpoint(folder)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(quantised_config(raw, frozenset(), untie=False)))
    tensors = load_file(folder / "model.safetensors")
    for name in names:
        scale = tensors[name].abs().amax(1, keepdim=True) / 127
        tensors[name] = (tensors[name] / scale).round().to(torch.int8)
        tensors[name + "_scale"] = scale.bfloat16() if name == OUT else scale
    save_file(tensors, folder / "model.safetensors")
    return folder


def quantised_checkpoint(folder: Path, **shape: Any) -> Path:
    """A random checkpoint whose products, except the gates, are INT8."""
    write_random_checkpoint(folder, **shape)
    names = [name for name in load_file(folder / "model.safetensors") if any(part in name for part in QUANTISED)]
    return int8_checkpoint(folder, [name for name in names if name.endswith("weight")], write=False)
