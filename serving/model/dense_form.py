"""A model with sparse attention as who computes none sees it: without indexers, in contexts that are read whole."""

from dataclasses import replace

from serving.model.architecture import Architecture, ContextLimit, LatentShape, LayerShape


def without_indexers(model: Architecture) -> Architecture:
    """The same model, whose contexts end where its indexers would begin to choose; one without indexers as it is.

    Up to there results are the same. Rows of the cache have no key of an indexer, and its weights are not needed.
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
