"""Traces that are CSV: arrivals and lengths, and no word on prefixes.

    TIMESTAMP,ContextTokens,GeneratedTokens           Azure, 2023 to 2025; dates, which count from the first
    2023-11-16 18:15:46.6805900,374,44                of 2023
    2024-05-10 00:00:00.009930+00:00,2162,5           of 2024; that of 2025 has a column NumImages, too

    Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type        BurstGPT; seconds
    5,ChatGPT,472,18,490,Conversation log             a request with a length of 0 failed; it is left out

    arrival_s,prompt_tokens,output_tokens             plain; seconds from the trace's beginning
    0.25,374,44

    timestamp,input_length,output_length          Mooncake's and our own JSON names; milliseconds, as there
    27482.125,374,44

Columns may be in any order, with further columns between them. Those of a plain file may have other names (`NAMES`,
vLLM's among them); any others are named by the user, in `COLUMNS_FORM` (`custom_table`).
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from pathlib import Path

from loadgen.errors import TraceFormatError, UsageError
from loadgen.regular_file import check_regular
from loadgen.trace.lines import LATEST_FIRST_S, TraceTimes, check_lengths, empty, trace_error, unreadable
from loadgen.trace.request import TraceRecord


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """One kind of CSV.

    Attributes:
        columns: names of the columns that are read: time, tokens of the prompt, tokens of the response.
        dates: whether times are dates; otherwise they are numbers.
        failed: whether a length of 0 marks a failed request, which is left out.
        header: all columns, for a file that is written; empty = `columns`.
        per_s: units of a numeric time in one second.
        note: text for the user about these units.
    """

    columns: tuple[str, str, str]
    dates: bool = False
    failed: bool = False
    header: tuple[str, ...] = ()
    per_s: float = 1.0
    note: str = ""


AZURE = CsvFormat(("TIMESTAMP", "ContextTokens", "GeneratedTokens"), dates=True)
PLAIN = CsvFormat(("arrival_s", "prompt_tokens", "output_tokens"))
BURSTGPT = CsvFormat(
    ("Timestamp", "Request tokens", "Response tokens"),
    failed=True,
    header=("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type"),
)
MOONCAKE = CsvFormat(
    ("timestamp", "input_length", "output_length"),
    per_s=1000.0,
    note="timestamp counts milliseconds, as in Mooncake's JSON; if these are seconds, give --columns with unit=s",
)
TABLES = (AZURE, PLAIN, BURSTGPT, MOONCAKE)
NAMES = (
    ("arrival_s", "arrival_time", "start_time", "start_times", "time"),
    ("prompt_tokens", "input_tokens", "prompt_len", "input_len", "input_lens", "input_length", "num_prompt_tokens"),
    ("output_tokens", "completion_tokens", "output_len", "output_lens", "expected_output_len", "output_length",
     "generation_tokens", "num_generation_tokens"),
)  # fmt: skip
"""Known column names of time [s], prompt and output tokens: plain ones, OpenAI's, vLLM's, and those of JSON traces."""
COLUMNS_FORM = "timestamp=NAME,input=NAME,output=NAME[,unit=ms]"
_KEYS = ("timestamp", "input", "output")
_PER_S = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_SPARSE_S = 60.0
_WRITTEN_FROM = datetime(2024, 1, 1, tzinfo=UTC)
"""Azure's traces have dates; written ones need an arbitrary first day."""


@dataclass(frozen=True, slots=True)
class TableTrace:
    """`Trace` of one file. `block_tokens`: None, since there are no prefix ids."""

    path: Path
    table: CsvFormat
    block_tokens: None = None
    interleaved: bool = False
    notes: dict[str, str] = field(default_factory=dict, compare=False)

    def requests(self) -> Iterator[TraceRecord]:
        times = TraceTimes(self.path, self.notes, per_s=self.table.per_s, dates_expected=self.table.dates)
        seconds = times.seconds
        if self.table.note:
            self.notes["columns"] = self.table.note
        dates, count, failed = self.table.dates, 0, 0
        whole, arrival_s = not dates and not self.table.failed and self.table.per_s == 1, 0.0
        for number, at, input_tokens, output_tokens in self._rows():
            if self.table.failed and not (input_tokens and output_tokens):
                failed += 1
                continue
            value = at if dates else _time(at)
            arrival_s = seconds(number, value)
            check_lengths(self.path, number, input_tokens, output_tokens)
            whole = whole and isinstance(value, float) and at.strip().isdecimal()
            count += 1
            yield TraceRecord(arrival_s=arrival_s, input_tokens=input_tokens, output_tokens=output_tokens)
        if failed:
            self.notes["failed"] = f"requests left out, since they failed when they were recorded (no tokens): {failed}"
        if not count:
            raise empty(self.path)
        if whole and arrival_s > max(LATEST_FIRST_S, count * _SPARSE_S):
            raise TraceFormatError(
                f"{self.path}: {count} requests in {arrival_s / 86_400:.1f} days, all at whole seconds: are these "
                "milliseconds? Give --columns with unit=ms; if they are seconds, write them with a decimal point"
            )

    def _rows(self) -> Iterator[tuple[int, str, int, int]]:
        """Number, time and lengths of each line.

        Raises: TraceFormatError.
        """
        when, prompt, output = self.table.columns
        for number, row in csv_rows(self.path, self.table.columns):
            try:
                yield number, row[when], int(row[prompt]), int(row[output])
            except ValueError as error:
                columns = ",".join(self.table.columns)
                raise trace_error(self.path, number, f"not a line of {columns} ({error})") from None


