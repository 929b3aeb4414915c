"""Computes steps with torch: one forward pass over a step plan, then sampling."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from serving.errors import EngineError
from serving.grammar.matcher import Matchers
from serving.instance.core.sequence import KnownTokens
from serving.instance.executors.decode_graphs import CudaRecorder, DecodeGraphs, records
from serving.instance.executors.masks import StepMasks
from serving.instance.executors.prompt_logprobs import prompt_logprobs
from serving.instance.executors.step_batch import Feed, build_batch, step_feeds
from serving.model.host_sampler import Mask, Sampled
from serving.model.kv_cache import KvCache
from serving.model.model import Model
from serving.model.sampler import sample, token_logprobs
from serving.values.sequence import TokenLogprobs
from serving.values.step_plan import SampleOrder, SequenceResult, SequenceStep, StepPlan, StepResult


class TorchExecutor:
    """A `StepExecutor` over torch operators, on CPU or CUDA.

    Contains the model and the KV arena, but nothing about sequences. Norms, products and experts process the tokens of
    all sequences together; only attention runs per sequence.

    Args:
        kv_cache: on the model's device, of the model's dtype, with at least as many layers as the model; drafting needs
            one more.
        matchers: of sequences with a grammar; None = such a sequence fails.
    """

    def __init__(self, model: Model, kv_cache: KvCache, matchers: Matchers | None = None) -> None:
        assert kv_cache.device == model.device, "the KV cache lies on another device than the model"
        assert kv_cache.dtype == model.dtype, "the KV cache has another dtype than the model"
        self.model = model
        self.kv_cache = kv_cache
        self._matchers = matchers
        drafts = bool(model.mtp) and kv_cache.num_layers > len(model.config.layers)
        self._drafter = TorchDrafter(model, kv_cache) if drafts else None
        self._graphs = DecodeGraphs(model, kv_cache, CudaRecorder()) if records(model, kv_cache) else None

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step.

        Raises: EngineError if the pass fails (out of memory, a device error, ids out of range); discard the step then.
        Effects: writes the fed tokens' KV into the blocks of each block table.
        """
        begun = time.perf_counter()
        try:
            with torch.inference_mode():
                results = self._results(plan) if plan.sequences else ()
        except Exception as error:  # any error from torch: the port raises typed errors only
            raise EngineError(f"step {plan.step} failed: {error}") from error
        return StepResult(plan.step, results, time.perf_counter() - begun)

    def _results(self, plan: StepPlan) -> tuple[SequenceResult, ...]:
        hidden, rows = self._forward(plan)
        steps, masks = plan.sequences, StepMasks(self._matchers, plan.sequences, self.model.config.vocab_size)
        draws = self._draw(steps, masks, rows, hidden)
        drawn = [tuple(draw.token for draw in own) for own in draws]
        proposed = self._propose(steps, rows, hidden, drawn)
        results = []
        for step, fed, own, tokens, drafts in zip(steps, rows, draws, drawn, proposed, strict=True):
            prompt = self._prompt_logprobs(step, fed, hidden)
            logprobs = tuple(draw.logprobs for draw in own if draw.logprobs is not None)
            failure = masks.failures.get(step.sequence_id, "")
            results.append(SequenceResult(step.sequence_id, tokens, logprobs, prompt, drafts, failure))
        return tuple(results)

    def _forward(self, plan: StepPlan) -> tuple[Tensor, tuple[Sequence[int], ...]]:
        """Hidden states of all fed tokens, and each sequence's rows; uses recorded kernels if there are any."""
        feeds = step_feeds(plan)
        if self._graphs is not None and all(feed.alone for feed in feeds):
            hidden = self._graphs.forward(feeds)
            if hidden is not None:
                ends = list(accumulate(len(feed.tokens) for feed in feeds))
                return hidden, tuple(range(end - len(feed.tokens), end) for feed, end in zip(feeds, ends, strict=True))
        batch = build_batch(feeds, self.kv_cache, self.model.config.attention.heads)
        return self.model.forward(batch.forward, self.kv_cache), batch.rows

    def _draw(
        self, steps: Sequence[SequenceStep], masks: StepMasks, rows_of: Sequence[Sequence[int]], hidden: Tensor
    ) -> list[list[Sampled]]:
        """Sampled output of each sequence's step: the accepted draft tokens, and one more token.

        Every position after the last known token is sampled with its own random number, as if the draft tokens before
        it were accepted. The first sample that differs from the draft token there is still valid, and is the last one.
        """
        rows: list[int] = []
        orders: list[SampleOrder] = []
        allowed: list[Mask] = []
        for step, own in zip(steps, rows_of, strict=True):
            if step.sample is not None:
                rows.extend(own[len(step.tokens) - 1 :])
                orders.extend(_ahead(step.sample, step.drafts[:count]) for count in range(len(step.drafts) + 1))
                allowed.extend(masks.rows(step))
        if not orders:
            return [[] for _ in steps]
        logits = self.model.logits(hidden.index_select(0, torch.tensor(rows, device=hidden.device)))
        draws = iter(sample(logits, orders, allowed))
        return [_until_miss(step, draws, masks.usable(step)) if step.sample is not None else [] for step in steps]

    def _propose(
        self,
        steps: Sequence[SequenceStep],
        rows_of: Sequence[Sequence[int]],
        hidden: Tensor,
        drawn: Sequence[tuple[int, ...]],
    ) -> list[tuple[int, ...]]:
        """Draft tokens for the sequences that request them."""
        if all(step.next_drafts is None for step in steps):
            return [()] * len(steps)
        if self._drafter is None:
            raise EngineError("draft tokens were requested, but the model or its KV cache has no draft layer")
        return self._drafter.propose(steps, rows_of, hidden, drawn)

    def _prompt_logprobs(self, step: SequenceStep, fed: Sequence[int], hidden: Tensor) -> tuple[TokenLogprobs, ...]:
        """Log-probabilities of the prompt tokens that follow each fed token."""
        if step.prompt_logprobs is None:
            return ()
        own = hidden.index_select(0, torch.tensor(fed[: len(step.tokens)], device=hidden.device))
        return prompt_logprobs(step, own, self.model.logits, token_logprobs)


