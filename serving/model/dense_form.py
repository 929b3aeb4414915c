"""Dense form of a model with sparse attention: without indexers, limited to contexts that are attended to in full."""

from dataclasses import replace

from serving.config.serve import ServeConfig
from serving.model.architecture import Architecture, ContextLimit, LatentShape, LayerShape
from serving.model.config import read_architecture


def without_indexers(model: Architecture) -> Architecture:
    """The same model without indexers, with contexts limited to the length at which they would start to choose; models
    without indexers are returned unchanged.

    Up to that length results are the same. Cache rows have no indexer key, and the indexer's weights are not needed.
    """
    indexer = model.indexer
    if indexer is None:
        return model
    limit = ContextLimit(indexer.top_k, "attention reads chosen tokens only", computed_by='[engine] executor = "torch"')
    longest = model.max_position_embeddings
    return replace(
        model,
        layers=tuple(map(_without, model.layers)),
        drafts=tuple(map(_without, model.drafts)),
        max_position_embeddings=min(longest, limit.tokens),
        computed_up_to=limit if limit.tokens < longest else None,
        unused=(*model.unused, ".self_attn.indexer."),
    )


def _without(layer: LayerShape) -> LayerShape:
    assert isinstance(layer.attention, LatentShape), "an indexer belongs to latent attention"
    return replace(layer, attention=replace(layer.attention, indexer=None))


# The architecture that a deployment serves: a model with sparse attention has two forms, of which one is computed.
#
#     contexts of at most `index_topk` tokens            without indexers, as nothing is ever selected
#     longer contexts, executor `auto` or `torch`        with them, by torch: the native step does not support them
#     longer contexts, executor `native`, or experts on several ranks, which need the native step
#                                                        without them; contexts end at `index_topk` tokens
#     executor `simulated`                               with them: nothing is computed, and their cost is included
#
# All processes of a deployment derive the same form from its configuration, because it determines whether cache rows
# have the indexer's key.


def served_architecture(config: ServeConfig) -> Architecture:
    """The architecture of the model to serve; with indexers only if torch computes, or the NPUs are simulated.

    Raises: ModelError, as `read_architecture`.
    Effects: reads files.
    """
    model = read_architecture(config.model.path)
    if model.indexer is None:
        return model
    plain, longest = without_indexers(model), config.engine.max_model_len or model.max_position_embeddings
    if config.engine.executor == "simulated":
        return model
    if config.engine.executor == "native" or any(pool.is_group for pool in config.pools.values()):
        return plain
    return model if longest > model.indexer.top_k else replace(plain, computed_up_to=None)  # no context is too long
