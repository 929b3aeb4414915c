"""Exceptions for failures on the client's side. Each is one line on the terminal and an exit code.

    LoadgenError
    ├── UsageError                flags, files and values given by the user
    │   └── TraceFormatError      a data set or trace file that does not match its format
    ├── ServerError               the server under test cannot be used at all
    │   ├── ServerUnreachable     connection refused, name unknown, TLS refused, not ready in time
    │   ├── WrongModel            the server does not serve the requested model
    │   └── AuthRefused           401 or 403
    ├── OutputError               the output folder or file cannot be written
    └── WorkerLost                a worker process exited early

The failure of a *request* is not an exception but a value: `RequestOutcome`.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from loadgen.exit_codes import ExitCode

NOT_JSON = (msgspec.DecodeError, UnicodeError)
"""Errors of `loadgen.json_text` for bytes that are not JSON, not UTF-8, or nested too deeply."""


class LoadgenError(Exception):
    """Base of the tree; its text is one line that includes the remedy."""

    exit_code = ExitCode.FAILURE


class UsageError(LoadgenError):
    """A flag, a file or a value given by the user is wrong."""

    exit_code = ExitCode.USAGE


class TraceFormatError(UsageError):
    """A data set or trace file does not match its declared format. The text names file and line."""


class ServerError(LoadgenError):
    """The server under test cannot be used."""

    exit_code = ExitCode.SERVER


class ServerUnreachable(ServerError):
    """No server listens there, or not in time."""


class WrongModel(ServerError):
    """The server does not know the model. The text lists those that it serves."""


class AuthRefused(ServerError):
    """The server requires an API key, or rejected the one sent."""


class OutputError(LoadgenError):
    """Results cannot be written."""

    exit_code = ExitCode.OUTPUT


class WorkerLost(LoadgenError):
    """A worker process exited before its work was complete."""


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn a failure of the file system into one line.

    Raises: OutputError.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from None
