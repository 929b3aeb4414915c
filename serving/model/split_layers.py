"""Placement of a model's layers in KV blocks: all in one block, or sliding-window layers separate from the others.

With separate blocks, those outside the window are freed while a sequence runs. All blocks hold the same number
of layers, so that one arena serves both kinds.
"""

from dataclasses import dataclass
from math import gcd

from serving.model.architecture import Architecture, GroupedShape
from serving.values.layer_split import LayerSplit

MOST_WIDTH = 8
"""CM_TABLE_WIDTH: blocks for the same positions. More blocks with fewer layers each would cost more than they free."""


@dataclass(frozen=True, slots=True)
class SplitLayers:
    """Places of a model's layers.

    Args:
        layers: number per block.
        places: for each layer of the model, the block in a table's row and the layer of the block.
    """

    split: LayerSplit
    layers: int
    places: tuple[tuple[int, int], ...]


def split_layers(config: Architecture) -> SplitLayers | None:
    """Blocks for a model's layers; None = each block has all, if no window would free any block."""
    windows = [_window(config, layer) for layer in range(len(config.layers))]
    sliding = len([window for window in windows if window])
    full = len(windows) - sliding
    layers = gcd(full, sliding)
    if not sliding or len(windows) // layers > MOST_WIDTH:
        return None
    split = LayerSplit(full // layers, sliding // layers, max(windows))
    counts = [0, full]  # sliding layers are numbered after the others
    places = []
    for window in windows:
        places.append(divmod(counts[window > 0], layers))
        counts[window > 0] += 1
    return SplitLayers(split, layers, tuple(places))


def _window(config: Architecture, layer: int) -> int:
    """Maximum number of tokens that a layer attends to; 0 = no limit."""
    attention = config.layers[layer].attention
    window = attention.window if isinstance(attention, GroupedShape) else None
    return window if window is not None and window < config.max_position_embeddings else 0
