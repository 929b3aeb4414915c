"""Configuration keys of multi-head latent attention, in DeepSeek's form, which other families share."""

from serving.errors import ModelError
from serving.model.architecture import LatentShape
from serving.model.config_keys import ConfigKeys
from serving.model.rope_config import RopeConfig, read_rope


def latent_attention(keys: ConfigKeys, *, interleave: bool | None = None) -> tuple[LatentShape, RopeConfig]:
    """Attention of every layer, and its positions.

    Args:
        interleave: whether rotating pairs are adjacent in the checkpoint; None = as in `rope_interleave`.
    Raises: KeyError, TypeError or ModelError for a missing, malformed or unsupported key.
    """
    asked = keys.flag("rope_interleave", True)
    neighbours = asked if interleave is None else interleave
    rope = read_rope(keys.raw, keys.whole("max_position_embeddings"), interleave=neighbours)
    keys.known("rope_theta", "rope_scaling", "rope_parameters", "num_key_value_heads", "qk_head_dim", "head_dim")
    rotated, plain = keys.whole("qk_rope_head_dim"), keys.whole("qk_nope_head_dim")
    if rotated % 2:
        raise ModelError(f"qk_rope_head_dim = {rotated} must be even")
    shape = LatentShape(
        heads=keys.whole("num_attention_heads"),
        query_latent=keys.optional("q_lora_rank"),
        latent=keys.whole("kv_lora_rank"),
        nope_dim=plain,
        rope_dim=rotated,
        value_dim=keys.whole("v_head_dim"),
        scale=float((plain + rotated) ** -0.5 * rope.score_factor),
        bias=keys.flag("attention_bias", False),
    )
    return shape, rope
