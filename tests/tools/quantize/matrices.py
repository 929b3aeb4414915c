"""Small products with the difficulties of real ones: a few channels of large activations, a few large weights."""

import torch
from torch import Tensor

from tests.model.shapes import FAMILIES, QWEN2, QWEN3

V2: dict[str, object] = {
    "model_type": "deepseek_v2", "topk_method": "group_limited_greedy", "scoring_func": "softmax",
    "norm_topk_prob": False, "q_lora_rank": None, "num_nextn_predict_layers": 0,
}  # fmt: skip

FAMILY_KEYS: dict[str, dict[str, object]] = {
    **{name: keys for name, keys in FAMILIES.items() if name != "deepseek_v3"},
    "qwen2": QWEN2,
    "qwen3": QWEN3,
}
"""Small models of each kind of attention and feed-forward, besides DeepSeek's."""


def weight_and_inputs(seed: int = 0, rows: int = 48, columns: int = 64, tokens: int = 512) -> tuple[Tensor, Tensor]:
    """A weight `[rows, columns]` and correlated inputs `[tokens, columns]` with outlier channels."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator) / columns**0.5
    mixed = torch.randn(tokens, columns // 2, generator=generator) @ torch.randn(
        columns // 2, columns, generator=generator
    )
    inputs = mixed / columns**0.5 + 0.1 * torch.randn(tokens, columns, generator=generator)
    inputs[:, ::16] *= 30
    return weight, inputs
