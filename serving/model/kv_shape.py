"""Placement of a model's layers in KV blocks: all in one block, or sliding-window layers separate from the others.

With separate blocks, those outside the window are freed while a sequence runs. All blocks hold the same number of
layers, so that one arena serves both kinds. Imports no torch.
"""

import hashlib
from dataclasses import dataclass
from math import gcd
from typing import Literal

from serving.model.architecture import Architecture, CacheRow, GroupedShape, LatentRow
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


# Layout of one token's entry in one layer of the KV cache, byte by byte:
#
#     latent row    latent ++ rotated key ++ the indexer's key, if any; once for all heads
#     grouped row   for each KV head: value ++ rotated key
#
# In the float forms all parts are in the model's dtype. In the INT8 form the rounded parts come first, as bytes, then
# the parts in the model's dtype, then a float32 scale for each rounded part:
#
#     latent row    latent as int8 | rotated key, the indexer's key, unrounded | its scale
#     grouped row   value, key as int8 | scale of the value, scale of the key      (head after head)
#
# A latent's rotated key is not rounded: it is small, its channels rotate at very different speeds, and rounding it
# costs more than rounding the latent. An indexer's key is not rounded either, since it decides which tokens are read.
# The latent has just been normalised, so that one scale for a token's whole row loses little.

KvDtype = Literal["auto", "int8"]
KvForm = Literal["float32", "bfloat16", "int8"]

WORD_BYTES = 4
ITEM_BYTES = {"float32": 4, "bfloat16": 2}
"""Bytes of a number, by the name of a model's dtype."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The bytes of one token in one layer.

    Args:
        row: shape of a token's data.
        heads: equal parts of a row, head after head; 1 for a latent row.
        rounded: widths of a head's parts that INT8 rounds, each with a separate scale; they are first.
        kept: width of the part that it does not round.
        rope_offset_bytes: offset of the rotated key in a head.
        scale_offset_bytes: offset of a head's scales; -1 in the float forms, which have none.
        head_bytes: size of one head, a multiple of 4 in the INT8 form.
    """

    form: KvForm
    row: CacheRow
    heads: int
    rounded: tuple[int, ...]
    kept: int
    rope_offset_bytes: int
    scale_offset_bytes: int
    head_bytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of the whole row."""
        return self.heads * self.head_bytes


def row_layout(row: CacheRow, dtype: str, kv_dtype: KvDtype = "auto") -> RowLayout:
    """The layout of such rows in a model of this dtype, `float32` or `bfloat16`; `auto` keeps the dtype."""
    heads, kept, item_bytes = 1, 0, ITEM_BYTES[dtype]
    rounded: tuple[int, ...]
    if isinstance(row, LatentRow):
        rounded, kept = (row.latent,), row.rope + row.index
    else:
        heads, rounded = row.heads, (row.head_dim, row.head_dim)
    if kv_dtype == "auto":
        form: KvForm = "float32" if dtype == "float32" else "bfloat16"
        head_bytes = (sum(rounded) + kept) * item_bytes
        return RowLayout(form, row, heads, rounded, kept, rounded[0] * item_bytes, -1, head_bytes)
    kept_offset = _words(sum(rounded))
    scale_offset = _words(kept_offset + kept * item_bytes)
    rope_offset = kept_offset if kept else rounded[0]
    head_bytes = scale_offset + WORD_BYTES * len(rounded)
    return RowLayout("int8", row, heads, rounded, kept, rope_offset, scale_offset, head_bytes)


def _words(nbytes: int) -> int:
    """Bytes rounded up to whole 32-bit words, so that every part is aligned."""
    return -(-nbytes // WORD_BYTES) * WORD_BYTES
