"""Terminal of a command: its own name, the console for tables, and the signals that end a command."""

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from rich.console import Console

from loadgen.terminal import terminal_console
from serving.errors import NotWrittenError

COMMAND = "cloudmatrix"
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def own_command() -> str:
    """Text that runs this installation's `cloudmatrix` in a shell of this folder.

    Returns: the plain name if PATH leads to it; its path if only this shell's PATH does, as in an activated environment
        or under `uvx`, because a second terminal has another; otherwise the path by which it was started, or, for
        `python -m`, the interpreter with the module.
    """
    started = Path(sys.argv[0])
    ours = started if started.name == COMMAND and started.is_file() else Path(sys.executable).with_name(COMMAND)
    on_path = shutil.which(COMMAND)
    if on_path is not None and ours.is_file() and os.path.samefile(on_path, ours):
        of_environment = sys.prefix != sys.base_prefix and Path(on_path).parent == Path(sys.prefix, "bin")
        return shlex.quote(on_path) if of_environment else COMMAND
    if ours is started:
        return shlex.quote(str(started) if len(started.parts) > 1 else f"./{started}")
    return f"{shlex.quote(sys.executable)} -m serving.cli"


def without_controls(text: str) -> str:
    """A model's text without control characters for the terminal."""
    return text.translate(_CONTROLS)


def table_console() -> Console:
    """The console for a command's tables."""
    return terminal_console()


def ending_signals() -> tuple[signal.Signals, ...]:
    """Signals that end a command: Ctrl-C, SIGTERM, and a closed terminal unless it runs under nohup."""
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hangup)


def say(text: str) -> None:
    """Print a progress line."""
    print_text(f"cloudmatrix: {text}")


def print_text(text: str, stream: TextIO | None = None, *, end: str = "\n") -> None:
    """Print to a stream, by default standard output. A closed pipe or terminal is ignored."""
    stream = stream or sys.stdout
    try:
        print(text, file=stream, end=end, flush=True)
    except OSError:
        silence(stream)


@contextmanager
def endings_as_interrupt() -> Iterator[None]:
    """Context in which SIGTERM and SIGHUP act like Ctrl-C, so that cleanup runs. Only in the main thread.

    Libraries in C that call Python may replace the interrupt by an error of their own, as torch does where it reads the
    shape of a storage: after a signal every error counts as the interrupt.

    Effects: restores the earlier handlers afterwards.
    """
    caught = []

    def interrupt(number: int, _frame: object) -> None:
        caught.append(number)
        leave_closed_terminal()
        raise KeyboardInterrupt

    before = {kind: signal.signal(kind, interrupt) for kind in ending_signals()}
    try:
        yield
    except Exception as error:
        if caught:
            raise KeyboardInterrupt from error
        raise
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def leave_closed_terminal() -> None:
    """Discard output if its terminal has been closed, because a failing write must not prevent the cleanup.

    Effects: `silence` of stdout and stderr then.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            os.write(stream.fileno(), b"")  # fails if the terminal has hung up
        except OSError:
            silence(stream)


def silence(stream: TextIO) -> None:
    """Discard further output to a stream without a reader.

    Effects: replaces its descriptor; buffered output would otherwise fail again when the process ends.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


# Files of a report: the folder is created first, so that a failure costs no minutes of computing.


def make_folder(path: Path) -> None:
    """Create a report's folder.

    Raises: NotWrittenError if it cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotWrittenError(f"cannot write into {path}: {error.strerror or error}; name another folder") from None


def write_file(path: Path, content: bytes) -> None:
    """Write a report's file.

    Raises: NotWrittenError if the file cannot be written.
    """
    try:
        path.write_bytes(content)
    except OSError as error:
        raise NotWrittenError(f"cannot write {path}: {error.strerror or error}") from None
