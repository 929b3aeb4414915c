"""Attention whose query heads share key and value heads in groups: multi-head (groups of one) and grouped-query.

The cache holds each KV head's value and rotated key. Single tokens attend to their own contexts in one batched product
per step; chunks of a prompt attend together, head by head. Same result up to rounding. A layer with a window attends to
that many tokens; a sink takes part of a head's softmax weight without a value.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from serving.model.architecture import GroupedShape
from serving.model.batch import ForwardBatch, PromptChunk, RowGroup
from serving.model.kv_cache import KvCache
from serving.model.layers import RmsNorm
from serving.model.linear import Linear
from serving.model.rope import rotate


@dataclass(frozen=True, slots=True)
class GroupedWeights:
    """Weights of one attention layer.

    Args:
        into: hidden -> queries ++ keys ++ values, head after head; the rotating part of a head is at its end, with
            adjacent pairs.
        query_norm, key_norm: norm of each head's elements in that order; None if heads are not normalised.
        out: the heads' results -> hidden.
        sinks: `[heads]`, scores that take part in the softmax without a value; None = none.
    """

    into: Linear
    query_norm: RmsNorm | None
    key_norm: RmsNorm | None
    out: Linear
    sinks: Tensor | None = None


class GroupedAttention:
    """One attention layer; `cache_layer` is its place in the KV cache."""

    def __init__(self, shape: GroupedShape, weights: GroupedWeights, cache_layer: int) -> None:
        self.w = weights
        self.cache_layer = cache_layer
        self.shape = shape
        self.rotates = shape.rope_dim > 0
        self._plain_dim = shape.head_dim - shape.rope_dim
        self._split = (shape.heads * shape.head_dim, *(2 * [shape.kv_heads * shape.head_dim]))

    def __call__(self, x: Tensor, rotations: Tensor, batch: ForwardBatch, cache: KvCache) -> Tensor:
        """Attend.

        Args:
            x: `[tokens, hidden]`, normalised.
            rotations: `[tokens, rope_dim / 2] complex64`.
        Returns: `[tokens, hidden]`.
        Effects: writes the tokens' rows into the cache.
        """
        shape, tokens = self.shape, x.shape[0]
        query, key, value = self.w.into(x).split_with_sizes(self._split, -1)
        query = self._turned(query.reshape(tokens, shape.heads, -1), self.w.query_norm, rotations)
        rows = torch.empty((tokens, shape.kv_heads, 2, shape.head_dim), dtype=x.dtype, device=x.device)
        rows[:, :, 0] = value.view(tokens, shape.kv_heads, -1)
        rows[:, :, 1] = self._turned(key.reshape(tokens, shape.kv_heads, -1), self.w.key_norm, rotations)
        rows = rows.view(tokens, -1)
        layer, batch = cache.place(self.cache_layer, batch)
        cache.write(layer, batch.slots, rows)
        parts = [
            self._single(query[g.first : g.last], g, batch.positions[g.first : g.last], layer, cache)
            for g in batch.groups
        ]
        parts += [self._chunk(query[c.first : c.last], rows[c.first : c.last], c, layer, cache) for c in batch.chunks]
        return self.w.out(parts[0] if len(parts) == 1 else torch.cat(parts))

    def _turned(self, heads: Tensor, norm: RmsNorm | None, rotations: Tensor) -> Tensor:
        """Heads `[tokens, heads, head_dim]`, normalised, their rotating part turned."""
        if norm is not None:
            heads = norm(heads)
        if self.rotates:
            heads[..., self._plain_dim :] = rotate(heads[..., self._plain_dim :], rotations[:, None])
        return heads

    def _single(self, query: Tensor, group: RowGroup, positions: Tensor, layer: int, cache: KvCache) -> Tensor:
        """Rows of a group, at these positions, against their own contexts: `[rows, heads * head_dim]`."""
        rows, kv, width = query.shape[0], self.shape.kv_heads, self.shape.head_dim
        context = cache.gather(layer, group.runs).view(rows, -1, kv, 2, width).permute(3, 0, 2, 1, 4)
        value, key = context.reshape(2, rows * kv, -1, width)
        mask = self._within_window(group.mask, positions)
        mask = mask[:, None].expand(-1, kv, -1, -1).reshape(rows * kv, 1, -1)
        scores = torch.baddbmm(mask, query.reshape(rows * kv, -1, width), key.transpose(1, 2), alpha=self.shape.scale)
        weights = _softmax(scores, None if self.w.sinks is None else self.w.sinks.view(kv, -1, 1).repeat(rows, 1, 1))
        return torch.bmm(weights, value).view(rows, -1)

    def _within_window(self, mask: Tensor, positions: Tensor) -> Tensor:
        """Mask `[rows, 1, columns]` of rows at these positions, without the tokens outside the window."""
        window, columns = self.shape.window, mask.shape[-1]
        if window is None or columns <= window:
            return mask
        left = torch.arange(columns, device=mask.device) <= positions[:, None] - window
        return mask.masked_fill(left[:, None], float("-inf"))

    def _chunk(self, query: Tensor, own: Tensor, chunk: PromptChunk, layer: int, cache: KvCache) -> Tensor:
        """A chunk against its cached prefix and itself: `[tokens, heads * head_dim]`.

        Query rows are taken a few hundred at a time, each against the keys up to its last row, from the first one that
        any of them attends to.
        """
        kv, width, tokens = self.shape.kv_heads, self.shape.head_dim, query.shape[0]
        base, context = self._context(own, chunk, layer, cache)
        value, key = context.view(-1, kv, 2, width).permute(2, 1, 0, 3)
        query = query.reshape(tokens, kv, -1, width).permute(1, 2, 0, 3)  # [KV heads, group, tokens, width]
        out = torch.empty((tokens, kv, query.shape[1], width), dtype=own.dtype, device=own.device)
        nothing = query.new_empty((1, 1, 1))  # ignored with beta = 0, but required by the signature
        for first, rows in chunk.query_blocks():
            begin, end = self._first_seen(chunk.start + first), chunk.start + first + rows
            seen = slice(begin - base, end - base)
            block = query[:, :, first : first + rows].reshape(kv, -1, width)
            scores = torch.baddbmm(nothing, block, key[:, seen].transpose(1, 2), beta=0, alpha=self.shape.scale)
            by_row = scores.view(kv, -1, rows, end - begin)
            by_row[..., -rows:].add_(chunk.hidden[:rows, :rows])
            self._hide_left(by_row, begin, chunk.start + first)
            sinks = None if self.w.sinks is None else self.w.sinks.view(kv, -1).repeat_interleave(rows, 1)[..., None]
            mean = torch.bmm(_softmax(scores, sinks), value[:, seen]).view(kv, -1, rows, width)
            out[first : first + rows] = mean.permute(2, 0, 1, 3)
        return out.view(tokens, -1)

    def _first_seen(self, position: int) -> int:
        return 0 if self.shape.window is None else max(0, position - self.shape.window + 1)

    def _context(self, own: Tensor, chunk: PromptChunk, layer: int, cache: KvCache) -> tuple[int, Tensor]:
        """Rows that a chunk attends to, and the position of the first; blocks outside the window are not read."""
        if not chunk.start:
            return 0, own
        skipped = self._first_seen(chunk.start) // cache.block_tokens
        base = skipped * cache.block_tokens
        if base >= chunk.start:
            return chunk.start, own
        return base, torch.cat((cache.gather(layer, chunk.runs[skipped:])[: chunk.start - base], own))

    def _hide_left(self, scores: Tensor, begin: int, position: int) -> None:
        """Hide tokens outside the window.

        Args:
            scores: `[..., rows, columns]`; columns are positions from `begin` on, rows those from `position` on.
        Effects: writes the scores.
        """
        window = self.shape.window
        rows, columns = scores.shape[-2:]
        if window is not None and position + rows > window:
            left = scores.new_full((rows, columns), float("-inf")).tril_(position - window - begin)
            scores.add_(left)


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax over the last axis; `sinks`, `[..., 1]`, take their share of each row."""
    if sinks is None:
        return scores.softmax(-1)
    return torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
