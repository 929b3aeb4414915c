"""Llama 2 and 3, Mistral, and models with their `model_type`: grouped attention, one feed-forward network per layer."""

from serving.model.architecture import Architecture
from serving.model.config_keys import ConfigKeys
from serving.model.families.dense import dense_model
from serving.model.families.grouped import Variant


def read(keys: ConfigKeys) -> Architecture:
    """Llama or Ministral. Raises: KeyError, TypeError, ModelError: see `architecture`."""
    return dense_model(keys, Variant())


def read_mistral(keys: ConfigKeys) -> Architecture:
    """Mistral, whose first version has a window in every layer. Raises: as `read`."""
    return dense_model(keys, Variant(windows=True))
