"""Lines of a file with their numbers, errors that name file and line, and the checks that every format makes."""

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from loadgen import json_text
from loadgen.errors import NOT_JSON, TraceFormatError
from loadgen.regular_file import check_regular

T = TypeVar("T")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LARGEST_LENGTH = 2**40
"""Tokens. Beyond it, a number is a mistake, and sums of lengths would leave 63 bits."""
LARGEST_ID = 2**63 - 1
"""Largest block id that readers return; 64-bit hashes are cut to 63 bits."""
_LARGEST_HASH = 2**64 - 1


def trace_error(path: Path, line: int, problem: str) -> TraceFormatError:
    """An error about one line, in the form that editors jump to."""
    return TraceFormatError(f"{path}:{line}: {problem}")


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, lazily, numbered from 1; a byte-order mark in front is dropped.

    Raises: TraceFormatError if the file cannot be read.
    """
    try:
        check_regular(path)
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                text = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
                if text.strip():
                    yield number, text
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: OSError) -> TraceFormatError:
    """Why a file or folder could not be opened or read."""
    return TraceFormatError(f"{path}: cannot be read ({error.strerror or error}); check the path and its permissions")


def empty(path: Path) -> TraceFormatError:
    """The file has no request."""
    return TraceFormatError(f"{path}: no request in it; a trace needs at least one")


def decoded(path: Path, number: int, line: bytes, decoder: json_text.Decoder[T], what: str) -> T:
    """One line of JSON as a value.

    Args:
        what: description of a valid line, for the error.
    Raises: TraceFormatError naming the line.
    """
    try:
        return decoder.decode(line)
    except msgspec.ValidationError as error:
        raise trace_error(path, number, f"not {what}: {error}") from None
    except NOT_JSON as error:
        raise trace_error(path, number, f"not JSON ({error}); each line is one JSON object") from None


def json_lines(path: Path, kind: type[T], what: str) -> Iterator[tuple[int, T]]:
    """Each line of a JSON-lines file as a value of `kind`, with its number; lazily.

    Args:
        what: the expected content of a line, for the error.
    Raises: TraceFormatError if the file cannot be read, or naming the line that is no such value.
    """
    decoder = json_text.Decoder(kind)
    for number, line in numbered_lines(path):
        yield number, decoded(path, number, line, decoder, what)


def check_lengths(path: Path, number: int, input_tokens: int, output_tokens: int) -> None:
    """Raises: TraceFormatError for a prompt below 1 token, a response below 0, or either implausibly long."""
    if not 1 <= input_tokens <= LARGEST_LENGTH:
        raise trace_error(path, number, f"a prompt of {input_tokens} tokens; prompts have at least 1, remove the line")
    if not 0 <= output_tokens <= LARGEST_LENGTH:
        raise trace_error(path, number, f"an answer of {output_tokens} tokens; that is no length, remove the line")


def checked_ids(path: Path, number: int, ids: list[int]) -> list[int]:
    """Ids as readers hand them on, in 63 bits.

    Raises: TraceFormatError for ids that are negative or longer than 64 bits.
    """
    if not ids or (0 <= min(ids) and max(ids) <= LARGEST_ID):
        return ids
    if min(ids) < 0 or max(ids) > _LARGEST_HASH:
        raise trace_error(path, number, "hash_ids must be between 0 and 2^64-1; renumber them")
    return [hash_id & LARGEST_ID for hash_id in ids]


def check_count(path: Path, number: int, input_tokens: int, ids: int, block_tokens: int) -> None:
    """Check that ids cover the prompt; the last one may be missing if its block is partial, or all if unknown.

    Raises: TraceFormatError.
    """
    whole, rest = divmod(input_tokens, block_tokens)
    if ids and ids != whole and ids != whole + (rest > 0):
        fitting = [size for size in _USUAL_BLOCKS if ids == -(-input_tokens // size)]
        remedy = f"; if it has blocks of {fitting[0]} tokens, say --block-tokens {fitting[0]}" if fitting else ""
        raise trace_error(
            path,
            number,
            f"{ids} hash_ids for {input_tokens} tokens; blocks of {block_tokens} tokens make it {whole + (rest > 0)}, "
            f"or none if they are not known{remedy}",
        )


_USUAL_BLOCKS = (16, 32, 64, 128, 256, 512)
"""Block sizes of published traces."""


# Times of a trace as seconds from its start, and whether they make sense as that.
#
# Plausible offsets are used unchanged. Dates, times since 1970 and a first time far from the start count from the first
# request instead, which the trace's notes report. All else is refused: negative, no number, not ascending, or so late
# that another unit must be meant.

LATEST_FIRST_S = 86_400.0
"""A first request later than this is too far from the trace's start to wait for it."""
LONGEST_S = 400 * 86_400.0
"""Beyond this a time is in another unit, or counts from another day; the longest published trace has 121 days."""
_EPOCH = ((1.0, "seconds"), (1e3, "milliseconds"), (1e6, "microseconds"), (1e9, "nanoseconds"))
_EPOCH_FROM_S, _EPOCH_TO_S = 1e9, 4e9
"""Since 1970: 2001 to 2096."""


