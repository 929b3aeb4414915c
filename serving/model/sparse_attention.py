"""Latent attention that, in long contexts, attends only to tokens chosen by an indexer.

Rows that attend individually gather only the chosen rows of the cache; prompt chunks, which expand their whole context
for many queries anyway, hide the others from each query. While no context of a group or query block is longer than
`top_k`, results are bit-identical to attention without an indexer.
"""

import torch
from torch import Tensor

from serving.model.architecture import LatentShape
from serving.model.batch import ForwardBatch, RowGroup
from serving.model.indexer import Indexer
from serving.model.kv_cache import KvCache
from serving.model.latent_attention import LatentAttention, LatentWeights
from serving.model.rope import rotate


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
