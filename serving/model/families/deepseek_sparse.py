"""DeepSeek-V3.2 and GLM-5: DeepSeek-V3's block, whose attention reads the `index_topk` tokens that an indexer chooses.

While a context has no more tokens than that, it chooses all of them, and this is dense attention: up to there it is
computed, without the indexer's weights.
"""

from serving.model.architecture import Architecture, ContextLimit, LayerShape
from serving.model.config_keys import ConfigKeys
from serving.model.families.latent import latent_attention
from serving.model.families.shared_keys import architecture, feeds, leading, typed, v3_experts


def read(keys: ConfigKeys) -> Architecture:
    """DeepSeek-V3.2 or GLM-5. Raises: KeyError, TypeError, ModelError: see `architecture`."""
    attention, rope = latent_attention(keys, interleave=True)
    count, experts = keys.layers(), v3_experts(keys)
    dense = typed(keys, count, leading(count, keys.whole("first_k_dense_replace", 3, least=0)))
    layers = tuple(LayerShape(attention, feed) for feed in feeds(keys, count, experts, dense))
    drafts = keys.layers("num_nextn_predict_layers", 0, least=0)
    limit = ContextLimit(keys.whole("index_topk", 2048), "attention reads chosen tokens only")
    # The indexer's own, which choose nothing away up to `index_topk` tokens.
    keys.known("index_n_heads", "index_head_dim", "index_topk_freq", "index_skip_topk_offset", "index_topk_pattern")
    keys.known("indexer_types", "layer_types", "indexer_rope_interleave")
    draft = LayerShape(attention, experts)
    return architecture(keys, layers, rope, (draft,) * drafts, limit=limit, unused=(".self_attn.indexer.",))