class TraceTimes:
    """Reads the times of one file, in the order of its lines."""

    def __init__(self, path: Path, notes: dict[str, str], *, per_s: float = 1.0, dates_expected: bool = False) -> None:
        """State before the first line.

        Args:
            notes: receives remarks about the times. per_s: units in a second.
            dates_expected: the format has dates, so they need no remark.
        """
        self._path = path
        self._notes = notes
        self._per_s = per_s
        self._asked = dict(_EPOCH)[per_s]
        self._dates_expected = dates_expected
        self._begun = False
        self._origin: datetime | float = 0.0
        self._before_s = 0.0

    def seconds(self, number: int, value: float | str) -> float:
        """The time of a line [s from the start].

        Raises: TraceFormatError naming the line, if it has none, or one before that of the previous line.
        """
        if not self._begun:
            self._begin(number, value)
        if isinstance(self._origin, datetime):
            at_s = (self._moment(number, value) - self._origin).total_seconds()
        elif isinstance(value, str):
            raise trace_error(self._path, number, f"a date {value!r} among numbers; write all times in one way")
        else:
            at_s = value / self._per_s - self._origin
        if not self._before_s <= at_s <= LONGEST_S:
            raise self._refused(number, at_s)
        self._before_s = at_s
        return at_s

    def _refused(self, number: int, at_s: float) -> TraceFormatError:
        """Why a time is none."""
        if not math.isfinite(at_s) or (at_s < 0 and not self._origin):
            return trace_error(
                self._path, number, f"an arrival at {at_s:g} s; times count from 0, the trace's beginning: add to all"
            )
        if at_s > LONGEST_S:
            return trace_error(
                self._path,
                number,
                f"an arrival {at_s / 86_400:g} days after the start; times are {self._asked} from there: subtract the "
                "first, or divide by 1000 if they are finer",
            )
        return trace_error(
            self._path,
            number,
            f"arrives at {at_s:g} s, after a line that arrives at {self._before_s:g} s; sort by time",
        )

    def _begin(self, number: int, value: float | str) -> None:
        """Determine the kind of all times from the first one.

        Raises: TraceFormatError.
        """
        self._begun = True
        if isinstance(value, str):
            self._origin = self._moment(number, value)
            if not self._dates_expected:
                self._say(f"times are dates; they count from the first, {value.strip()}")
            return
        epoch = [(per_s, name) for per_s, name in _EPOCH if _EPOCH_FROM_S * per_s <= value < _EPOCH_TO_S * per_s]
        if epoch:
            self._begin_epoch(number, value, *epoch[0])
        elif LATEST_FIRST_S < value / self._per_s <= LONGEST_S:
            self._origin = value / self._per_s
            self._say(
                f"the first request comes {self._origin / 86_400:.1f} days after the start; times count from it instead"
            )

    def _begin_epoch(self, number: int, value: float, per_s: float, name: str) -> None:
        """Count from the first of times since 1970.

        Raises: TraceFormatError if they are also plausible in the requested unit.
        """
        if per_s < self._per_s:
            raise trace_error(
                self._path,
                number,
                f"a first time of {value:.0f}: {name} since 1970, where {self._asked} are asked? Multiply by "
                f"{self._per_s / per_s:.0f} if so, else subtract the first",
            )
        self._per_s = per_s
        self._origin = value / per_s
        at = datetime.fromtimestamp(self._origin, UTC)
        self._say(f"times are {name} since 1970; they count from the first, {at:%Y-%m-%d %H:%M:%S} UTC")

    def _moment(self, number: int, value: float | str) -> datetime:
        """A date with its time; one without a zone is UTC.

        Raises: TraceFormatError.
        """
        if not isinstance(value, str):
            raise trace_error(self._path, number, f"a number {value:g} among dates; write all times in one way")
        try:
            at = datetime.fromisoformat(value.strip())  # takes Azure's seventh decimal, and drops it
        except ValueError:
            raise trace_error(
                self._path, number, f"{value.strip()!r} is no time; write {self._asked} or 2024-05-10 18:15:46.68"
            ) from None
        return at if at.tzinfo else at.replace(tzinfo=UTC)

    def _say(self, note: str) -> None:
        self._notes["times"] = note
