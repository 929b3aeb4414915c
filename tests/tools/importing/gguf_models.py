"""Writes GGUF files of checkpoint folders, as llama.cpp's converter does: its names, its rows, its stacked experts.

Names come from the package `gguf`, and so from another table than the one under test.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from safetensors.torch import load_file
from torch import Tensor

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "deepseek_v2": gguf.MODEL_ARCH.DEEPSEEK2,
    "deepseek_v3": gguf.MODEL_ARCH.DEEPSEEK2,
}
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def write_gguf(
    path: Path,
    folder: Path,
    *,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    pre: str = "gpt-2",
    one_expansion: bool = False,
    without: tuple[str, ...] = (),
    extra: Mapping[str, np.ndarray] | None = None,
    keys: Mapping[str, object] | None = None,
    split_tensors: int = 0,
) -> Path:
    """Write a folder's model and tokenizer.

    Args:
        kind: of matrices whose rows it can hold.
        one_expansion: as older converters wrote DeepSeek's `kv_b_proj`.
        without: names of tensors that are left out.
        extra: further tensors.
        keys: further keys, or other values; None = left out.
        split_tensors: of each file; 0 = one file.
    """
    config = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"]]
    writer = GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture], split_max_tensors=split_tensors)
    values = {**_keys(config, writer.arch), **_tokenizer_keys(folder, config, pre), **(keys or {})}
    for name, value in values.items():
        _add(writer, name, value)
    tensors = {name: value for part in sorted(folder.glob("*.safetensors")) for name, value in load_file(part).items()}
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    converted = {**dict(_converted(tensors, config, names, one_expansion=one_expansion)), **(extra or {})}
    for name, array in converted.items():
        if name not in without:
            fits = array.ndim > 1 and array.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
            own = kind if fits else GGMLQuantizationType.F32
            writer.add_tensor(name, gguf.quants.quantize(array, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _converted(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], names: gguf.TensorNameMap, *, one_expansion: bool
) -> Iterator[tuple[str, np.ndarray]]:
    stacked: dict[str, dict[int, Tensor]] = {}
    layers = config["num_hidden_layers"]
    for name, tensor in tensors.items():
        words = name.split(".")
        if words[0] == "model" and words[1] == "layers" and int(words[2]) >= layers:
            continue  # draft layers
        if "experts" in words:
            at = words.index("experts")
            stacked.setdefault(".".join((*words[: at + 1], *words[at + 2 :])), {})[int(words[at + 1])] = tensor
        elif name.endswith("kv_b_proj.weight") and not one_expansion:
            key, value = _expansion(tensor, config)
            yield _named(names, name.replace("kv_b", "k_b")), _array(key)
            yield _named(names, name.replace("kv_b", "v_b")), _array(value)
        elif config["model_type"] == "llama" and words[-2] in ("q_proj", "k_proj"):
            heads = config["num_attention_heads" if words[-2] == "q_proj" else "num_key_value_heads"]
            rows = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, -1).transpose(1, 2)
            yield _named(names, name), _array(rows.reshape(tensor.shape))
        else:
            yield _named(names, name), _array(tensor)
    for name, experts in stacked.items():
        yield _named(names, name), _array(torch.stack([experts[number] for number in range(len(experts))]))


def _expansion(tensor: Tensor, config: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    nope, value = config["qk_nope_head_dim"], config["v_head_dim"]
    heads = tensor.reshape(config["num_attention_heads"], nope + value, -1)
    return heads[:, :nope].transpose(1, 2), heads[:, nope:]


def _named(names: gguf.TensorNameMap, name: str) -> str:
    name = name.replace("e_score_correction_bias", "e_score_correction.bias")
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.float().contiguous().numpy()


def _keys(config: Mapping[str, Any], arch: str) -> dict[str, object]:
    rope = config.get("rope_parameters") or config
    keys: dict[str, object] = {
        "general.name": "random",
        f"{arch}.vocab_size": config["vocab_size"],
        f"{arch}.context_length": config["max_position_embeddings"],
        f"{arch}.embedding_length": config["hidden_size"],
        f"{arch}.block_count": config["num_hidden_layers"],
        f"{arch}.feed_forward_length": config["intermediate_size"],
        f"{arch}.attention.head_count": config["num_attention_heads"],
        f"{arch}.attention.head_count_kv": config["num_key_value_heads"],
        f"{arch}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        f"{arch}.rope.freq_base": float(rope["rope_theta"]),
    }
    if arch == "deepseek2":
        return keys | {f"{arch}.{name}": value for name, value in _deepseek_keys(config).items()}
    if config.get("head_dim"):
        ends = ("attention.key_length", "attention.value_length", "rope.dimension_count")
        keys |= {f"{arch}.{name}": config["head_dim"] for name in ends}
    return keys


def _deepseek_keys(config: Mapping[str, Any]) -> dict[str, object]:
    latent, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    keys = {
        "attention.kv_lora_rank": latent,
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.head_count_kv": 1,
        "attention.key_length": latent + rope,
        "attention.value_length": latent,
        "attention.key_length_mla": config["qk_nope_head_dim"] + rope,
        "attention.value_length_mla": config["v_head_dim"],
        "rope.dimension_count": rope,
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "expert_weights_norm": config["norm_topk_prob"] or None,
        "expert_gating_func": {"softmax": 1, "sigmoid": 2}[config["scoring_func"]],
    }
    return {name: value for name, value in keys.items() if value is not None}


def _tokenizer_keys(folder: Path, config: Mapping[str, Any], pre: str) -> dict[str, object]:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    special = {token["content"]: token["special"] for token in tokenizer["added_tokens"]}
    ids = {**tokenizer["model"]["vocab"], **{token["content"]: token["id"] for token in tokenizer["added_tokens"]}}
    by_id = {number: token for token, number in ids.items()}
    rows = range(config["vocab_size"])
    types = {True: TokenType.CONTROL, False: TokenType.USER_DEFINED}
    kinds = [
        types[special[by_id[i]]] if by_id.get(i) in special else TokenType.NORMAL if i in by_id else TokenType.UNUSED
        for i in rows
    ]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [by_id.get(i, f"[PAD{i}]") for i in rows],
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.chat_template": TEMPLATE,
        "general.sampling.temp": 0.6,
    }


def _add(writer: GGUFWriter, name: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    elif isinstance(value, list):
        writer.add_array(name, value)
    else:
        assert value is None
