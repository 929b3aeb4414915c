"""Placement of a model's layers in KV blocks: all in one block, or sliding-window layers separate from the others.

With separate blocks, those outside the window are freed while a sequence runs. All blocks hold the same number of
layers, so that one arena serves both kinds. Imports no torch.
"""

import hashlib
from dataclasses import dataclass
from math import gcd

from serving.model.architecture import Architecture, GroupedShape, LatentRow
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


def layout_fingerprint(
    config: Architecture, layers: int, block_tokens: int, dtype: str, form: str, split: SplitLayers | None
) -> str:
    """Fingerprint of everything that determines the meaning of a block's bytes, including the model's shape.

    Args:
        layers: number per block.
        dtype: the model's, as torch names it. form: `KvLayout.form`.
    """
    text = f"{config!r}|{layers}|{block_tokens}|torch.{dtype}|{form}"
    if split is not None:
        text += f"|{split!r}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    kind = "mla" if isinstance(config.row, LatentRow) else "gqa"
    return f"{kind}-{layers}x{block_tokens}x{config.row.elements}-{form}-{digest}"
