"""Lengths of texts that are given, not made."""

from dataclasses import dataclass

from loadgen.workload.ports import TokenCounter
from loadgen.workload.words import TOKENS_PER_WORD


@dataclass(frozen=True)
class Measure:
    """Counts tokens of a data set's texts.

    Attributes:
        counter: the model's tokenizer, asked for every text; None = about 1.3 tokens a word, and nothing is certain.
            A tokenizer that is the server's own is asked while the run goes on, and so adds to its load.
    """

    counter: TokenCounter | None = None

    @property
    def exact(self) -> bool:
        """Whether lengths are certain."""
        return self.counter is not None

    def tokens(self, text: str) -> int:
        """Tokens of a text, at least 1.

        Raises: ServerError where a server counts and cannot be asked.
        """
        if self.counter is None:
            return max(1, round(len(text.split()) * TOKENS_PER_WORD))
        return max(1, self.counter.count(text)) if text else 1
