"""Make the lengths of a data set fit another, usually smaller, model: scale all of them, then clip what is too long."""

import math
from dataclasses import dataclass, field

from loadgen.errors import UsageError
from loadgen.trace.draws import scaled_lengths
from loadgen.workload.ports import TokenCounter
from loadgen.workload.words import TOKENS_PER_WORD

# Lengths of texts that are given, not made.


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


# Number of data set entries left out, for the run's report. Shortened ones are counted in their own records.


@dataclass
class Tally:
    """Counts over all entries drawn so far (more than were sent, since prompts are drawn ahead).

    Attributes:
        taken: conversations drawn. left_out: entries without a prompt, or which do not fit and cannot be shortened.
        notes: what a trace's reader had to make sense of.
    """

    taken: int = 0
    left_out: int = 0
    notes: dict[str, str] = field(default_factory=dict)

    def warnings(self) -> list[str]:
        """Cautions for a reader of the result, one sentence each."""
        found = [*self.notes.values()]
        if self.left_out:
            found.append(
                f"{self.left_out} entries of the data set were left out (nothing to send, or too long for the model); "
                f"{self.taken} were taken"
            )
        return found


# Make the lengths of a data set fit another, usually smaller, model: scale all of them, then clip what is too long.


@dataclass(frozen=True)
class Fit:
    """Rule for lengths that do not fit.

    Attributes:
        length_scale: prompts and responses times this.
        max_model_tokens: most tokens that prompt and response may have together (less the chat template's).
        tally: counts omitted parts; shared by all users of this fit, and not part of its identity.
    """

    length_scale: float = 1.0
    max_model_tokens: int | None = None
    tally: Tally = field(default_factory=Tally, compare=False)

    def __post_init__(self) -> None:
        """Raises: UsageError for a scale not above 0, or a context too short for a prompt and a response."""
        if not 0 < self.length_scale < math.inf:
            raise UsageError(f"the length scale must be above 0, not {self.length_scale}")
        if self.max_model_tokens is not None and self.max_model_tokens < 2:
            raise UsageError(f"a model length of {self.max_model_tokens} leaves no room for a prompt and an answer")

    def asked(self, tokens: int) -> int:
        """A length scaled, to the nearest whole number, which may be 0."""
        return int(scaled_lengths(tokens, self.length_scale))

    def scaled(self, tokens: int) -> int:
        """A length scaled, to the nearest whole number, at least 1."""
        return max(1, self.asked(tokens))

    def clipped(self, input_tokens: int, output_tokens: int, block_tokens: int = 1) -> tuple[int, int]:
        """Lengths that the model can take: the response keeps its length if possible, the prompt loses its end.

        Args:
            block_tokens: a shortened prompt is cut to whole blocks of this size, if at least one fits, so that the rest
            has only whole blocks of the original.
        """
        if self.max_model_tokens is None or input_tokens + output_tokens <= self.max_model_tokens:
            return input_tokens, output_tokens
        output_tokens = min(output_tokens, self.max_model_tokens - 1)
        room = self.max_model_tokens - output_tokens
        if input_tokens > room:
            input_tokens = room // block_tokens * block_tokens or room
        return input_tokens, output_tokens

    def fits(self, total_tokens: int) -> bool:
        """Whether a text that cannot be changed, with its response, fits the model."""
        return self.max_model_tokens is None or total_tokens <= self.max_model_tokens
