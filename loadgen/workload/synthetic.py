"""Random words of given lengths, with an optional prefix common to all prompts."""

from dataclasses import dataclass

import numpy as np

from loadgen.workload.lengths import Lengths
from loadgen.workload.ports import WordSource
from loadgen.workload.source import Asker, Question, draw_seed, later_question, room_behind, with_prefix


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
        """See `Source`."""
        return self.prefix_tokens + self.input_tokens.least

    def open(self, rng: np.random.Generator) -> Asker:
        """See `Source`."""
        return _RandomAsker(self, draw_seed(rng))


@dataclass(frozen=True)
class _RandomAsker:
    """`RandomPrompts` with its prefix drawn."""

    settings: RandomPrompts
    prefix_seed: int

    def first(self, rng: np.random.Generator, limit: int | None) -> Question:
        """See `Asker`."""
        settings = self.settings
        asked = settings.input_tokens.asked(rng)
        n_tokens = settings.input_tokens.fitted(asked, room_behind(settings.prefix_tokens, limit))
        prefix = [(self.prefix_seed, settings.prefix_tokens)] if settings.prefix_tokens else []
        question = (draw_seed(rng), n_tokens)
        return with_prefix(settings.words, prefix, question, asked_tokens=asked, system_role=settings.system_role)

    def later(self, rng: np.random.Generator) -> Question:
        """See `Asker`."""
        settings = self.settings
        return later_question(settings.words, settings.input_tokens, rng)
