"""Mixed precision: which operators compute in INT8, and why the others do not. Pure: no torch.

Source: the CloudMatrix384 paper, section 4.5 (INT8 for the large products of attention and feed-forward nets, more
precision for small sensitive parts); which parts exactly is our choice, stated here line by line.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OperatorClass:
    """Operators with the same treatment.

    Args:
        name: as options and reports call it.
        matrices: what belongs to it, for people.
        pattern: of the module names that belong to it, matched from their start.
        why: the reason for its precision.
        weight_only: whether activations stay as they are (W8A16) instead of being rounded per token (W8A8).
    """

    name: str
    matrices: str
    pattern: str
    why: str
    weight_only: bool = False


INT8_CLASSES = (
    OperatorClass(
        "experts", "routed experts' gate, up, down", r".*\.mlp\.experts\.\d+\..*_proj", "nearly all weights of a model"
    ),
    OperatorClass("shared_experts", "shared experts' gate, up, down", r".*\.mlp\.shared_experts\..*", "on every token"),
    OperatorClass("dense_ffn", "dense layers' gate, up, down", r".*\.mlp\.(gate|up|down)_proj", "on every token"),
    OperatorClass(
        "attention_in",
        "q_proj, k_proj, v_proj, q_a_proj, kv_a_proj_with_mqa",
        r".*\.self_attn\.(q_a_proj|q_proj|k_proj|v_proj|kv_a_proj_with_mqa)",
        "those there are, in one product",
    ),
    OperatorClass("query_up", "q_b_proj", r".*\.self_attn\.q_b_proj", "on every token"),
    OperatorClass(
        "latent_up",
        "kv_b_proj",
        r".*\.self_attn\.kv_b_proj",
        "weights alone, since decode absorbs it and prompts expand with it",
        weight_only=True,
    ),
    OperatorClass("attention_out", "o_proj", r".*\.self_attn\.o_proj", "the largest product of attention"),
    OperatorClass("draft_fuse", "draft layers' eh_proj", r".*\.eh_proj", "a wrong draft costs time only"),
    OperatorClass("head", "lm_head, draft layers' own heads", r"lm_head|.*\.shared_head\.head", "read whole each step"),
)
"""Stored as INT8 unless `--keep` names them."""

KEPT_CLASSES = (
    OperatorClass("gate", "routers", r".*\.mlp\.gate", "small, and they decide; stored in float32"),
    OperatorClass("indexer", "indexers of sparse attention", r".*\.indexer\..*", "small, and they decide"),
    OperatorClass("embeddings", "embed_tokens", r".*embed_tokens", "looked up, never multiplied"),
    OperatorClass("norms", "all norms", r".*norm", "vectors"),
)
"""Never INT8."""


def class_of(module: str) -> OperatorClass:
    """The class of a matrix.

    Args:
        module: its tensor's name without `.weight`.
    """
    for operator in (*INT8_CLASSES, *KEPT_CLASSES):
        if re.fullmatch(operator.pattern, module):
            return operator
    raise AssertionError(f"{module} belongs to no operator class")


def ignore_patterns(kept: frozenset[str]) -> list[str]:
    """compressed-tensors' `ignore` list: the modules that are not INT8.

    Args:
        kept: names of the classes that were kept on request.
    """
    always = [operator.pattern for operator in KEPT_CLASSES if operator.name in ("gate", "indexer")]
    asked = [operator.pattern for operator in INT8_CLASSES if operator.name in kept]
    return [f"re:^({pattern})$" for pattern in (*always, *asked)]


def class_table() -> str:
    """The table for `--help`, one line a class."""
    lines = [f"  {o.name:<15} INT8     {o.matrices}: {o.why}" for o in INT8_CLASSES]
    return "\n".join(lines + [f"  {o.name:<15} as it is {o.matrices}: {o.why}" for o in KEPT_CLASSES])
