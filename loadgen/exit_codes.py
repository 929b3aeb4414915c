"""Exit codes of `cloudmatrix` and `loadgen`: one meaning each, whichever command returns it."""

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """How a command ended."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    SERVER = 3
    OUTPUT = 4
    REQUESTS = 5
    INCOMPLETE = 6
    INTERRUPTED = 130
    """As shells report a command that SIGINT ended."""
    UNREAD = 141
    """As shells report a command that SIGPIPE ended."""


MEANINGS: Final = {
    ExitCode.OK: "success",
    ExitCode.FAILURE: "the command ran, but a check failed: `doctor`, `pool audit`, `chaos`,"
    " `replay` (a decision differs), `reproduce`, `plan` (nothing meets the SLOs), `demo` (a step failed), `down` (a"
    " host did not respond); the system that `serve` started, or a worker process of `loadgen`, died; or, with a"
    " traceback, an error in the program",
    ExitCode.USAGE: "wrong flags, files or values; one line says which, and what to write instead",
    ExitCode.SERVER: "no server at the address, or it cannot be used: another kind of server, wrong key, no such model;"
    " `demo`: its system did not start",
    ExitCode.OUTPUT: "results cannot be written",
    ExitCode.REQUESTS: "`loadgen run`: more requests failed than `--max-failure-share` allows",
    ExitCode.INCOMPLETE: "`replay`: no difference, but a log has no end",
    ExitCode.INTERRUPTED: "Ctrl-C; what was measured until then is kept",
    ExitCode.UNREAD: "the reader of the output has closed the pipe, as in `cloudmatrix events | head -1`",
}
"""For the page of the commands."""
