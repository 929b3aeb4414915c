"""Traces that are CSV: arrivals and lengths, and no word on prefixes.

    TIMESTAMP,ContextTokens,GeneratedTokens           Azure, 2023 to 2025; times count from the first request
    2023-11-16 18:15:46.6805900,374,44

    arrival_s,prompt_tokens,output_tokens             plain; seconds from the trace's beginning
    0.25,374,44

Columns may stand in any order and among others.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from serving.regular_file import check_regular
from serving.sim.workload.columns import Columns, Row, batches_of
from serving.sim.workload.errors import TraceError, trace_error
from serving.sim.workload.lines import check_lengths, check_time, empty, unreadable

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
PLAIN = ("arrival_s", "prompt_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class TableTrace:
    """Reader of one file. `columns`: `AZURE` or `PLAIN`. `block_tokens`: None, since there are no prefix ids."""

    path: Path
    columns: tuple[str, str, str]
    block_tokens: None = None

    def batches(self) -> Iterator[Columns]:
        """The requests.

        Raises: TraceError naming the line that is no request, or comes too early.
        """
        return batches_of(self._rows())

    def _rows(self) -> Iterator[Row]:
        """Each line."""
        seconds = _clock() if self.columns == AZURE else float
        before_s, number, count = 0.0, 1, 0
        try:
            check_regular(self.path)
            with self.path.open(newline="", encoding="utf-8-sig") as file:
                lines = csv.reader(file)
                places = _places(self.path, next(lines, []), self.columns)
                for line in lines:
                    if not line:
                        continue
                    number = lines.line_num
                    row = self._row(number, line, places, seconds)
                    check_time(self.path, number, row[0], before_s)
                    before_s = row[0]
                    count += 1
                    yield row
        except OSError as error:
            raise unreadable(self.path, error) from None
        except UnicodeDecodeError as error:
            raise TraceError(f"{self.path}: not text in UTF-8 ({error}); save it as CSV in UTF-8") from None
        except csv.Error as error:
            raise trace_error(self.path, number + 1, f"not CSV ({error}); save it as CSV again") from None
        if not count:
            raise empty(self.path)

    def _row(self, number: int, line: list[str], places: Sequence[int], seconds: Callable[[str], float]) -> Row:
        """One line.

        Raises: TraceError.
        """
        try:
            at, prompt, output = (line[place] for place in places)
            arrival_s, prompt_tokens, output_tokens = seconds(at.strip()), int(prompt), int(output)
        except (ValueError, IndexError) as error:
            raise trace_error(self.path, number, f"not a line of {','.join(self.columns)} ({error})") from None
        check_lengths(self.path, number, prompt_tokens, output_tokens)
        return arrival_s, prompt_tokens, output_tokens, ()


def _places(path: Path, header: Sequence[str], columns: Sequence[str]) -> list[int]:
    """Where the three columns are.

    Raises: TraceError if one is missing.
    """
    names = [name.strip() for name in header]
    missing = [column for column in columns if column not in names]
    if missing:
        raise trace_error(path, 1, f"no column {', '.join(missing)}; the first line names {','.join(columns)}")
    return [names.index(column) for column in columns]


def _clock() -> Callable[[str], float]:
    """Reads points in time as seconds since the first that it read; a time without a zone is UTC."""
    first: datetime | None = None

    def seconds(text: str) -> float:
        nonlocal first
        at = datetime.fromisoformat(text)  # takes Azure's seventh decimal, and drops it
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        first = at if first is None else first
        return (at - first).total_seconds()

    return seconds
