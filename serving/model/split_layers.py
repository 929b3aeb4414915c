"""Where a model's layers lie in KV blocks: all in one, or those with a sliding window apart from the others.

Blocks that hold few layers let go of what has left the window while a sequence runs. All of them hold the same number
of layers, so that one arena serves both kinds.
"""

from dataclasses import dataclass
from math import gcd

from serving.model.architecture import Architecture, GroupedShape
from serving.values.layer_split import LayerSplit

MOST_WIDTH = 8
"""CM_TABLE_WIDTH: blocks for the same positions. More, of fewer layers each, cost more than they free."""


@dataclass(frozen=True, slots=True)
class SplitLayers:
    """Places of a model's layers.

    Args:
        layers: in a block.
        places: of each layer of the model: which block of a table's row, and which layer of the block.
    """

    split: LayerSplit
    layers: int
    places: tuple[tuple[int, int], ...]


def split_layers(config: Architecture) -> SplitLayers | None:
    """Blocks for a model's layers; None = each block has all, since no window ever lets go of anything."""
    windows = [_window(config, layer) for layer in range(len(config.layers))]
    sliding = len([window for window in windows if window])
    full = len(windows) - sliding
    layers = gcd(full, sliding)
    if not sliding or len(windows) // layers > MOST_WIDTH:
        return None
    split = LayerSplit(full // layers, sliding // layers, max(windows))
    counts = [0, full]  # sliding layers are counted from behind the others
    places = []
    for window in windows:
        places.append(divmod(counts[window > 0], layers))
        counts[window > 0] += 1
    return SplitLayers(split, layers, tuple(places))


def _window(config: Architecture, layer: int) -> int:
    """Tokens that a layer sees at most; 0 = all that there may be."""
    attention = config.layers[layer].attention
    window = attention.window if isinstance(attention, GroupedShape) else None
    return window if window is not None and window < config.max_position_embeddings else 0
