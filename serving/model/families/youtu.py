"""Youtu-LLM (2 B): latent attention, and one feed-forward network in every layer."""

from serving.model.architecture import Architecture, DenseShape, LayerShape
from serving.model.config_keys import ConfigKeys
from serving.model.families.latent import latent_attention
from serving.model.families.shared_keys import architecture


def read(keys: ConfigKeys) -> Architecture:
    """Youtu-LLM. Raises: KeyError, TypeError, ModelError: see `architecture`."""
    attention, rope = latent_attention(keys)
    keys.among("mlp_bias", False)
    layer = LayerShape(attention, DenseShape(keys.whole("intermediate_size")))
    return architecture(keys, (layer,) * keys.layers(), rope, tied=True)
