"""Latent attention that, in long contexts, attends only to tokens chosen by an indexer.

Rows that attend individually gather only the chosen rows of the cache; prompt chunks, which expand their whole context
for many queries anyway, hide the others from each query. While no context of a group or query block is longer than
`top_k`, results are bit-identical to attention without an indexer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from serving.model.architecture import IndexerShape, LatentShape
from serving.model.batch import Choices, ForwardBatch, PromptChunk, RowGroup
from serving.model.kv_cache import KvCache
from serving.model.latent_attention import LatentAttention, LatentWeights
from serving.model.linear import Linear
from serving.model.rope import rotate

# The indexer of sparse attention, which chooses the tokens of a long context that a layer reads.
#
#     key of a token      LayerNorm(wk x), its rope part rotated: one more part of the token's row in the KV cache
#     score               sum over heads of weight_h(x) * relu(query_h . key)
#     chosen              the `top_k` best of a row's context; ties prefer earlier ones
#
# Scores are float32 for any model dtype. A context of at most `top_k` tokens is not scored. Source: the report of
# DeepSeek-V3.2; its Hadamard rotation of queries and keys, which changes no product, and its FP8 are omitted.


@dataclass(frozen=True, slots=True)
class IndexerWeights:
    """Weights of one indexer; the rotating elements of a head are its last ones.

    Args:
        query: query latent -> heads.
        key: hidden -> one key.
        key_norm, key_norm_bias: `[head_dim]`.
        heads: hidden -> one weight per head, float32.
    """

    query: Linear
    key: Linear
    key_norm: Tensor
    key_norm_bias: Tensor
    heads: Linear


class Indexer:
    """The indexer of one layer."""

    def __init__(self, shape: IndexerShape, weights: IndexerWeights) -> None:
        self.w = weights
        self.heads = shape.heads
        self.top_k = shape.top_k
        self.norm_eps = shape.norm_eps
        self.still = shape.head_dim - shape.rope_dim
        self.factor = float((shape.heads * shape.head_dim) ** -0.5)

    def keys(self, x: Tensor, rotations: Tensor) -> Tensor:
        """Keys of tokens: `[tokens, hidden]` to `[tokens, head_dim]`, float32."""
        w, key = self.w, self.w.key(x).float()
        key = layer_norm(key, key.shape[-1:], w.key_norm.float(), w.key_norm_bias.float(), self.norm_eps)
        key[:, self.still :] = rotate(key[:, self.still :], rotations)
        return key

    def chooses(self, batch: ForwardBatch) -> bool:
        """Whether a context of the batch may be longer than `top_k`."""
        return any(self._is_long(part) for part in batch.parts)

    def queries(self, x: Tensor, query_latent: Tensor, rotations: Tensor) -> "IndexQueries":
        """Queries of tokens.

        Args:
            x: `[tokens, hidden]`, normalised.
            query_latent: `[tokens, query_latent]`, normalised.
        """
        query = self.w.query(query_latent).view(x.shape[0], self.heads, -1)
        query[..., self.still :] = rotate(query[..., self.still :], rotations[:, None])
        return IndexQueries(query.float(), self.w.heads(x.float()) * self.factor)

    def choose(self, asked: "IndexQueries", own: Tensor, batch: ForwardBatch, cache: KvCache, layer: int) -> Choices:
        """Tokens for the rows of each group and chunk; none where the whole context is attended to.

        Args:
            own: the tokens' keys as stored in the cache.
            layer: number in the cache.
        """
        chosen: Choices = []
        for part in batch.parts:
            rows = asked.rows(part.first, part.last)
            if not self._is_long(part):
                chosen.append([])
            elif isinstance(part, RowGroup):
                chosen.append([self._of_group(rows, part, cache.gather_index_keys(layer, part.runs))])
            else:
                keys = own[part.first : part.last]
                if part.start:
                    keys = torch.cat((cache.gather_index_keys(layer, part.runs)[: part.start], keys))
                chosen.append(self._of_chunk(rows, part, keys.float()))
        return chosen

    def _is_long(self, part: RowGroup | PromptChunk) -> bool:
        columns = part.mask.shape[-1] if isinstance(part, RowGroup) else part.start + part.last - part.first
        return columns > self.top_k

    def _of_group(self, asked: "IndexQueries", group: RowGroup, keys: Tensor) -> Tensor:
        """Args: keys: `[rows * columns, head_dim]`."""
        keys = keys.float().view(asked.query.shape[0], -1, keys.shape[-1])
        heads = torch.bmm(asked.query, keys.transpose(1, 2)).relu_()
        return best(asked.sums(heads) + group.mask[:, 0], self.top_k)

    def _of_chunk(self, asked: "IndexQueries", chunk: PromptChunk, keys: Tensor) -> list[Tensor | None]:
        """Args: keys: `[context, head_dim]`, float32."""
        chosen: list[Tensor | None] = []
        for first, rows in chunk.query_blocks():
            end = chunk.start + first + rows
            if end <= self.top_k:
                chosen.append(None)
                continue
            block = asked.rows(first, first + rows)
            heads = (block.query.flatten(0, 1) @ keys[:end].t()).relu_()
            scores = block.sums(heads.view(rows, self.heads, end))
            scores[:, -rows:] += chunk.hidden[:rows, :rows]
            chosen.append(best(scores, self.top_k))
        return chosen


@dataclass(frozen=True, slots=True)
class IndexQueries:
    """Queries of the index for the rows of a step.

    Args:
        query: `[rows, heads, head_dim]`, float32.
        weights: `[rows, heads]`, float32, weights of the heads in a score.
    """

    query: Tensor
    weights: Tensor

    def rows(self, first: int, last: int) -> "IndexQueries":
        """Rows `first ... last - 1`."""
        return IndexQueries(self.query[first:last], self.weights[first:last])

    def sums(self, heads: Tensor) -> Tensor:
        """Weighted sum over the heads: their scores `[rows, heads, columns]` to scores `[rows, columns]`."""
        return torch.bmm(self.weights[:, None], heads)[:, 0]


def best(scores: Tensor, count: int) -> Tensor:
    """The best columns of each row; ties prefer earlier ones, which `topk` alone does not guarantee.

    Args:
        scores: `[rows, columns]`, float32; -inf = chosen only if there is no other.
        count: less than the columns.
    Returns: `[rows, count] int64`, ascending. A row with a NaN may repeat columns.
    """
    least = scores.topk(count, sorted=False).values.amin(-1, keepdim=True)
    above, level = scores > least, scores == least
    chosen = above | (level & (level.cumsum(-1) <= count - above.sum(-1, keepdim=True)))
    columns = torch.arange(scores.shape[1], device=scores.device)
    return torch.where(chosen, columns, scores.shape[1] - 1).topk(count, largest=False, sorted=True).values


# Latent attention that, in long contexts, attends only to tokens chosen by an indexer.


class SparseAttention(LatentAttention):
    """One attention layer.

    Args:
        weights: must include a query latent.
        indexer: its own; None = it uses the choice of the last layer that has one.
    """

    def __init__(self, shape: LatentShape, weights: LatentWeights, cache_layer: int, indexer: Indexer | None) -> None:
        super().__init__(shape, weights, cache_layer)
        self.indexer = indexer

    def __call__(self, x: Tensor, rotations: Tensor, batch: ForwardBatch, cache: KvCache) -> Tensor:
        """Attend, like `LatentAttention`.

        Effects: also overwrites the batch's choices, or reads them.
        """
        w = self.w
        assert w.query_norm is not None, "an indexer's queries come from a latent"
        assert w.query_up is not None, "an indexer's queries come from a latent"
        query_in, latent, rope_key = w.into(x).split_with_sizes(self.split, -1)
        query_latent = w.query_norm(query_in)
        query = self._turned(w.query_up(query_latent), rotations)
        rows = torch.zeros((x.shape[0], cache.row_elements), dtype=x.dtype, device=x.device)
        rows[:, : self.latent] = w.latent_norm(latent)
        rows[:, self.latent : self.attended] = rotate(rope_key, rotations)
        if self.indexer is not None:
            rows[:, self.attended :] = self.indexer.keys(x, rotations)
        cache.write(self.cache_layer, batch.slots, rows)
        if self.indexer is not None:
            batch.choices.clear()
            if self.indexer.chooses(batch):
                asked, own = self.indexer.queries(x, query_latent, rotations), rows[:, self.attended :]
                batch.choices.extend(self.indexer.choose(asked, own, batch, cache, self.cache_layer))
        return w.out(self._over_choices(query, rows, batch, cache))

    def _over_choices(self, query: Tensor, rows: Tensor, batch: ForwardBatch, cache: KvCache) -> Tensor:
        """All rows against the chosen tokens of their contexts: `[tokens, heads * v_dim]`."""
        choices = batch.choices or [[] for _ in batch.parts]
        parts = []
        for group, chosen in zip(batch.groups, choices, strict=False):
            tokens = chosen[0] if chosen else None
            parts.append(self._row_group(query[group.first : group.last], group, tokens, cache))
        for chunk, chosen in zip(batch.chunks, choices[len(batch.groups) :], strict=True):
            own = slice(chunk.first, chunk.last)
            parts.append(self._plain(query[own], rows[own], chunk, cache, chosen))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _row_group(self, query: Tensor, group: RowGroup, tokens: Tensor | None, cache: KvCache) -> Tensor:
        """Rows of a group against the chosen tokens, or without a choice against their whole contexts."""
        rows, mask = query.shape[0], group.mask
        if tokens is None:
            context = cache.gather(self.cache_layer, group.runs)
        else:
            size = cache.block_tokens
            slots = group.runs.view(rows, -1).gather(1, tokens // size) * size + tokens % size
            context = cache.gather_chosen(self.cache_layer, slots.flatten())
            mask = mask.gather(2, tokens[:, None])
        # Without the indexer's keys, and dense: the same product as in a model without an indexer.
        return self._attend(query, context[:, : self.attended].contiguous().view(rows, -1, self.attended), mask)
