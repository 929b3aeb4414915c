"""GLM-4.5 and 4.6: grouped attention with heads that rotate by half, and DeepSeek-V3's experts."""

from serving.model.architecture import Architecture, LayerShape
from serving.model.config_keys import ConfigKeys
from serving.model.families.grouped import Variant, grouped_attention
from serving.model.families.shared_keys import architecture, feeds, leading, v3_experts


def read(keys: ConfigKeys) -> Architecture:
    """GLM-4.5 or 4.6. Raises: KeyError, TypeError, ModelError: see `architecture`."""
    count, experts = keys.layers(), v3_experts(keys)
    variant = Variant(output_bias=False, head_norm=keys.flag("use_qk_norm", False), rotated=0.5)
    attention = grouped_attention(keys, count, variant)
    dense = leading(count, keys.whole("first_k_dense_replace", 1, least=0))
    layers = zip(attention.layers, feeds(keys, count, experts, dense), strict=True)
    drafts = keys.layers("num_nextn_predict_layers", keys.layers("num_mtp_layers", 0, least=0), least=0)
    draft = LayerShape(attention.layers[-1], experts)
    return architecture(
        keys,
        tuple(LayerShape(*one) for one in layers),
        attention.rope,
        (draft,) * drafts,
        norm_eps=1e-5,
        limit=attention.limit,
    )