def _ahead(order: SampleOrder, drafts: Sequence[int]) -> SampleOrder:
    """The same request as many tokens later, when `drafts` will have become output."""
    return SampleOrder(order.sampling, order.prompt, KnownTokens(order.output, list(drafts))) if drafts else order


def _until_miss(step: SequenceStep, draws: Iterator[Sampled], usable: int) -> list[Sampled]:
    """Take one sequence's samples, and keep those up to the first that differs from its draft token.

    Args:
        usable: number of samples that count; those after a draft token that the grammar forbids do not.
    """
    own = [next(draws) for _ in range(len(step.drafts) + 1)]
    right = 0
    while right < len(step.drafts) and own[right].token == step.drafts[right]:
        right += 1
    return own[: min(right + 1, usable)]


# Draft tokens in torch: runs the draft layer over a step's accepted tokens, then over its own drafts.
#
#     position        p - 1      p        p + 1     p + 2
#     token           fed        sampled  draft 1   draft 2
#     row of layer    true       ────►    from its own output
#                     hidden              and draft 1
#                     (draft 1)  (draft 2)
#
# The row at a position takes its hidden state and the following token, and predicts the one after that. Up to the last
# fed token both are the model's; after it, the layer uses its own output instead, once per further draft token. Later
# steps overwrite those rows of its cache.


@dataclass(frozen=True, slots=True)
class _DraftRequest:
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

    def propose(
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
        requests: list[_DraftRequest] = []
        for index, step in enumerate(steps):
            following = _following(step, drawn[index])
            if not following:
                continue
            if step.sample is not None and step.next_drafts:
                requests.append(_DraftRequest(index, len(feeds), step.start + len(following), step.next_drafts))
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
        requests.sort(key=lambda request: -request.count)  # those with more draft tokens stay in front
        last = _take(seen, [drafts.rows[request.feed][-1] for request in requests]) if requests else seen
        return self._ahead(steps, requests, last)

    def _ahead(
        self, steps: Sequence[SequenceStep], requests: list[_DraftRequest], seen: Tensor
    ) -> list[tuple[int, ...]]:
        """Draft tokens from the layer's output at each request's last true row, then from its output for these."""
        guessed: list[Tensor] = []
        more = requests
        while more:
            tokens = self._layer.logits(seen).argmax(-1)
            ahead = len(guessed)
            guessed.append(tokens)
            more = [request for request in requests if request.count > len(guessed)]
            if not more:
                break
            feeds = [Feed((0,), request.position + ahead, steps[request.index].block_table, True) for request in more]
            batch = build_batch(feeds, self._cache, self._heads)
            order = [0] * len(more)
            for request, (row,) in enumerate(batch.rows):
                order[row] = request
            forward = replace(batch.forward, tokens=_take(tokens, order))  # draft tokens stay on the device
            seen = self._layer.forward(_take(seen, order), forward, self._cache, self._rope)
            seen = _take(seen, [row for (row,) in batch.rows])
        return _by_sequence(len(steps), requests, guessed)


def _following(step: SequenceStep, drawn: tuple[int, ...]) -> list[int]:
    """The token after each accepted fed position, as far as known; empty if the layer is not run."""
    if step.next_drafts is None:
        return []
    following = [*step.tokens[1:], *drawn]
    if step.sample is None and step.next_prompt_token is not None:
        following.append(step.next_prompt_token)
    return following


def _by_sequence(count: int, requests: Sequence[_DraftRequest], guessed: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """Draft tokens in the plan's order; fetched from the device at once."""
    found: list[list[int]] = [[] for _ in range(count)]
    if guessed:
        tokens = iter(torch.cat(tuple(guessed)).tolist())
        for part in guessed:
            for request in requests[: part.shape[0]]:
                found[request.index].append(next(tokens))
    return [tuple(one) for one in found]


def _take(rows: Tensor, order: Sequence[int]) -> Tensor:
    return rows.index_select(0, torch.tensor(order, device=rows.device))
