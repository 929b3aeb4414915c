"""A random checkpoint in INT8, each matrix rounded as it is: what the quantiser writes, without its care."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from serving.model.quantization import INT8_ACTIVATIONS, INT8_FORMAT, INT8_METHOD, INT8_WEIGHTS


def round_to_int8(folder: Path) -> Path:
    """Rewrite a folder of one file.

    Returns: the folder.
    Effects: every `*_proj.weight` becomes int8 with a scale per row, and config.json says so.
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
