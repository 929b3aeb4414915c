"""Lines of a file with their numbers, errors that name file and line, and the checks that every format makes."""

from collections.abc import Iterator
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
"""What readers hand on; hashes of 64 bits are cut to 63."""
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
"""Of what is published."""
