"""Dense form of a model with sparse attention: without indexers, limited to contexts that are attended to in full."""

from dataclasses import replace

from serving.model.architecture import Architecture, ContextLimit, LatentShape, LayerShape


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
