"""The folder of one run: its files, and how they are written during the run.

    result.json            vLLM's flat keys, and `RunResult` under "loadgen"
    requests.jsonl         one line per request, in order of their end: the fields of `RequestRecord`, the two byte
                           arrays as lists: `chunk_times_s` (microseconds kept) and `chunk_tokens`
    sent.jsonl             {"index", "turn", "body"}: the exact bodies, for `loadgen trace record`
    server_metrics.jsonl   the server's own metrics on the same time axis, one line per scrape
    report.html            the charts
    sweep.json             only in the folder of a sweep, whose points have folders of their own

Requests are appended as they end, so an interrupted or killed run keeps all finished ones.
"""

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec

from loadgen import json_text
from loadgen.errors import NOT_JSON, OutputError, TraceFormatError, UsageError, explained
from loadgen.record import RequestRecord
from loadgen.regular_file import check_regular
from loadgen.result import RunResult, SweepResult

RESULT = "result.json"
REQUESTS = "requests.jsonl"
SENT = "sent.jsonl"
SERVER_METRICS = "server_metrics.jsonl"
REPORT = "report.html"
SWEEP = "sweep.json"

_NOT_IN_LINE = ("chunk_times", "chunk_tokens", "body")


class SentBody(msgspec.Struct, kw_only=True):
    """One line of `sent.jsonl`."""

    index: int
    turn: int
    body: str


class RunFolder:
    """Writer of one run's folder; a context manager that closes its files."""

    def __init__(self, path: Path) -> None:
        """Make the folder.

        Raises: OutputError if it cannot be made, or if it already holds a result, which is never overwritten.
        Effects: creates the folder and two empty files in it.
        """
        self.path = path
        check_free(path)
        with explained(path):
            path.mkdir(parents=True, exist_ok=True)
            self._requests: IO[bytes] = (path / REQUESTS).open("wb")
            self._sent: IO[bytes] = (path / SENT).open("wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def append(self, records: Sequence[RequestRecord]) -> None:
        """Write finished requests, and their bodies if kept.

        Raises: OutputError, for instance if the disk is full.
        """
        with explained(self.path):
            self._requests.writelines(_request_line(record) for record in records)
            self._requests.flush()
            self._sent.writelines(_sent_line(record) for record in records if record.body is not None)
            self._sent.flush()

    def write_result(self, result: RunResult, flat: dict[str, object]) -> None:
        """Write `result.json` whole or not at all. `flat`: vLLM's keys.

        Raises: OutputError.
        """
        write_result(self.path, result, flat)

    def close(self) -> None:
        """Close the files; an empty list of bodies is removed."""
        with explained(self.path):
            self._requests.close()
            self._sent.close()
            if (self.path / SENT).exists() and not (self.path / SENT).stat().st_size:
                (self.path / SENT).unlink()


def check_free(path: Path) -> None:
    """Find out whether a folder may become that of a run.

    Raises: OutputError if it holds a result, or the requests of a run that was killed before it had one.
    """
    requests = path / REQUESTS
    if (path / RESULT).exists() or (path / SWEEP).exists() or (requests.exists() and requests.stat().st_size):
        raise OutputError(f"{path} already holds a result; choose another --out, or remove it first")


def write_result(folder: Path, result: RunResult, flat: dict[str, object]) -> None:
    """Write `result.json` into a folder that exists; `flat`: vLLM's keys.

    Raises: OutputError.
    """
    write_json(folder / RESULT, {**flat, "loadgen": msgspec.to_builtins(result)})


def write_json(path: Path, value: object) -> None:
    """Write indented JSON under a temporary name, then rename it.

    Raises: OutputError.
    """
    with explained(path):
        temporary = path.with_name(path.name + ".part")
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
        os.replace(temporary, path)


def read_result(folder: Path) -> RunResult:
    """The result in a run's folder, or in a `result.json` named directly.

    Raises: UsageError if there is none; TraceFormatError if it is no result of this program.
    """
    path = folder if folder.is_file() else folder / RESULT
    whole = _read_json(path, "run `loadgen run --out DIR` first")
    try:
        return msgspec.convert(whole["loadgen"], RunResult)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise TraceFormatError(f"{path}: not a result of `loadgen run` ({error})") from None


def read_sweep(folder: Path) -> SweepResult:
    """The summary in a sweep's folder.

    Raises: UsageError if there is none; TraceFormatError if it is not one.
    """
    path = folder if folder.is_file() else folder / SWEEP
    try:
        return msgspec.convert(_read_json(path, "run `loadgen run --sweep ... --out DIR` first"), SweepResult)
    except msgspec.ValidationError as error:
        raise TraceFormatError(f"{path}: not a sweep of `loadgen run` ({error})") from None


def read_records(folder: Path) -> Iterator[RequestRecord]:
    """The requests of a run, ordered by their end.

    Raises: UsageError if the folder has none; TraceFormatError naming the line that cannot be read.
    """
    path = folder / REQUESTS
    for number, line in _lines(path):
        try:
            fields = json_text.decode(line)
            fields["chunk_times"] = array("d", fields.pop("chunk_times_s")).tobytes()
            fields["chunk_tokens"] = array("i", fields.pop("chunk_tokens")).tobytes()
            yield msgspec.convert(fields, RequestRecord)
        except (KeyError, TypeError, AttributeError, OverflowError, *NOT_JSON) as error:
            raise TraceFormatError(f"{path}:{number}: not a request record ({error})") from None


def read_bodies(folder: Path) -> dict[tuple[int, int], str]:
    """(job index, turn) -> exact request body.

    Raises: UsageError if the run kept none; TraceFormatError naming the line that cannot be read.
    """
    path = folder / SENT
    if not path.exists():
        raise UsageError(f"{folder} has no {SENT}: the run was made with --no-save-prompts; run again without it")
    bodies = {}
    for number, line in _lines(path):
        try:
            sent = json_text.decode(line, SentBody)
        except NOT_JSON as error:
            raise TraceFormatError(f"{path}:{number}: not a sent body ({error})") from None
        bodies[sent.index, sent.turn] = sent.body
    return bodies


def _request_line(record: RequestRecord) -> bytes:
    """One request as a JSON line."""
    fields = {name: value for name, value in msgspec.structs.asdict(record).items() if name not in _NOT_IN_LINE}
    fields["chunk_times_s"] = _rounded(record.chunks())
    fields["chunk_tokens"] = record.tokens_of_chunks().tolist()
    return msgspec.json.encode(fields) + b"\n"


def _sent_line(record: RequestRecord) -> bytes:
    """One sent body as a JSON line; bytes that are no UTF-8 (a malformation) are kept as surrogates are: escaped."""
    body = (record.body or b"").decode("utf-8", errors="backslashreplace")
    return msgspec.json.encode(SentBody(index=record.index, turn=record.turn, body=body)) + b"\n"


def _rounded(times: Iterable[float]) -> list[float]:
    return [round(time, 6) for time in times]


def _read_json(path: Path, remedy: str) -> dict[str, object]:
    """A JSON object from a file."""
    try:
        check_regular(path)
        whole = json_text.decode(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror or error}); {remedy}") from None
    except NOT_JSON as error:
        raise TraceFormatError(f"{path}: not JSON ({error})") from None
    if not isinstance(whole, dict):
        raise TraceFormatError(f"{path}: not a JSON object")
    return whole


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Non-empty lines of a file with their numbers, from 1."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            yield from ((number, line) for number, line in enumerate(file, start=1) if line.strip())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
