"""Lines of a file with their numbers, and errors that name file and line."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from loadgen import json_text
from loadgen.errors import NOT_JSON, TraceFormatError, UsageError
from loadgen.regular_file import check_regular

T = TypeVar("T")


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, lazily, with their numbers from 1; a byte-order mark at the start is dropped.

    Raises: UsageError if the file cannot be read.
    """
    try:
        check_regular(path)
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if text.strip():
                    yield number, text
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None


def json_lines(path: Path, kind: type[T], what: str) -> Iterator[tuple[int, T]]:
    """Each line of a JSON-lines file as a value of `kind`, with its number; lazily.

    Args:
        what: what a line is said to be, for the error.
    Raises: UsageError if the file cannot be read; TraceFormatError naming the line that is no such value.
    """
    decoder = json_text.Decoder(kind)
    for number, line in numbered_lines(path):
        try:
            value = decoder.decode(line)
        except NOT_JSON as error:
            raise TraceFormatError(f"{path}:{number}: not {what} ({error})") from None
        yield number, value
