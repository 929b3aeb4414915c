"""Sources of the prompts of conversations: the first prompt of a session and its later ones.

A `Source` creates prompts, without turns, think times or responses; `sessions.Sessions` makes conversations of it. A
run of single requests is a run of sessions of one turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from loadgen.errors import UsageError
from loadgen.plan import Prompt, PromptMessage, Role
from loadgen.workload.lengths import Lengths
from loadgen.workload.ports import WordSource

Piece = tuple[int, int]
"""Seed and number of tokens of a stretch of text."""


@dataclass(frozen=True)
class Question:
    """One prompt.

    Attributes:
        tokens: of the prompt as the server will count it (without a chat template); an estimate unless `exact`.
        asked_tokens: length that was drawn, before it was made to fit.
        tenant: see `plan.Conversation`.
    """

    prompt: Prompt
    tokens: int
    exact: bool
    asked_tokens: int
    tenant: str = ""


class Asker(Protocol):
    """A source opened for one run: everything drawn once per run (system prompts, texts) is already drawn."""

    def first(self, rng: np.random.Generator, limit: int | None) -> Question:
        """Start of a conversation, system prompt included, in at most `limit` tokens (>= 1).

        Raises: UsageError if the shared prefix alone is longer.
        Effects: advances `rng`.
        """
        ...

    def later(self, rng: np.random.Generator) -> Question:
        """A later turn's addition. Effects: advances `rng`."""
        ...


class Source(Protocol):
    """Implementations are frozen dataclasses: settings only."""

    @property
    def least_tokens(self) -> int:
        """Tokens of the shortest possible first prompt."""
        ...

    def open(self, rng: np.random.Generator) -> Asker:
        """Prepare the source for one run.

        Raises: UsageError if files cannot be read.
        Effects: advances `rng`; may read files and count tokens.
        """
        ...


def draw_seed(rng: np.random.Generator) -> int:
    """Seed of a text."""
    return int(rng.integers(2**63))


def with_prefix(
    words: WordSource,
    prefix: Sequence[Piece],
    question: Piece,
    *,
    asked_tokens: int,
    system_role: bool = False,
    tenant: str = "",
) -> Question:
    """The first prompt of a conversation: a shared prefix and a separate question.

    Tokens that the tokenizer adds automatically count as the first ones of the prompt, so that lengths are those that
    the server reports and shared prefixes are exact to the token; the question keeps at least one token.

    Args:
        asked_tokens: of the question, before its length was made to fit.
        system_role: send the prefix as a system message (chat) instead of as the start of the text.
    """
    added = words.overhead_tokens
    pieces: list[Piece] = []
    for seed, n_tokens in (*prefix, question):
        taken = min(added, n_tokens)
        added -= taken
        pieces.append((seed, n_tokens - taken))
    pieces[-1] = (question[0], max(1, pieces[-1][1]))
    tokens = sum(n_tokens for _, n_tokens in pieces) + words.overhead_tokens
    prompt = words.prompt(*pieces)
    if system_role and prefix:
        system, user = words.prompt(*pieces[:-1]), words.prompt(pieces[-1])
        if isinstance(system, str) and isinstance(user, str):
            prompt = [PromptMessage(Role.SYSTEM, system), PromptMessage(Role.USER, user)]
    asked_tokens += sum(n_tokens for _, n_tokens in prefix)
    return Question(prompt, tokens, words.exact, asked_tokens, tenant)


def later_question(words: WordSource, lengths: Lengths, rng: np.random.Generator) -> Question:
    """A later turn's addition: new words. Effects: advances `rng`."""
    asked = lengths.asked(rng)
    n_tokens = lengths.fitted(asked)
    return Question(words.prompt((draw_seed(rng), n_tokens)), n_tokens, words.exact, asked)


def room_behind(prefix_tokens: int, limit: int | None) -> int | None:
    """Tokens that a shared beginning leaves for the question; None = no limit.

    Raises: UsageError if it leaves none.
    """
    if limit is None:
        return None
    if limit <= prefix_tokens:
        raise UsageError(
            f"a shared prefix of {prefix_tokens} tokens leaves no room for a question in a prompt of at most {limit}; "
            "shorten it or raise --max-model-len"
        )
    return limit - prefix_tokens


# Random words of given lengths, with an optional prefix common to all prompts.


@dataclass(frozen=True)
class RandomPrompts:
    """Source of prompts that share only the prefix.

    Attributes:
        input_tokens: length of a question. prefix_tokens: length of the common prefix, on top of that (as
            `--random-prefix-len` of `vllm bench serve`).
        system_role: send the prefix as a system message (chat).
    """

    words: WordSource
    input_tokens: Lengths
    prefix_tokens: int = 0
    system_role: bool = False

    @property
    def least_tokens(self) -> int:
        return self.prefix_tokens + self.input_tokens.least

    def open(self, rng: np.random.Generator) -> Asker:
        return _RandomAsker(self, draw_seed(rng))


@dataclass(frozen=True)
class _RandomAsker:
    """`Asker` of `RandomPrompts`, with its prefix drawn."""

    settings: RandomPrompts
    prefix_seed: int

    def first(self, rng: np.random.Generator, limit: int | None) -> Question:
        settings = self.settings
        asked = settings.input_tokens.asked(rng)
        n_tokens = settings.input_tokens.fitted(asked, room_behind(settings.prefix_tokens, limit))
        prefix = [(self.prefix_seed, settings.prefix_tokens)] if settings.prefix_tokens else []
        question = (draw_seed(rng), n_tokens)
        return with_prefix(settings.words, prefix, question, asked_tokens=asked, system_role=settings.system_role)

    def later(self, rng: np.random.Generator) -> Question:
        settings = self.settings
        return later_question(settings.words, settings.input_tokens, rng)
