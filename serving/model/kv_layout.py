"""Layout of one token's entry in one layer of the KV cache, byte by byte.

    latent row    latent ++ rotated key ++ the indexer's key, if any; once for all heads
    grouped row   for each KV head: value ++ rotated key

In the float forms all parts are in the model's dtype. In the INT8 form the rounded parts come first, as bytes, then the
parts in the model's dtype, then a float32 scale for each rounded part:

    latent row    latent as int8 | rotated key, the indexer's key, unrounded | its scale
    grouped row   value, key as int8 | scale of the value, scale of the key      (head after head)

A latent's rotated key is not rounded: it is small, its channels rotate at very different speeds, and rounding it costs
more than rounding the latent. An indexer's key is not rounded either, since it decides which tokens are read. The
latent has just been normalised, so that one scale for a token's whole row loses little.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from serving.model.architecture import CacheRow, LatentRow

KvDtype = Literal["auto", "int8"]
KvForm = Literal["float32", "bfloat16", "int8"]

_WORD = 4
_LARGEST = 127.0
_SMALLEST_ROW = 1e-30  # an infinite reciprocal would make NaN of a row of (almost) zeros


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The bytes of one token in one layer.

    Args:
        dtype: the model's, for the input of `pack` and the result of `unpack`.
        row: shape of a token's data.
        heads: equal parts of a row, head after head; 1 for a latent row.
        rounded: widths of a head's parts that INT8 rounds, each with a separate scale; they are first.
        kept: width of the part that it does not round.
        rope_offset_bytes: offset of the rotated key in a head.
        scale_offset_bytes: offset of a head's scales; -1 in the float forms, which have none.
        head_bytes: size of one head, a multiple of 4 in the INT8 form.
    """

    form: KvForm
    dtype: torch.dtype
    row: CacheRow
    heads: int
    rounded: tuple[int, ...]
    kept: int
    rope_offset_bytes: int
    scale_offset_bytes: int
    head_bytes: int

    @classmethod
    def of(cls, row: CacheRow, dtype: torch.dtype, kv_dtype: KvDtype = "auto") -> "KvLayout":
        """The layout of such rows in a model of this dtype; `auto` keeps the dtype."""
        heads, kept = 1, 0
        rounded: tuple[int, ...]
        if isinstance(row, LatentRow):
            rounded, kept = (row.latent,), row.rope + row.index
        else:
            heads, rounded = row.heads, (row.head_dim, row.head_dim)
        if kv_dtype == "auto":
            form: KvForm = "float32" if dtype == torch.float32 else "bfloat16"
            head_bytes = (sum(rounded) + kept) * dtype.itemsize
            return cls(form, dtype, row, heads, rounded, kept, rounded[0] * dtype.itemsize, -1, head_bytes)
        kept_offset = _words(sum(rounded))
        scale_offset = _words(kept_offset + kept * dtype.itemsize)
        rope_offset = kept_offset if kept else rounded[0]
        head_bytes = scale_offset + _WORD * len(rounded)
        return cls("int8", dtype, row, heads, rounded, kept, rope_offset, scale_offset, head_bytes)

    @property
    def row_bytes(self) -> int:
        """Bytes of the whole row."""
        return self.heads * self.head_bytes

    @property
    def stored_dtype(self) -> torch.dtype:
        """Dtype of the arena's tensor: the model's, or bytes."""
        return torch.uint8 if self.form == "int8" else self.dtype

    @property
    def stored_elements(self) -> int:
        """Elements of one row in `stored_dtype`."""
        return self.row_bytes // self.stored_dtype.itemsize

    @property
    def index_part(self) -> slice:
        """Slice of the indexer's key in a latent row, in elements of `stored_dtype`; its bytes are in `dtype`."""
        assert isinstance(self.row, LatentRow), "grouped rows have no key of an indexer"
        first = self.rope_offset_bytes + self.row.rope * self.dtype.itemsize
        size = self.stored_dtype.itemsize
        return slice(first // size, (first + self.row.index * self.dtype.itemsize) // size)

    def pack(self, rows: Tensor) -> Tensor:
        """Rows in stored form: `[tokens, elements]` to `[tokens, stored_elements]`.

        With INT8, `rows` are rounded to what `unpack` returns: a token that attends to its own chunk uses the values
        that later steps read from the cache, so results do not depend on the chunk boundaries.

        INT8, exactly: `scale = max |x| / 127` and `x * (127 / max |x|)` rounded to the nearest, ties to even, all in
        float32; back, `q * scale` in float32, then rounded to the model's dtype.

        Effects: INT8 rounds the rounded parts of `rows` in place.
        """
        if self.form != "int8":
            return rows
        heads = rows.view(rows.shape[0] * self.heads, -1)
        packed = torch.zeros((heads.shape[0], self.head_bytes), dtype=torch.uint8, device=rows.device)
        first = 0
        for part, width in enumerate(self.rounded):
            given = heads[:, first : first + width].float()
            largest = given.abs().amax(-1, keepdim=True)
            scale = largest / _LARGEST
            quantised = (given * (_LARGEST / largest.clamp_min(_SMALLEST_ROW))).round_().to(torch.int8)
            packed[:, first : first + width].view(torch.int8).copy_(quantised)
            self._scale(packed, part).copy_(scale)
            heads[:, first : first + width] = quantised * scale
            first += width
        if self.kept:
            self._kept(packed).copy_(heads[:, first:])
        return packed.view(rows.shape[0], -1)

    def unpack(self, stored: Tensor) -> Tensor:
        """Rows in the model's dtype: `[tokens, stored_elements]` to `[tokens, elements]`."""
        if self.form != "int8":
            return stored
        packed = stored.view(stored.shape[0] * self.heads, -1)
        heads = torch.empty((packed.shape[0], sum(self.rounded) + self.kept), dtype=self.dtype, device=stored.device)
        first = 0
        for part, width in enumerate(self.rounded):
            quantised = packed[:, first : first + width].view(torch.int8)
            heads[:, first : first + width] = quantised * self._scale(packed, part)
            first += width
        if self.kept:
            heads[:, first:] = self._kept(packed)
        return heads.view(stored.shape[0], -1)

    def _kept(self, packed: Tensor) -> Tensor:
        """The unrounded part of packed heads, as a view."""
        end = self.rope_offset_bytes + self.kept * self.dtype.itemsize
        return packed[:, self.rope_offset_bytes : end].view(self.dtype)

    def _scale(self, packed: Tensor, part: int) -> Tensor:
        """The scale of a rounded part of packed heads, as a view `[heads, 1]`."""
        first = self.scale_offset_bytes + part * _WORD
        return packed[:, first : first + _WORD].view(torch.float32)


def _words(nbytes: int) -> int:
    """Bytes rounded up to whole 32-bit words, so that every part is aligned."""
    return -(-nbytes // _WORD) * _WORD
