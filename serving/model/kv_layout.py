"""The rows of the KV cache as tensors: `kv_shape.RowLayout` describes their bytes."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from serving.model.architecture import CacheRow, LatentRow
from serving.model.kv_shape import WORD_BYTES, KvDtype, RowLayout, row_layout

_LARGEST = 127.0
_SMALLEST_ROW = 1e-30  # an infinite reciprocal would make NaN of a row of (almost) zeros


@dataclass(frozen=True, slots=True)
class KvLayout(RowLayout):
    """The bytes of one token in one layer, and their conversion from and to tensors.

    Args:
        dtype: the model's, for the input of `pack` and the result of `unpack`.
    """

    dtype: torch.dtype

    @classmethod
    def of(cls, row: CacheRow, dtype: torch.dtype, kv_dtype: KvDtype = "auto") -> "KvLayout":
        """The layout of such rows in a model of this dtype; `auto` keeps the dtype."""
        plain = row_layout(row, str(dtype).removeprefix("torch."), kv_dtype)
        return cls(**{field.name: getattr(plain, field.name) for field in fields(plain)}, dtype=dtype)

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
        first = self.scale_offset_bytes + part * WORD_BYTES
        return packed[:, first : first + WORD_BYTES].view(torch.float32)
