"""A random layer of grouped attention for the kernels, with known cache rows and results in float64."""

import ctypes
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tests.model.native.kernels import FORMS, Shape, Span, at, listed


@dataclass(frozen=True)
class GroupedCase:
    """Values and keys of a cache, by KV head.

    Args:
        factor: of scores; None = that of the head's size.
        int8_cache: keep values and keys as int8; `rows` are then the dequantised values.
        window: tokens that a token sees; 0 = all.
        with_sinks: whether heads have sinks.
    """

    heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    dtype: torch.dtype = torch.float32
    block_tokens: int = 4
    blocks: int = 64
    layers: int = 2
    int8_cache: bool = False
    seed: int = 0
    window: int = 0
    with_sinks: bool = False
    sinks: Tensor = field(init=False)  # [heads]
    rows: Tensor = field(init=False)  # [blocks * block_tokens, kv_heads, value and key, head_dim], in its order

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.blocks * self.block_tokens, self.kv_heads, 2, self.head_dim)
        rows = torch.randn(shape, generator=generator).to(self.dtype).float()
        object.__setattr__(self, "sinks", torch.randn(self.heads, generator=generator) * 2)
        object.__setattr__(self, "rows", as_kept(rows).to(self.dtype).float() if self.int8_cache else rows)

    @property
    def scale(self) -> float:
        """Factor on scores."""
        return self.head_dim**-0.5

    def queries(self, rows: int) -> Tensor:
        """`[rows, heads, head_dim]`, some of them with sharp scores."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        return (torch.randn(rows, self.heads, self.head_dim, generator=generator) * 2).to(self.dtype)

    def shape(self) -> Shape:
        """Layout of the cache's rows: value ++ key for each KV head, in INT8 two scales behind them."""
        size = 1 if self.int8_cache else self.dtype.itemsize
        keys = self.head_dim * size
        scales = -(-2 * keys // 4) * 4 if self.int8_cache else -1
        head = scales + 8 if self.int8_cache else 2 * keys
        form = FORMS[self.dtype]
        return Shape(
            *(form, self.heads, 0, self.head_dim, 0, self.head_dim, form, self.kv_heads, self.head_dim),
            *(2 if self.int8_cache else form, self.blocks, self.layers, self.block_tokens),
            *(self.kv_heads * head, head, keys, scales, self.scale),
            *(self.window, self.sinks.data_ptr() if self.with_sinks else None),
        )

    def cache(self, kernels: ctypes.CDLL, layer: int = 1) -> np.ndarray:
        """The arena's bytes with all rows written."""
        shape = self.shape()
        arena = np.zeros(self.blocks * self.layers * self.block_tokens * shape.row_bytes, np.uint8)
        table = np.arange(self.blocks, dtype=np.int32)
        kernels.test_write_heads(
            ctypes.byref(shape), at(arena), layer, at(table), 0, self.rows.shape[0], at(self.rows.contiguous().numpy())
        )
        return arena

    def attend(
        self,
        kernels: ctypes.CDLL,
        query: Tensor,
        spans: list[Span],
        cache: np.ndarray,
        threads: int = 1,
        layer: int = 1,
    ) -> Tensor:
        """`[rows, heads, head_dim]` of all spans, whose rows are consecutive in `query`."""
        query = query.contiguous()
        array, tables = listed(spans)
        out = torch.full_like(query, float("nan"))
        kernels.test_attend_grouped(
            *(ctypes.byref(self.shape()), at(cache), layer, at(array), len(spans), at(tables)),
            *(ctypes.c_void_p(query.data_ptr()), ctypes.c_void_p(out.data_ptr()), threads),
        )
        return out

    def reference(self, query: Tensor, spans: list[Span]) -> Tensor:
        """The same in float64, with the rows as given."""
        out, row = [], 0
        for span in spans:
            slots = torch.tensor(span.table)[:, None] * self.block_tokens + torch.arange(self.block_tokens)
            context = self.rows[slots.flatten()[: span.start + span.rows]].double()
            value, key = context.repeat_interleave(self.heads // self.kv_heads, 1).unbind(2)
            scores = torch.einsum("rhd,shd->hrs", query[row : row + span.rows].double(), key) * self.scale
            position = span.start + torch.arange(span.rows)
            place = torch.arange(context.shape[0])
            hidden = place > position[:, None]
            if self.window:
                hidden |= place <= position[:, None] - self.window
            scores = scores.masked_fill(hidden, float("-inf"))
            if self.with_sinks:
                sinks = self.sinks.double()[:, None, None].expand(-1, span.rows, 1)
                scores = torch.cat((scores, sinks), -1)
            out.append(torch.einsum("hrs,shd->rhd", scores.softmax(-1)[..., : context.shape[0]], value))
            row += span.rows
        return torch.cat(out)


def as_kept(rows: Tensor) -> Tensor:
    """Values that int8 with a scale for each row's last dimension represents, by the cache's rule."""
    largest = rows.abs().amax(-1, keepdim=True)
    return (rows * (127 / largest.clamp_min(1e-30))).round() * (largest / 127)
