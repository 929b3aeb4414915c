"""SmolLM3: Llama without positions in every fourth layer."""

from serving.model.architecture import Architecture
from serving.model.config_keys import ConfigKeys
from serving.model.families.dense import dense_model
from serving.model.families.grouped import Variant


def read(keys: ConfigKeys) -> Architecture:
    """SmolLM3. Raises: KeyError, TypeError, ModelError: see `architecture`."""
    count, interval = keys.layers(), keys.whole("no_rope_layer_interval", 4)
    turns = keys.whole_list("no_rope_layers") or [int((layer + 1) % interval != 0) for layer in range(count)]
    still = [layer for layer, one in enumerate(turns) if not one]
    return dense_model(keys, Variant(theta=2_000_000.0, still=still), tied=True)
