"""Multi-head latent attention, in two forms of one product.

The cache holds one latent row per token. *Plain heads* (prompt chunks) expand the latents of the whole context to keys
and values per head: cheap per score but expensive per context token, so it pays if many queries share a context.
*Absorbed* (decode) applies the expansion matrices to the query and the output instead, so that all heads attend to the
raw latent rows: no expansion, which pays for a few queries per context. The results agree up to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from serving.model.architecture import LatentShape
from serving.model.batch import ForwardBatch, PromptChunk, RowGroup
from serving.model.kv_cache import KvCache
from serving.model.layers import RmsNorm
from serving.model.linear import HeadLinear, Linear
from serving.model.rope import rotate


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """Weights of one attention layer.

    Args:
        into: hidden -> query latent (or queries, without q_lora) ++ kv latent ++ rope key.
        query_norm, query_up: query latent -> queries; None without q_lora.
        expand: kv latent -> per head position-free key ++ value; used by plain heads.
        key_absorb: per head, a query's position-free part -> latent space.
        value_absorb: per head, a mean latent -> the head's output.
    """

    into: Linear
    query_norm: RmsNorm | None
    query_up: Linear | None
    latent_norm: RmsNorm
    expand: Linear
    key_absorb: HeadLinear
    value_absorb: HeadLinear
    out: Linear


class LatentAttention:
    """One attention layer; `cache_layer` is its layer in the KV cache."""

    def __init__(self, shape: LatentShape, weights: LatentWeights, cache_layer: int) -> None:
        self.w = weights
        self.cache_layer = cache_layer
        self.heads = shape.heads
        self.nope_dim = shape.nope_dim
        self.value_dim = shape.value_dim
        self.latent = shape.latent
        self.scale = shape.scale
        self.attended = shape.row.attended
        query_in = shape.query_latent or self.heads * shape.query_dim
        self.split = (query_in, shape.latent, shape.rope_dim)

    def __call__(self, x: Tensor, rotations: Tensor, batch: ForwardBatch, cache: KvCache) -> Tensor:
        """Attend.

        Args:
            x: `[tokens, hidden]`, normalised.
            rotations: `[tokens, rope_dim / 2] complex64`.
        Returns: `[tokens, hidden]`.
        Effects: writes the tokens' rows into the cache.
        """
        query_in, latent, rope_key = self.w.into(x).split_with_sizes(self.split, -1)
        query = self._query(query_in, rotations)
        rows = torch.empty((x.shape[0], cache.row_elements), dtype=x.dtype, device=x.device)
        rows[:, : self.latent] = self.w.latent_norm(latent)
        rows[:, self.latent :] = rotate(rope_key, rotations)
        cache.write(self.cache_layer, batch.slots, rows)
        parts = [self._absorbed(query[g.first : g.last], g, cache) for g in batch.groups]
        parts += [self._plain(query[c.first : c.last], rows[c.first : c.last], c, cache) for c in batch.chunks]
        return self.w.out(parts[0] if len(parts) == 1 else torch.cat(parts))

    def _query(self, query_in: Tensor, rotations: Tensor) -> Tensor:
        """Queries `[tokens, heads, nope ++ rope]`, their rope part rotated."""
        if self.w.query_up is not None and self.w.query_norm is not None:
            query_in = self.w.query_up(self.w.query_norm(query_in))
        return self._turned(query_in, rotations)

    def _turned(self, query_in: Tensor, rotations: Tensor) -> Tensor:
        query = query_in.reshape(query_in.shape[0], self.heads, -1)
        query[..., self.nope_dim :] = rotate(query[..., self.nope_dim :], rotations[:, None])
        return query

    def _absorbed(self, query: Tensor, group: RowGroup, cache: KvCache) -> Tensor:
        """Rows of a group against their own contexts, in latent space: `[rows, heads * v_dim]`."""
        context = cache.gather(self.cache_layer, group.runs).view(query.shape[0], -1, cache.row_elements)
        return self._attend(query, context, group.mask)

    def _attend(self, query: Tensor, context: Tensor, mask: Tensor) -> Tensor:
        """Rows against rows of the cache `[rows, columns, attended]`; `mask` is added to their scores."""
        rows = query.shape[0]
        absorbed = self.w.key_absorb(query[..., : self.nope_dim])
        latent_query = torch.cat((absorbed, query[..., self.nope_dim :]), -1)
        scores = torch.baddbmm(mask, latent_query, context.transpose(1, 2), alpha=self.scale)
        mean = torch.bmm(scores.softmax(-1), context)  # includes the rope columns: cheaper than a copy without them
        return self.w.value_absorb(mean[..., : self.latent]).reshape(rows, -1)

    def _plain(
        self,
        query: Tensor,
        own: Tensor,
        chunk: PromptChunk,
        cache: KvCache,
        chosen: Sequence[Tensor | None] = (),
    ) -> Tensor:
        """A chunk against its cached prefix and itself, per head: `[tokens, heads * v_dim]`.

        Query rows are processed a few hundred at a time, each block against the keys up to its last row: half of the
        work of a full square, and scores that fit in the core's cache.

        Args:
            chosen: for each of those blocks, see `Choices`; empty = all contexts are read whole.
        """
        context = own
        if chunk.start:
            context = torch.cat((cache.gather(self.cache_layer, chunk.runs)[: chunk.start], own))
        key, value = self._expand(context)
        query = query.transpose(0, 1)
        out = torch.empty((query.shape[1], self.heads, self.value_dim), dtype=own.dtype, device=own.device)
        nothing = query.new_empty((1, 1, 1))  # ignored with beta = 0, but required by the signature
        for number, (first, rows) in enumerate(chunk.query_blocks()):
            block = query[:, first : first + rows]
            end = chunk.start + first + rows
            scores = torch.baddbmm(nothing, block, key[:, :end].transpose(1, 2), beta=0, alpha=self.scale)
            scores[..., -rows:].add_(chunk.hidden[:rows, :rows])
            if chosen and (tokens := chosen[number]) is not None:
                scores.masked_fill_(_others(tokens, end), float("-inf"))
            out[first : first + rows] = torch.bmm(scores.softmax(-1), value[:, :end]).transpose(0, 1)
        return out.view(out.shape[0], -1)

    def _expand(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Keys `[heads, context, qk_dim]` and values `[heads, context, v_dim]` of latent rows."""
        heads = self.w.expand(context[:, : self.latent].contiguous()).view(context.shape[0], self.heads, -1)
        nope, value = heads.transpose(0, 1).split_with_sizes((self.nope_dim, self.value_dim), -1)
        rope = context[:, self.latent : self.attended].expand(self.heads, -1, -1)
        return torch.cat((nope, rope), -1), value


def _others(chosen: Tensor, columns: int) -> Tensor:
    """`[rows, columns] bool`: True for columns that are not chosen."""
    return torch.ones((chosen.shape[0], columns), dtype=torch.bool, device=chosen.device).scatter_(1, chosen, False)
