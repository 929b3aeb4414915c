"""Programs that check files: those of the extra `test` first, then the machine's."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
ROOT = DEPLOY.parent
BIN = Path(sys.executable).parent


def tool(name: str) -> str:
    """A program's path; without it the test is skipped on a developer's machine, and fails in CI."""
    found = str(BIN / name) if (BIN / name).exists() else shutil.which(name)
    if found is None:
        assert not os.environ.get("CI"), f"{name} is not installed"
        pytest.skip(f"{name} is not installed")
    return found


def told(*command: str, cwd: Path | None = None) -> str:
    """Output of a command that fails; empty if it does not fail."""
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    return "" if done.returncode == 0 else done.stdout or f"exit code {done.returncode}"
