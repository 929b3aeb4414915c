"""Log-likelihood of continuations of contexts, for multiple-choice tasks.

Tokenised as the lm-evaluation-harness does it: blanks at a context's end belong to the continuation, and the
continuation's tokens are those of the whole text beyond the context's. What does not fit is cut from the left.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from serving.errors import ConfigError, ModelError
from serving.gateway.api.tokenizer import Tokenizer
from serving.tools.evaluate.scorer import BLOCK_TOKENS, PrefixGroup, Scorer, blocks_of
from serving.tools.evaluate.texts import text_prefix


@dataclass(frozen=True, slots=True)
class Continuation:
    """Token ids to feed, and those whose probability is needed.

    Args:
        fed: context and continuation without its last token. targets: the continuation.
        cut: whether the context lost its beginning.
    """

    fed: tuple[int, ...]
    targets: tuple[int, ...]
    cut: bool


def encode_pair(tokenizer: Tokenizer, context: str, continuation: str, longest: int) -> Continuation:
    """Token ids of a context and its continuation.

    Args:
        longest: most tokens that may be fed.
    Raises: ConfigError if the continuation has no token, is too long, or has no context token before it.
    """
    bare = context.rstrip()
    context, continuation = bare, context[len(bare) :] + continuation
    prefix = text_prefix(tokenizer)
    if context:
        before = prefix + tokenizer.encode(context, add_special_tokens=False)
        targets = (prefix + tokenizer.encode(context + continuation, add_special_tokens=False))[len(before) :]
    else:
        before = prefix or [_end_token(tokenizer)]
        targets = tokenizer.encode(continuation, add_special_tokens=False)
    if not targets:
        raise ConfigError(f"the continuation {continuation!r} adds no token to its context")
    if len(targets) > longest:
        raise ConfigError(f"a continuation of {len(targets)} tokens does not fit a context of {longest}")
    whole = [*before, *targets]
    fed = whole[-(longest + 1) : -1]
    return Continuation(tuple(fed), tuple(targets), len(fed) < len(whole) - 1)


def loglikelihoods(
    model: Scorer, questions: Sequence[Sequence[Continuation]], on_progress: Callable[[int], None] = lambda done: None
) -> list[list[float]]:
    """`log p(continuation | context)` [nat] of each continuation of each question.

    The common prefix of a question's continuations is fed once.

    Args:
        on_progress: called after each pass with the number of completed continuations.
    Raises: EngineError if a pass fails; ModelError if the model's output is no number.
    Effects: overwrites the cache.
    """
    found = [[0.0] * len(question) for question in questions]
    asked = [_Asked.of(number, question) for number, question in enumerate(questions)]
    parts = [part for one in asked for part in one.parts(model.blocks)]
    parts.sort(key=lambda part: part.group.blocks, reverse=True)  # a lack of memory shows at once
    for batch in _batches(parts, model.blocks):
        for part, hidden in zip(batch, model.hidden([part.group for part in batch]), strict=True):
            for rows, places in zip(hidden, part.places, strict=True):
                for place in places:
                    found[part.question][place] = _sum_of(model, rows, questions[part.question][place].targets)
        on_progress(sum(len(places) for part in batch for places in part.places))
    return found


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question, or some of its continuations, as one group of sequences.

    Args:
        places: per rest of the group, the continuations that it completes: those of one token share theirs.
    """

    question: int
    group: PrefixGroup
    places: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, number: int, question: Sequence[Continuation]) -> "_Asked":
        """The whole question."""
        places: dict[tuple[int, ...], list[int]] = {}
        for place, one in enumerate(question):
            places.setdefault(one.fed, []).append(place)
        shared = _shared_tokens(question) if len(places) > 1 else 0
        group = PrefixGroup(question[0].fed[:shared], tuple(fed[shared:] for fed in places))
        return cls(number, group, tuple(map(tuple, places.values())))

    def parts(self, blocks: int) -> Iterator["_Asked"]:
        """The question in parts that take at most so many blocks, which hold any one sequence."""
        first, shared = 0, blocks_of(self.group.shared)
        while first < len(self.places):
            stop, taken = first + 1, shared + blocks_of(self.group.rests[first])
            while stop < len(self.places) and taken + blocks_of(self.group.rests[stop]) <= blocks:
                taken += blocks_of(self.group.rests[stop])
                stop += 1
            yield _Asked(
                self.question, PrefixGroup(self.group.shared, self.group.rests[first:stop]), self.places[first:stop]
            )
            first = stop


def _shared_tokens(question: Sequence[Continuation]) -> int:
    """Common prefix of all sequences: whole blocks, and none that predicts a target."""
    common = min(len(one.fed) - len(one.targets) for one in question)
    for one in question[1:]:
        pairs = zip(question[0].fed[:common], one.fed, strict=False)
        common = next((place for place, (ours, theirs) in enumerate(pairs) if ours != theirs), common)
    return common // BLOCK_TOKENS * BLOCK_TOKENS


def _batches(parts: Sequence[_Asked], blocks: int) -> Iterator[list[_Asked]]:
    """Neighbours together, as many as so many blocks hold."""
    batch: list[_Asked] = []
    taken = 0
    for part in parts:
        if taken + part.group.blocks > blocks:
            yield batch
            batch, taken = [], 0
        batch.append(part)
        taken += part.group.blocks
    yield batch


def _end_token(tokenizer: Tokenizer) -> int:
    """Token that the harness puts before a text without a begin-of-text token."""
    if tokenizer.eos_id is None:
        raise ConfigError("an empty context needs a begin- or end-of-text token, but the tokenizer has none")
    return tokenizer.eos_id


def _sum_of(model: Scorer, hidden: Tensor, targets: Sequence[int]) -> float:
    with torch.inference_mode():
        logprobs = model.model.logits(hidden[-len(targets) :]).log_softmax(-1)
        own = logprobs.gather(1, torch.tensor(targets, device=hidden.device)[:, None])
    found = float(own.double().sum())
    if math.isnan(found):
        raise ModelError("the model gives log-probabilities that are not numbers (NaN): its weights are damaged")
    return found
