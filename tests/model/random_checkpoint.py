"""Writes random checkpoints of the served architecture: small ones for tests, `tiny` and `small` for benchmarks.

Deterministic by seed. A folder has all files that serving needs: config.json, safetensors (with an index when
sharded), tokenizer.json, tokenizer_config.json with a chat template, generation_config.json.

    python -m tests.model.random_checkpoint --kind small DIR
"""

import argparse
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from serving.model.config import read_architecture
from serving.model.tensors import model_tensors, mtp_optional, mtp_tensors
from tests.model.random_tokenizer import SPECIAL_TOKENS, write_tokenizer

Kind = Literal["test", "tiny", "small"]
Dtype = Literal["float32", "bfloat16"]

_COMMON: dict[str, object] = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_act": "silu",
    "attention_bias": False, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "rope_scaling": None, "rope_interleave": True,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 2.5,
    "tie_word_embeddings": False, "bos_token_id": SPECIAL_TOKENS.index("<|bos|>"),
    "eos_token_id": SPECIAL_TOKENS.index("<|eos|>"), "pad_token_id": SPECIAL_TOKENS.index("<|pad|>"),
}  # fmt: skip

# The two benchmark shapes and the default one of the tests: every width differs, so that a mixed-up axis fails.
_KINDS: dict[str, dict[str, object]] = {
    "test": {
        "vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 3, "first_k_dense_replace": 1,
        "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 48, "kv_lora_rank": 32,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12, "intermediate_size": 96,
        "moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1,
        "n_group": 4, "topk_group": 2, "num_nextn_predict_layers": 1, "max_position_embeddings": 1024,
    },
    "tiny": {
        "vocab_size": 4096, "hidden_size": 256, "num_hidden_layers": 6, "first_k_dense_replace": 1,
        "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 96, "kv_lora_rank": 512,
        "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64, "intermediate_size": 768,
        "moe_intermediate_size": 64, "n_routed_experts": 16, "num_experts_per_tok": 2, "n_shared_experts": 1,
        "n_group": 4, "topk_group": 2, "num_nextn_predict_layers": 0, "max_position_embeddings": 4096,
    },
    "small": {
        "vocab_size": 16384, "hidden_size": 1024, "num_hidden_layers": 12, "first_k_dense_replace": 1,
        "num_attention_heads": 8, "num_key_value_heads": 8, "q_lora_rank": 384, "kv_lora_rank": 512,
        "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "intermediate_size": 2816,
        "moe_intermediate_size": 256, "n_routed_experts": 32, "num_experts_per_tok": 4, "n_shared_experts": 1,
        "n_group": 4, "topk_group": 2, "num_nextn_predict_layers": 0, "max_position_embeddings": 4096,
    },
}  # fmt: skip

_SHARD_BYTES = 1 << 28


def write_random_checkpoint(
    folder: str | Path,
    *,
    kind: Kind = "test",
    seed: int = 0,
    dtype: Dtype = "float32",
    shards: int | None = None,
    fp8: bool = False,
    own_draft_head: bool = False,
    **overrides: object,
) -> Path:
    """Write a random checkpoint.

    Args:
        shards: safetensors files; None = as many as the size requires. Several have an index.
        fp8: store matrices as block-scaled FP8, 128 x 128, like the original checkpoints.
        own_draft_head: give draft layers a separate embedding and head.
        overrides: keys of config.json; None removes nothing, it is written as null.
    Returns: the folder.
    Effects: writes files; deterministic in all arguments.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    raw = {**_COMMON, **_KINDS[kind], "torch_dtype": dtype, **overrides}
    if fp8:
        raw["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    _write_json(folder / "config.json", raw)
    ids = {key: raw[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", {**ids, "do_sample": False})
    config = read_architecture(folder)
    write_tokenizer(folder, config.vocab_size, config.max_position_embeddings)
    shapes = model_tensors(config) | mtp_tensors(config) | (mtp_optional(config) if own_draft_head else {})
    tensors = dict(_random_tensors(shapes, seed, torch.bfloat16 if dtype == "bfloat16" else torch.float32, fp8=fp8))
    _write_tensors(folder, tensors, shards)
    return folder


def _random_tensors(
    shapes: Mapping[str, tuple[int, ...]], seed: int, dtype: torch.dtype, *, fp8: bool
) -> Iterator[tuple[str, Tensor]]:
    """Weights whose activations keep unit size, so that a deep random model still depends on its whole context."""
    generator = torch.Generator().manual_seed(seed)
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        if name.endswith("e_score_correction_bias"):
            yield name, noise * 0.1
        elif len(shape) == 1:
            yield name, (1 + 0.1 * noise if "norm" in name else 0.1 * noise).to(dtype)
        elif "embed_tokens" in name:
            yield name, noise.to(dtype)
        else:
            weight = noise * _gain(name) / math.sqrt(shape[1])
            yield from _quantised(name, weight) if fp8 and _is_quantised(name) else [(name, weight.to(dtype))]


def _gain(name: str) -> float:
    """Sharper attention and logits than unit size gives: near ties would make exact comparisons unreliable."""
    if name.endswith(("q_b_proj.weight", "q_proj.weight")):
        return 2.0
    return 3.0 if "head" in name else 1.0


def _is_quantised(name: str) -> bool:
    return "_proj" in name and "eh_proj" not in name


def _quantised(name: str, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A matrix as FP8 blocks and their scales (factors that give the values back)."""
    rows, columns = weight.shape
    scales = torch.empty(-(-rows // 128), -(-columns // 128))
    out = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            block = (slice(128 * i, 128 * (i + 1)), slice(128 * j, 128 * (j + 1)))
            scales[i, j] = weight[block].abs().max() / 448.0
            out[block] = (weight[block] / scales[i, j]).to(torch.float8_e4m3fn)
    yield name, out
    yield name + "_scale_inv", scales


def _write_tensors(folder: Path, tensors: Mapping[str, Tensor], shards: int | None) -> None:
    total = sum(t.nbytes for t in tensors.values())
    count = shards or max(1, -(-total // _SHARD_BYTES))
    if count == 1:
        save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    names = list(tensors)
    for shard in range(count):
        part = names[len(names) * shard // count : len(names) * (shard + 1) // count]
        file = f"model-{shard + 1:05d}-of-{count:05d}.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a random checkpoint.")
    parser.add_argument("--kind", choices=sorted(_KINDS), default="small")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("folder")
    args = parser.parse_args()
    print(write_random_checkpoint(args.folder, kind=args.kind, seed=args.seed, dtype=args.dtype))


if __name__ == "__main__":
    main()
