"""Random words of wanted lengths, with a beginning that all prompts share if wanted."""

from dataclasses import dataclass

import numpy as np

from loadgen.workload.lengths import Lengths
from loadgen.workload.ports import WordSource
from loadgen.workload.source import Asker, Question, draw_seed, room_behind, with_prefix


@dataclass(frozen=True)
class RandomPrompts:
    """Source of prompts that have nothing in common but the prefix.

    Attributes:
        input_tokens: length of a question. prefix_tokens: length of the common beginning, on top of that (as
            `--random-prefix-len` of `vllm bench serve`).
        system_role: send the beginning as a system message (chat).
    """

    words: WordSource
    input_tokens: Lengths
    prefix_tokens: int = 0
    system_role: bool = False

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
        n_tokens = settings.input_tokens.draw(rng, room_behind(settings.prefix_tokens, limit))
        prefix = [(self.prefix_seed, settings.prefix_tokens)] if settings.prefix_tokens else []
        return with_prefix(settings.words, prefix, (draw_seed(rng), n_tokens), system_role=settings.system_role)

    def later(self, rng: np.random.Generator) -> Question:
        """See `Asker`."""
        n_tokens = self.settings.input_tokens.draw(rng)
        words = self.settings.words
        return Question(words.prompt((draw_seed(rng), n_tokens)), n_tokens, words.exact)
