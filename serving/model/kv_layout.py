"""Layout of one token's entry in one layer of the KV cache, byte by byte.

    float forms   latent [kv_lora_rank] ++ rope key [qk_rope_head_dim], both in the model's dtype
    int8          latent as int8 ++ rope key in the model's dtype ++ one float32 scale

The rope key stays as it is: it is small, its channels rotate at very different speeds, and rounding it costs more than
rounding the latent. The latent was just normalised, so that one scale for a token's whole row loses little.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from serving.model.config import Architecture

KvDtype = Literal["auto", "int8"]
KvForm = Literal["float32", "bfloat16", "int8"]

_WORD = 4
_LARGEST = 127.0
_SMALLEST_ROW = 1e-30  # an infinite reciprocal would make NaN of a row of (almost) zeros


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The bytes of one token in one layer.

    Args:
        dtype: the model's, of what `pack` takes and `unpack` gives.
        latent_elements: `kv_lora_rank`. rope_elements: `qk_rope_head_dim`.
        rope_offset_bytes: where the rope key begins in a row.
        scale_offset_bytes: where the scale begins; -1 in the float forms, which have none.
        row_bytes: of the whole row, a multiple of 4 in the int8 form.
    """

    form: KvForm
    dtype: torch.dtype
    latent_elements: int
    rope_elements: int
    rope_offset_bytes: int
    scale_offset_bytes: int
    row_bytes: int

    @classmethod
    def of(cls, config: Architecture, dtype: torch.dtype, kv_dtype: KvDtype = "auto") -> "KvLayout":
        """The layout of a model of this dtype; `auto` keeps its dtype."""
        latent, rope = config.kv_lora_rank, config.qk_rope_head_dim
        if kv_dtype == "auto":
            form: KvForm = "float32" if dtype == torch.float32 else "bfloat16"
            return cls(form, dtype, latent, rope, latent * dtype.itemsize, -1, (latent + rope) * dtype.itemsize)
        rope_offset = _words(latent)
        scale_offset = _words(rope_offset + rope * dtype.itemsize)
        return cls("int8", dtype, latent, rope, rope_offset, scale_offset, scale_offset + _WORD)

    @property
    def stored_dtype(self) -> torch.dtype:
        """Dtype of the arena's tensor: the model's, or bytes."""
        return torch.uint8 if self.form == "int8" else self.dtype

    @property
    def stored_elements(self) -> int:
        """Elements of one row in `stored_dtype`."""
        return self.row_bytes // self.stored_dtype.itemsize

    def pack(self, rows: Tensor) -> Tensor:
        """Rows as they are stored: `[tokens, latent ++ rope]` to `[tokens, stored_elements]`.

        With int8, `rows` are rounded to what `unpack` will give back: a token that attends to its own chunk sees what
        a later step will find in the cache, so that results do not depend on where a prompt was cut into chunks.

        Int8, exactly: `scale = max |x| / 127` and `x * (127 / max |x|)` rounded to the nearest, ties to even, all in
        float32; back, `q * scale` in float32, then rounded to the model's dtype.

        Effects: int8 rounds the latent part of `rows` in place.
        """
        if self.form != "int8":
            return rows
        latent = rows[:, : self.latent_elements].float()
        largest = latent.abs().amax(-1, keepdim=True)
        scale = largest / _LARGEST
        quantised = (latent * (_LARGEST / largest.clamp_min(_SMALLEST_ROW))).round_().to(torch.int8)
        packed = torch.zeros((rows.shape[0], self.row_bytes), dtype=torch.uint8, device=rows.device)
        own_latent, own_rope, own_scale = self._parts(packed)
        own_latent.copy_(quantised)
        own_rope.copy_(rows[:, self.latent_elements :])
        own_scale.copy_(scale)
        rows[:, : self.latent_elements] = quantised * scale
        return packed

    def unpack(self, stored: Tensor) -> Tensor:
        """Rows in the model's dtype: `[tokens, stored_elements]` to `[tokens, latent ++ rope]`."""
        if self.form != "int8":
            return stored
        latent, rope, scale = self._parts(stored)
        shape = (stored.shape[0], self.latent_elements + self.rope_elements)
        rows = torch.empty(shape, dtype=self.dtype, device=stored.device)
        rows[:, : self.latent_elements] = latent * scale
        rows[:, self.latent_elements :] = rope
        return rows

    def _parts(self, stored: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Latent, rope key and scale of packed int8 rows, as views."""
        rope_end = self.rope_offset_bytes + self.rope_elements * self.dtype.itemsize
        return (
            stored[:, : self.latent_elements].view(torch.int8),
            stored[:, self.rope_offset_bytes : rope_end].view(self.dtype),
            stored[:, self.scale_offset_bytes : self.row_bytes].view(torch.float32),
        )


def _words(nbytes: int) -> int:
    """Bytes rounded up to whole 32-bit words, so that every part is aligned."""
    return -(-nbytes // _WORD) * _WORD
