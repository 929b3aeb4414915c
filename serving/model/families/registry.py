"""The supported architectures: one module each, from its keys of `config.json` to an `Architecture`."""

from collections.abc import Callable, Mapping

from serving.errors import ModelError
from serving.model.architecture import Architecture
from serving.model.config_keys import ConfigKeys
from serving.model.families import grouped, latent

Family = Callable[[ConfigKeys], Architecture]

FAMILIES: Mapping[str, Family] = {
    "deepseek_v3": latent.read_v3,
    "deepseek_v2": latent.read_v2,
    "kimi_k2": latent.read_v3,
    "glm4_moe_lite": latent.read_glm4_moe_lite,
    "youtu": latent.read_youtu,
    "deepseek_v32": latent.read_v32,
    "glm_moe_dsa": latent.read_glm5,
    "llama": grouped.read_llama,
    "mistral": grouped.read_mistral,
    "ministral3": grouped.read_llama,
    "smollm3": grouped.read_smollm3,
    "qwen2": grouped.read_qwen2,
    "qwen3": grouped.read_qwen3,
    "qwen3_moe": grouped.read_qwen3_moe,
    "glm4_moe": grouped.read_glm4_moe,
    "gpt_oss": grouped.read_gpt_oss,
}
"""The reader of each `model_type`."""

REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5", "qwen3_5_moe", "kimi_linear", "bamba", "jamba", "lfm2", "falcon_h1"),
        "its linear attention keeps a state, not rows of a KV cache",
    ),
    "deepseek_v4": "its compressed caches and hyper-connections are not rows of a KV cache",
    "mistral4": "its router and its scaled queries are not computed",
    "axk1": "it has one norm more than DeepSeek-V3's block",
    **dict.fromkeys(
        ("gemma", "gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text"),
        "its norms and soft caps are not computed",
    ),
}
"""Known architectures that are deliberately unsupported, with the reason."""


def family_of(model_type: str) -> Family:
    """The reader of a `model_type`.

    Raises: ModelError for an unsupported one, with the reason if it is known.
    """
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    why = f" ({REFUSED[model_type]})" if model_type in REFUSED else ""
    raise ModelError(f"architecture {model_type[:60]!r} is not served{why}; serve one of {', '.join(FAMILIES)}")
