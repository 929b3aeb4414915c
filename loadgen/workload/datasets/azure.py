"""The Azure traces of 2023 to 2025: CSV with a time and the two lengths of each request, no text and no prefixes.

TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from loadgen.errors import TraceFormatError, UsageError
from loadgen.plan import Conversation, Turn, if_changed
from loadgen.regular_file import check_regular
from loadgen.workload.datasets.fit import Fit
from loadgen.workload.ports import WordSource
from loadgen.workload.source import draw_seed, with_prefix

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True)
class Azure:
    """Workload of an Azure trace: random words of the recorded lengths. Finite; `arrival_s` from the first request.

    Attributes:
        words: where text comes from. fit: scales and clips lengths.
    """

    path: Path
    words: WordSource
    fit: Fit = field(default_factory=Fit)

    def conversations(self, rng: np.random.Generator) -> Iterator[Conversation]:
        """See `Workload`.

        Raises: UsageError if the file cannot be read; TraceFormatError naming the line that is no request.
        """
        first: datetime | None = None
        for at, context, generated in self._requests():
            first = at if first is None else first
            self.fit.tally.taken += 1
            turn = random_turn(self.words, self.fit, context, generated, rng)
            yield Conversation(turns=[turn], arrival_s=(at - first).total_seconds())

    def _requests(self) -> Iterator[tuple[datetime, int, int]]:
        """Time and lengths of each line."""
        try:
            check_regular(self.path)
            with self.path.open(newline="", encoding="utf-8-sig") as file:
                rows = csv.reader(file)
                columns = self._columns(next(rows, []))
                for row in rows:
                    if row:
                        yield self._request(rows.line_num, row, columns)
        except OSError as error:
            raise UsageError(f"cannot read {self.path}: {error.strerror or error}") from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise TraceFormatError(f"{self.path}: not CSV ({error})") from None

    def _columns(self, header: list[str]) -> list[int]:
        """Where the three columns are.

        Raises: TraceFormatError if one is missing.
        """
        names = [name.strip() for name in header]
        missing = [name for name in _COLUMNS if name not in names]
        if missing:
            raise TraceFormatError(f"{self.path}:1: no column {', '.join(missing)}; an Azure trace has these three")
        return [names.index(name) for name in _COLUMNS]

    def _request(self, number: int, row: list[str], columns: list[int]) -> tuple[datetime, int, int]:
        """One line.

        Raises: TraceFormatError.
        """
        try:
            at, context, generated = (row[column].strip() for column in columns)
            time = datetime.fromisoformat(at)  # takes the seventh decimal of a second, and drops it
            lengths = int(context), int(generated)
            if min(lengths) < 0:
                raise ValueError("a negative length")
        except (ValueError, IndexError) as error:
            raise TraceFormatError(f"{self.path}:{number}: not a request of an Azure trace ({error})") from None
        return time if time.tzinfo else time.replace(tzinfo=UTC), *lengths


def random_turn(words: WordSource, fit: Fit, input_tokens: int, output_tokens: int, rng: np.random.Generator) -> Turn:
    """A request with words of its own, of recorded lengths made to fit. Effects: advances `rng` by one draw."""
    sent_input, sent_output = fit.clipped(fit.scaled(input_tokens), fit.scaled(output_tokens))
    question = with_prefix(words, [], (draw_seed(rng), sent_input), asked_tokens=fit.asked(input_tokens))
    return Turn(
        prompt=question.prompt,
        output_tokens=sent_output,
        input_tokens=question.tokens if question.exact else None,
        asked_input_tokens=if_changed(question.asked_tokens, question.tokens),
        asked_output_tokens=if_changed(fit.asked(output_tokens), sent_output),
    )
