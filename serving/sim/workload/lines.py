"""Lines of a trace file with their numbers, and the checks that every format makes."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from hardware.nesting import NestedTooDeeply, check_depth
from serving.regular_file import check_regular
from serving.sim.workload.errors import TraceError, trace_error

T = TypeVar("T")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LARGEST_LENGTH = 2**40
"""Tokens. Beyond it, a number is a mistake, and sums of lengths would leave 63 bits."""


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, lazily, numbered from 1; a byte-order mark in front is dropped.

    Raises: TraceError if the file cannot be read.
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


def unreadable(path: Path, error: OSError) -> TraceError:
    """Why a file or folder could not be opened or read."""
    return TraceError(f"{path}: cannot be read ({error.strerror or error}); check the path and its permissions")


def empty(path: Path) -> TraceError:
    """The file has no request."""
    return TraceError(f"{path}: no request in it; a trace needs at least one")


def decoded(path: Path, number: int, line: bytes, decoder: msgspec.json.Decoder[T], what: str) -> T:
    """One line of JSON as a value.

    Args:
        what: what a line should be, for the error.
    Raises: TraceError naming the line.
    """
    try:
        check_depth(line)
        return decoder.decode(line)
    except msgspec.ValidationError as error:
        raise trace_error(path, number, f"not {what}: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, NestedTooDeeply) as error:
        raise trace_error(path, number, f"not JSON ({error}); each line is one JSON object") from None


def check_lengths(path: Path, number: int, prompt_tokens: int, output_tokens: int) -> None:
    """Raises: TraceError if a length is none: below 1, or beyond all reason."""
    if not 1 <= prompt_tokens <= LARGEST_LENGTH:
        raise trace_error(path, number, f"a prompt of {prompt_tokens} tokens; lengths are at least 1, remove the line")
    if not 1 <= output_tokens <= LARGEST_LENGTH:
        raise trace_error(path, number, f"an answer of {output_tokens} tokens; lengths are at least 1, remove the line")


def check_time(path: Path, number: int, arrival_s: float, before_s: float) -> None:
    """Raises: TraceError if a request arrives before the trace begins, or before the request in front of it."""
    if not arrival_s >= 0.0 or arrival_s == float("inf"):
        raise trace_error(path, number, f"an arrival at {arrival_s:g} s; times count from 0, the trace's beginning")
    if arrival_s < before_s:
        raise trace_error(
            path, number, f"arrives at {arrival_s:g} s, after a line that arrives at {before_s:g} s; sort by time"
        )
