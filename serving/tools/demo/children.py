"""Runs other commands of this project as a user would, and stops them at the end of the step."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hardware.nesting import parse_json
from hardware.regular_file import read_regular_text
from serving.tools.demo.narrator import Narrator
from serving.tools.demo.stage import StepError

STOP_S = 5.0
"""For a command to end after SIGINT, before it is killed."""


def run_module(narrator: Narrator, module: str, words: Sequence[str]) -> None:
    """Run `python -m MODULE WORDS`; its output is printed between the demo's own lines.

    Raises: StepError if it fails.
    Effects: its processes have ended on return or raise.
    """
    narrator.flush()
    # A session of its own: Ctrl-C at the terminal is for the demo, which then ends this.
    process = subprocess.Popen([sys.executable, "-m", module, *words], stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        code = process.wait()
    finally:
        _end(process)
    if code:
        raise StepError(f"`{module.partition('.')[0]} {words[0]}` exited with code {code}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Stop a command and its child processes. Effects: none if it has already ended."""
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# Results that other commands have left in the demo's folder.


def read_result_file(path: Path) -> dict[str, Any]:
    """A JSON object. Raises: StepError if the file is none."""
    try:
        found = parse_json(read_regular_text(path))
    except (OSError, ValueError) as error:
        raise StepError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise StepError(f"{path} holds no JSON object")
    return found
