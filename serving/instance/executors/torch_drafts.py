"""Draft tokens in torch: runs the draft layer over a step's accepted tokens, then over its own drafts.

    position        p - 1      p        p + 1     p + 2
    token           fed        sampled  draft 1   draft 2
    row of layer    true       ────►    from its own output
                    hidden              and draft 1
                    (draft 1)  (draft 2)

The row at a position takes its hidden state and the following token, and predicts the one after that. Up to the last
fed token both are the model's; after it, the layer uses its own output instead, once per further draft token. Later
steps overwrite those rows of its cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from serving.instance.executors.step_batch import Feed, build_batch
from serving.model.kv_cache import KvCache
from serving.model.model import Model
from serving.values.step_plan import SequenceStep


@dataclass(frozen=True, slots=True)
class _Wish:
    """A sequence of the plan that requests draft tokens: the starting row of the first pass, and their number."""

    index: int
    feed: int
    position: int
    count: int


class TorchDrafter:
    """Keeps the draft layer's cache up to date and drafts tokens.

    Args:
        cache: with one layer more than the model has.
    """

    def __init__(self, model: Model, cache: KvCache) -> None:
        self._layer = model.mtp[0]
        self._rope = model.rope
        self._heads = model.config.attention.heads
        self._cache = cache

    def guess(
        self,
        steps: Sequence[SequenceStep],
        rows_of: Sequence[Sequence[int]],
        hidden: Tensor,
        drawn: Sequence[tuple[int, ...]],
    ) -> list[tuple[int, ...]]:
        """Draft tokens for each sequence of a computed step.

        Args:
            rows_of: per sequence, its rows in `hidden`.
            hidden: of the model's own pass.
            drawn: per sequence, its sampled tokens, including accepted drafts.
        Returns: per sequence, as many draft tokens as requested.
        Effects: writes the draft layer's rows of the accepted positions, and of further draft tokens.
        """
        feeds: list[Feed] = []
        sources: list[Sequence[int]] = []
        wishes: list[_Wish] = []
        for index, step in enumerate(steps):
            following = _following(step, drawn[index])
            if not following:
                continue
            if step.sample is not None and step.next_drafts:
                wishes.append(_Wish(index, len(feeds), step.start + len(following), step.next_drafts))
            feeds.append(Feed(following, step.start, step.block_table, step.alone))
            sources.append(rows_of[index])
        if not feeds:
            return [()] * len(steps)
        drafts = build_batch(feeds, self._cache, self._heads)
        order = [0] * sum(len(rows) for rows in drafts.rows)
        for rows, source in zip(drafts.rows, sources, strict=True):
            for row, origin in zip(rows, source, strict=False):  # rejected draft tokens are skipped
                order[row] = origin
        seen = self._layer.forward(_take(hidden, order), drafts.forward, self._cache, self._rope)
        wishes.sort(key=lambda wish: -wish.count)  # those with more draft tokens stay in front
        last = _take(seen, [drafts.rows[wish.feed][-1] for wish in wishes]) if wishes else seen
        return self._ahead(steps, wishes, last)

    def _ahead(self, steps: Sequence[SequenceStep], wishes: list[_Wish], seen: Tensor) -> list[tuple[int, ...]]:
        """Draft tokens from the layer's output at each wish's last true row, then from its output for those tokens."""
        guessed: list[Tensor] = []
        more = wishes
        while more:
            tokens = self._layer.logits(seen).argmax(-1)
            ahead = len(guessed)
            guessed.append(tokens)
            more = [wish for wish in wishes if wish.count > len(guessed)]
            if not more:
                break
            feeds = [Feed((0,), wish.position + ahead, steps[wish.index].block_table, True) for wish in more]
            batch = build_batch(feeds, self._cache, self._heads)
            order = [0] * len(more)
            for wish, (row,) in enumerate(batch.rows):
                order[row] = wish
            forward = replace(batch.forward, tokens=_take(tokens, order))  # draft tokens stay on the device
            seen = self._layer.forward(_take(seen, order), forward, self._cache, self._rope)
            seen = _take(seen, [row for (row,) in batch.rows])
        return _by_sequence(len(steps), wishes, guessed)


def _following(step: SequenceStep, drawn: tuple[int, ...]) -> list[int]:
    """The token after each accepted fed position, as far as known; empty if the layer is not run."""
    if step.next_drafts is None:
        return []
    following = [*step.tokens[1:], *drawn]
    if step.sample is None and step.next_prompt_token is not None:
        following.append(step.next_prompt_token)
    return following


def _by_sequence(count: int, wishes: Sequence[_Wish], guessed: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """Draft tokens in the plan's order; fetched from the device at once."""
    found: list[list[int]] = [[] for _ in range(count)]
    if guessed:
        tokens = iter(torch.cat(tuple(guessed)).tolist())
        for part in guessed:
            for wish in wishes[: part.shape[0]]:
                found[wish.index].append(next(tokens))
    return [tuple(one) for one in found]


def _take(rows: Tensor, order: Sequence[int]) -> Tensor:
    return rows.index_select(0, torch.tensor(order, device=rows.device))
