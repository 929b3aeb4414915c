"""Lines of a batch: the input file's, each checked, and those of the output and error files."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from hardware.nesting import parse_json
from serving.errors import UNREADABLE
from serving.gateway.core.batches import BatchSpec, LineError

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
MOST_ERRORS = 20
"""Errors of an input file that are reported."""
LONGEST_CUSTOM_ID = 256

_UNSTORED = "/v1/responses"
"""Route whose responses are stored unless a request says otherwise: those of a batch are in its output file."""
_RUN_ELSEWHERE = ("stream", "background")
"""Fields that would move a response out of the output file."""


class InputLine(msgspec.Struct, frozen=True):
    """One request of an input file."""

    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


class ResultId(msgspec.Struct, frozen=True):
    """The part of a line of an output or error file by which a gateway that continues the batch knows it."""

    id: str

    @property
    def line(self) -> int:
        """Number of its line in the input file, from 0."""
        return int(self.id.rpartition("_")[2])


_read_line = msgspec.json.Decoder(InputLine).decode
_read_result = msgspec.json.Decoder(ResultId).decode


class InputFile:
    """A valid input file: its lines, found again by number."""

    def __init__(self, text: bytes, spans: list[tuple[int, int]]) -> None:
        self._text = text
        self._spans = spans

    def __len__(self) -> int:
        return len(self._spans)

    def line(self, number: int) -> InputLine:
        """One line, counted from 0."""
        start, end = self._spans[number]
        return _read_line(self._text[start:end])


def read_input(text: bytes, endpoint: str, most_lines: int) -> InputFile | tuple[LineError, ...]:
    """Check an input file.

    Args:
        endpoint: of the batch; the same for all lines.
    Returns: the file, or what is wrong with it: the first `MOST_ERRORS` errors.
    """
    spans: list[tuple[int, int]] = []
    first_use: dict[str, int] = {}
    errors: list[LineError] = []
    for number, (start, end) in _lines(text):
        if len(spans) == most_lines:
            message = f"the file has more than {most_lines} lines, which is the limit ([batches] lines)"
            return (LineError("too_many_lines", message, "input_file_id", number),)
        spans.append((start, end))
        error = _check_line(text[start:end], endpoint, number, first_use)
        if error is not None:
            errors.append(error)
            if len(errors) == MOST_ERRORS:
                break
    if not spans:
        return (LineError("empty_file", "the input file has no lines", "input_file_id"),)
    return tuple(errors) or InputFile(text, spans)


def _lines(text: bytes) -> Iterator[tuple[int, tuple[int, int]]]:
    """Number from 1, start and end of each line that is not blank."""
    start, number = 0, 0
    while start < len(text):
        end = text.find(b"\n", start)
        end = len(text) if end < 0 else end
        number += 1
        if text[start:end].strip():
            yield number, (start, end)
        start = end + 1


def _check_line(raw: bytes, endpoint: str, number: int, first_use: dict[str, int]) -> LineError | None:
    """Check one line. Effects: notes its custom id."""
    try:
        line = _read_line(raw)
    except msgspec.ValidationError as error:
        return LineError("invalid_line", f"line {number}: {error}", None, number)
    except UNREADABLE as error:
        return LineError("invalid_json_line", f"line {number} is not valid JSON: {error}", None, number)
    if not line.custom_id or len(line.custom_id) > LONGEST_CUSTOM_ID:
        message = f"line {number}: 'custom_id' must have 1 to {LONGEST_CUSTOM_ID} characters"
        return LineError("invalid_custom_id", message, "custom_id", number)
    if (before := first_use.setdefault(line.custom_id, number)) != number:
        message = f"line {number}: 'custom_id' is that of line {before}; each must be unique in the file"
        return LineError("duplicate_custom_id", message, "custom_id", number)
    if line.method != "POST":
        return LineError("invalid_method", f"line {number}: 'method' must be POST", "method", number)
    if line.url != endpoint:
        message = f"line {number}: 'url' is '{line.url[:100]}', but the batch's endpoint is '{endpoint}'"
        return LineError("mismatched_url", message, "url", number)
    for name in _RUN_ELSEWHERE:
        if line.body.get(name) not in (None, False):
            message = f"line {number}: 'body.{name}' must be false or absent: a batch returns whole responses"
            return LineError("invalid_body", message, f"body.{name}", number)
    return None


def line_body(spec: BatchSpec, number: int, body: Mapping[str, Any]) -> bytes:
    """The body to send for a line: its own, with a seed, so that a line that runs again gives the same tokens."""
    own = dict(body)
    if own.get("seed") is None:
        own["seed"] = spec.seed(number)
    if spec.endpoint == _UNSTORED:
        own.setdefault("store", False)
    return msgspec.json.encode(own)


# Lines of output and error files.


def result_line(
    spec: BatchSpec, number: int, custom_id: str, status: int, request_id: str, body: bytes
) -> tuple[bytes, bool]:
    """A response as a line, and whether it belongs to the error file."""
    response = {"status_code": status, "request_id": request_id, "body": msgspec.Raw(body)}
    return _result(spec, number, custom_id, response, None), status != 200


def expired_line(spec: BatchSpec, number: int, custom_id: str) -> bytes:
    """The line of the error file for a request that had no result at the end of the window."""
    message = "This request could not be executed before the completion window expired."
    return _result(spec, number, custom_id, None, {"code": "batch_expired", "message": message})


def _result(spec: BatchSpec, number: int, custom_id: str, response: object, error: object) -> bytes:
    name = f"batch_req_{spec.batch_id.removeprefix('batch_')}_{number}"
    return msgspec.json.encode({"id": name, "custom_id": custom_id, "response": response, "error": error}) + b"\n"


def number_of(result: bytes) -> int:
    """Number of the input line to which a line of an output or error file belongs."""
    return _read_result(result).line


def error_code(body: bytes) -> str | None:
    """The code in an error's body; None if it has none."""
    answer = parse_json(body)
    error = answer.get("error") if isinstance(answer, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, str) else None
