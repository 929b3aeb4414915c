"""Shared helpers for models with latent attention."""

from serving.model.architecture import Architecture, LatentShape
from serving.model.latent_attention import LatentWeights
from serving.model.model import Block


def latent_shape(config: Architecture) -> LatentShape:
    """Attention of a model with latents."""
    assert isinstance(config.attention, LatentShape)
    return config.attention


def latent_weights(block: Block) -> LatentWeights:
    """Weights of a block's latent attention."""
    weights = block.attention.w
    assert isinstance(weights, LatentWeights)
    return weights