def csv_rows(path: Path, columns: Sequence[str], others: Sequence[str] = ()) -> Iterator[tuple[int, dict[str, str]]]:
    """Number and cells of each line that is not empty, lazily.

    Args:
        columns: that the file must have. others: that it may have.
    Raises: TraceFormatError if it cannot be read, is no CSV, has not these columns, or a line is too short.
    """
    number = 1
    try:
        check_regular(path)
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file)
            places = _places(path, next(lines, []), columns, others)
            for line in lines:
                if not line:
                    continue
                number = lines.line_num
                try:
                    yield number, {name: line[place] for name, place in places.items()}
                except IndexError as error:
                    raise trace_error(path, number, f"not a line of {','.join(columns)} ({error})") from None
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError as error:
        raise TraceFormatError(f"{path}: not text in UTF-8 ({error}); save it as CSV in UTF-8") from None
    except csv.Error as error:
        raise trace_error(path, number + 1, f"not CSV ({error}); save it as CSV again") from None


def _places(path: Path, header: Sequence[str], columns: Sequence[str], others: Sequence[str]) -> dict[str, int]:
    """Where the columns are.

    Raises: TraceFormatError if one is missing.
    """
    names = [name.strip() for name in header]
    if missing := [column for column in columns if column not in names]:
        raise trace_error(path, 1, f"no column {', '.join(missing)}; there are {', '.join(names)}")
    return {name: names.index(name) for name in (*columns, *others) if name in names}


def table_of(names: Iterable[str]) -> CsvFormat | None:
    """The format with which a first line shares most columns; None if there is none that it shares any with."""
    there = set(names)
    found = [next((name for name in known if name in there), None) for known in NAMES]
    time, prompt, output = found
    best = max(TABLES, key=lambda table: len(there.intersection(table.columns)))
    if time is None or prompt is None or output is None or there.issuperset(best.columns):
        return best if there.intersection(best.columns) else None
    return CsvFormat((time, prompt, output))


def custom_table(columns: str) -> CsvFormat:
    """The format of a file with user-defined column names.

    Args:
        columns: `timestamp=NAME,input=NAME,output=NAME` in any order, with `unit=ms` if times are no seconds; or only
            the three names, in this order.
    Raises: UsageError if a column is missing or named twice, or a key or unit is unknown.
    """

    def refused(why: str) -> UsageError:
        return UsageError(f"--columns {columns!r}: {why}; write {COLUMNS_FORM}")

    parts = [part.strip() for part in columns.split(",")]
    if "=" not in columns and len(parts) <= len(_KEYS):
        parts = [f"{key}={name}" for key, name in zip_longest(_KEYS, parts, fillvalue="")]
    named: dict[str, str] = {}
    for part in parts:
        key, _, name = (word.strip() for word in part.partition("="))
        if key not in (*_KEYS, "unit"):
            raise refused(f"{key or part!r} is none of {', '.join(_KEYS)} and unit")
        if key in named:
            raise refused(f"{key} is given twice")
        named[key] = name
    if missing := [key for key in _KEYS if not named.get(key)]:
        raise refused(f"no column for {' and '.join(missing)}")
    time, prompt, output = (named[key] for key in _KEYS)
    if len({time, prompt, output}) < 3:
        raise refused("one column cannot be two of them")
    unit = named.get("unit", "s")
    if unit not in _PER_S:
        raise refused(f"{unit!r} is no unit of times, which are {', '.join(_PER_S)}, or dates")
    return CsvFormat((time, prompt, output), per_s=_PER_S[unit])


def _time(text: str) -> float | str:
    """A number, or otherwise a possible date."""
    try:
        return float(text)
    except ValueError:
        return text


def table_lines(table: CsvFormat, requests: Iterable[TraceRecord]) -> Iterator[str]:
    """A trace as CSV: times and lengths only."""
    yield ",".join(table.header or table.columns)
    row = _ROWS[table.columns]
    for request in requests:
        yield row(request)


def _azure_row(request: TraceRecord) -> str:
    at = _WRITTEN_FROM + timedelta(microseconds=round(request.arrival_s * 1e6))
    return f"{at:%Y-%m-%d %H:%M:%S.%f}+00:00,{request.input_tokens},{request.output_tokens}"


def _plain_row(request: TraceRecord) -> str:
    return f"{round(request.arrival_s, 6)!r},{request.input_tokens},{request.output_tokens}"


def _burstgpt_row(request: TraceRecord) -> str:
    asked, given = request.input_tokens, max(1, request.output_tokens)
    return f"{round(request.arrival_s, 6)!r},unknown,{asked},{given},{asked + given},API log"


_ROWS: dict[tuple[str, ...], Callable[[TraceRecord], str]] = {
    AZURE.columns: _azure_row,
    PLAIN.columns: _plain_row,
    BURSTGPT.columns: _burstgpt_row,
}
