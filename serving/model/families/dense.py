"""Models with grouped attention and one feed-forward network in every layer."""

from serving.model.architecture import Architecture, DenseShape, LayerShape
from serving.model.config_keys import ConfigKeys
from serving.model.families.grouped import Variant, grouped_attention
from serving.model.families.shared_keys import architecture


def dense_model(keys: ConfigKeys, variant: Variant, *, tied: bool = False) -> Architecture:
    """The whole model.

    Args:
        tied: default for whether the head shares the embedding.
    Raises: KeyError, TypeError or ModelError: see `architecture`.
    """
    keys.among("mlp_bias", False)
    attention = grouped_attention(keys, keys.layers(), variant)
    feed = DenseShape(keys.whole("intermediate_size"))
    layers = tuple(LayerShape(one, feed) for one in attention.layers)
    return architecture(keys, layers, attention.rope, tied=tied, limit=attention.limit)
