"""DeepSeek-V3.2 and GLM-5: DeepSeek-V3's block with attention to the `index_topk` tokens that an indexer chooses.

GLM-5's later layers may share the choice of an earlier one (`indexer_types`).
"""

from dataclasses import replace

from serving.errors import ModelError
from serving.model.architecture import Architecture, IndexerShape, LatentShape, LayerShape
from serving.model.config_keys import ConfigKeys
from serving.model.families.latent import latent_attention
from serving.model.families.shared_keys import architecture, feeds, leading, typed, v3_experts
from serving.model.rope_config import RopeConfig


def read_v32(keys: ConfigKeys) -> Architecture:
    """DeepSeek-V3.2. Raises: KeyError, TypeError, ModelError: see `architecture`."""
    attention, rope = latent_attention(keys, interleave=True)
    indexer = _indexer(keys, attention, heads=64, interleave=False)
    return _model(keys, attention, rope, indexer, [False] * keys.layers())


def read_glm5(keys: ConfigKeys) -> Architecture:
    """GLM-5. Raises: as `read_v32`."""
    attention, rope = latent_attention(keys, interleave=True)
    indexer = _indexer(keys, attention, heads=32, interleave=True)
    return _model(keys, attention, rope, indexer, _sharing(keys, keys.layers()))


def _model(
    keys: ConfigKeys, attention: LatentShape, rope: RopeConfig, indexer: IndexerShape, sharing: list[bool]
) -> Architecture:
    count, experts = keys.layers(), v3_experts(keys)
    dense = typed(keys, count, leading(count, keys.whole("first_k_dense_replace", 3, least=0)))
    keys.names("layer_types", count, ("indexed_attention", "deepseek_sparse_attention"))
    own, shared = (replace(attention, indexer=replace(indexer, shared=one)) for one in (False, True))
    layers = tuple(
        LayerShape(shared if takes else own, feed)
        for takes, feed in zip(sharing, feeds(keys, count, experts, dense), strict=True)
    )
    drafts = keys.layers("num_nextn_predict_layers", 0, least=0)
    return architecture(keys, layers, rope, (LayerShape(own, experts),) * drafts)


def _indexer(keys: ConfigKeys, attention: LatentShape, *, heads: int, interleave: bool) -> IndexerShape:
    """Args: heads, interleave: the family's; `heads` is the default if the configuration has none."""
    keys.among("indexer_rope_interleave", interleave)
    width = keys.whole("index_head_dim", 128)
    if attention.query_latent is None:
        raise ModelError("q_lora_rank is missing: an indexer's queries come from that latent")
    if attention.rope_dim > width:
        raise ModelError(f"qk_rope_head_dim = {attention.rope_dim} exceeds index_head_dim = {width}")
    return IndexerShape(
        heads=keys.whole("index_n_heads", heads),
        head_dim=width,
        rope_dim=attention.rope_dim,
        interleave=interleave,
        top_k=keys.whole("index_topk", 2048),
    )


def _sharing(keys: ConfigKeys, count: int) -> list[bool]:
    """Which of `count` layers reuse an earlier one's choice: by name, else by a pattern, else by an interval."""
    kinds = keys.names("indexer_types", count, ("full", "shared"))
    pattern = keys.raw.get("index_topk_pattern")
    step = keys.whole("index_topk_freq", 1, least=0)
    offset = keys.whole("index_skip_topk_offset", 2, least=0)
    keys.known("index_topk_pattern")
    if kinds is not None:
        found = [kind == "shared" for kind in kinds]
    elif pattern is not None:
        if not isinstance(pattern, str) or len(pattern) < count or set(pattern) - {"F", "S"}:
            raise ModelError(f"index_topk_pattern = {str(pattern)[:40]!r} is not one F or S for each of {count} layers")
        found = [one == "S" for one in pattern[:count]]
    else:
        found = [max(layer - offset + 1, 0) % max(step, 1) != 0 for layer in range(count)]
    if found[0]:
        raise ModelError("the first layer's indexer is shared, and no layer before it has one")
    return found
