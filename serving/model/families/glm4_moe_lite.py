"""GLM-4.7-Flash: DeepSeek-V3's block; dense layers are listed one by one."""

from serving.model.architecture import Architecture, LayerShape
from serving.model.config_keys import ConfigKeys
from serving.model.families.latent import latent_attention
from serving.model.families.shared_keys import architecture, feeds, leading, typed, v3_experts


def read(keys: ConfigKeys) -> Architecture:
    """GLM-4.7-Flash. Raises: KeyError, TypeError, ModelError: see `architecture`."""
    attention, rope = latent_attention(keys)
    count, experts = keys.layers(), v3_experts(keys)
    dense = typed(keys, count, leading(count, keys.whole("first_k_dense_replace", 1, least=0)))
    layers = tuple(LayerShape(attention, feed) for feed in feeds(keys, count, experts, dense))
    drafts = keys.layers("num_nextn_predict_layers", 0, least=0)
    keys.among("partial_rotary_factor", 1, 1.0)
    return architecture(keys, layers, rope, (LayerShape(attention, experts),) * drafts, norm_eps=1e-5)
