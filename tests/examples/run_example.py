"""Runs a file of examples/ as a user does, in a separate process."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(
    name: str, *arguments: str, environment: Mapping[str, str] | None = None, timeout_s: float = 800
) -> "subprocess.CompletedProcess[str]":
    """Run an example to its end; its exit code and what it printed are for the caller to judge.

    Args:
        name: of the file in examples/.
        environment: what is different from this process's.
    """
    program = sys.executable if name.endswith(".py") else "bash"
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    return subprocess.run(
        [program, str(EXAMPLES / name), *arguments],
        env={**os.environ, "PATH": path, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
