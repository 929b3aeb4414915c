"""DeepSeek-V2 and V3 (also R1 and V3.1), and Kimi-K2, which is V3 with other sizes."""

from serving.model.architecture import Architecture, ExpertShape, GateShape, LatentShape, LayerShape
from serving.model.config_keys import ConfigKeys
from serving.model.families.latent import latent_attention
from serving.model.families.shared_keys import architecture, checked, feeds, leading, v3_experts
from serving.model.rope_config import RopeConfig


def read_v3(keys: ConfigKeys) -> Architecture:
    """DeepSeek-V3 and Kimi-K2. Raises: KeyError, TypeError, ModelError: see `architecture`."""
    attention, rope = latent_attention(keys)
    return _model(keys, attention, rope, v3_experts(keys))


def read_v2(keys: ConfigKeys) -> Architecture:
    """DeepSeek-V2: softmax scores, no bias, a group counts as its best expert. Raises: as `read_v3`."""
    attention, rope = latent_attention(keys, interleave=True)
    keys.among("scoring_func", "softmax")
    keys.among("topk_method", "greedy", "group_limited_greedy")
    keys.among("moe_layer_freq", 1)
    keys.among("mlp_bias", False)
    width, groups, kept = keys.whole("moe_intermediate_size"), keys.whole("n_group", 1), keys.whole("topk_group", 1)
    in_groups = keys.raw.get("topk_method") == "group_limited_greedy"
    gate = GateShape(
        sigmoid=False,
        choice_bias=False,
        groups=groups if in_groups else 1,
        kept_groups=kept if in_groups else 1,
        normalise=keys.flag("norm_topk_prob", False),
        factor=keys.number("routed_scaling_factor", 1.0),
    )
    experts = ExpertShape(
        experts=keys.whole("n_routed_experts"),
        per_token=keys.whole("num_experts_per_tok"),
        width=width,
        shared_width=keys.whole("n_shared_experts", 0, least=0) * width,
        gate=gate,
    )
    return _model(keys, attention, rope, checked(experts))


def _model(keys: ConfigKeys, attention: LatentShape, rope: RopeConfig, experts: ExpertShape) -> Architecture:
    count = keys.layers()
    dense = leading(count, keys.whole("first_k_dense_replace", 0, least=0))
    layers = tuple(LayerShape(attention, feed) for feed in feeds(keys, count, experts, dense))
    # The checkpoints' name and Hugging Face's.
    drafts = keys.layers("num_nextn_predict_layers", keys.layers("num_mtp_layers", 0, least=0), least=0)
    return architecture(keys, layers, rope, (LayerShape(attention, experts),) * drafts)
