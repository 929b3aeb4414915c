"""Lengths of texts that are given, not made."""

from dataclasses import dataclass

from loadgen.workload.ports import TokenCounter
from loadgen.workload.words import TOKENS_PER_WORD


@dataclass(frozen=True)
class Measure:
    """Counts tokens of a data set's texts.

    Attributes:
        counter: the model's tokenizer, called for every text; None = about 1.3 tokens a word, as an estimate.
            The server's own tokenizer is called during the run, and so adds to its load.
    """

    counter: TokenCounter | None = None

    @property
    def exact(self) -> bool:
        """Whether lengths are certain."""
        return self.counter is not None

    def tokens(self, text: str) -> int:
        """Tokens of a text, at least 1.

        Raises: ServerError if a request to the server's tokenizer fails.
        """
        if self.counter is None:
            return max(1, round(len(text.split()) * TOKENS_PER_WORD))
        return max(1, self.counter.count(text)) if text else 1
