"""Read a long JSON list one entry at a time: data sets of conversations are lists of hundreds of megabytes."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from loadgen.errors import TraceFormatError, UsageError
from loadgen.json_text import JsonTooDeep, check_depth
from loadgen.regular_file import check_regular

_FIRST_READ = 1 << 20
_LONGEST_ENTRY = 1 << 26
"""Characters. An entry without an end within this is taken as broken, without reading to the end of the file."""
_BETWEEN = " \t\r\n,"
_NEWLINE = "\n"


def entries(
    path: Path, *, first_read: int = _FIRST_READ, longest_entry: int = _LONGEST_ENTRY
) -> Iterator[tuple[int, Any]]:
    """The entries of a JSON list, or of a file with one JSON value after another, with the line on which each starts.

    Args:
        first_read, longest_entry: characters that are read at once, and that an entry has at most.
    Raises: UsageError if the file cannot be read; TraceFormatError naming the line where it is no JSON.
    Effects: holds one entry and about a megabyte at a time.
    """
    try:
        check_regular(path)
        with path.open(encoding="utf-8-sig") as file:
            yield from _entries(path, file.read, first_read, longest_entry)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise TraceFormatError(f"{path}: not UTF-8 ({error.reason} at byte {error.start} of a block)") from None


def _entries(path: Path, read: Callable[[int], str], first_read: int, longest_entry: int) -> Iterator[tuple[int, Any]]:
    """`entries` on an opened file."""
    decode = json.JSONDecoder().raw_decode
    buffer, at, line = read(first_read), 0, 1
    at = _skip(buffer, 0, _BETWEEN)
    in_list = buffer.startswith("[", at)
    at += in_list
    size, ended = first_read, False
    while True:
        at = _skip(buffer, at, _BETWEEN)
        if at == len(buffer) and not ended:
            line += buffer.count("\n")
            buffer, at, size = read(first_read), 0, first_read
            ended = not buffer
            continue
        if at == len(buffer) and not in_list:
            return
        if in_list and buffer.startswith("]", at):
            return
        try:
            value, end = decode(buffer, at)
            check_depth(buffer[at:end])
        except (JsonTooDeep, RecursionError):
            raise TraceFormatError(f"{path}:{line + buffer.count(_NEWLINE, 0, at)}: {JsonTooDeep()}") from None
        except json.JSONDecodeError as error:
            more = "" if ended or len(buffer) - at > longest_entry else read(size)
            if not more:
                raise TraceFormatError(f"{path}:{line + error.lineno - 1}: not JSON ({error.msg})") from None
            # Twice as much each time, so that one long entry is not parsed again for every megabyte of it.
            line += buffer.count("\n", 0, at)
            buffer, at, size = buffer[at:] + more, 0, size * 2
            continue
        except ValueError as error:  # a number of thousands of digits
            raise TraceFormatError(f"{path}:{line + buffer.count(_NEWLINE, 0, at)}: not JSON ({error})") from None
        yield line + buffer.count("\n", 0, at), value
        at = end


def _skip(text: str, at: int, what: str) -> int:
    """The first place from `at` on that holds none of `what`."""
    while at < len(text) and text[at] in what:
        at += 1
    return at
