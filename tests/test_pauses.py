"""A failure of a test of real time counts if the machine kept time, and is not judged otherwise."""

import subprocess
import sys
from pathlib import Path

import pytest

FILE = """
import os, signal, subprocess, pytest

attempts = []

def pause():
    subprocess.run(["sh", "-c", f"kill -STOP {os.getpid()}; sleep 0.2; kill -CONT {os.getpid()}"], check=True)

"""

INI = """
[pytest]
markers = real_time: of real time
filterwarnings =
    error::ResourceWarning
    error::pytest.PytestUnraisableExceptionWarning
"""


def attempts(folder: Path, body: str, *, mark: str = "@pytest.mark.real_time") -> tuple[int, str]:
    """Pytest on one such test: its status, and its report of attempts."""
    path = folder / "test_it.py"
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    path.write_text(
        f"{FILE}{mark}\ndef test_it():\n    attempts.append(1)\n    print('attempt', len(attempts))\n{lines}\n"
    )
    (folder / "pytest.ini").write_text(INI)
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "tests.pauses", "-p", "no:cacheprovider", str(path)]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=170, check=False)
    return done.returncode, done.stdout.splitlines()[-1].strip("= ")


def test_a_failure_in_a_pause_is_tried_again(tmp_path: Path) -> None:
    status, said = attempts(tmp_path, "if len(attempts) < 3:\n    pause()\n    assert False")
    assert status == 0
    assert "1 passed, 2 rerun" in said


@pytest.mark.real_time
def test_a_failure_without_one_counts(tmp_path: Path) -> None:
    """The second attempt keeps time, unless the machine itself pauses: then this one, too, is tried again."""
    slow = "from tests import pauses\npauses.PAUSE_S, pauses.WAITED = 0.1, 2"
    body = f"{slow}\nif len(attempts) < 2:\n    pause()\nassert False"
    status, said = attempts(tmp_path, body)
    assert status == 1
    assert "1 failed, 1 rerun" in said


def test_a_failure_in_every_attempt_is_not_judged_if_the_machine_paused_in_each(tmp_path: Path) -> None:
    status, said = attempts(tmp_path, "pause()\nassert False")
    assert status == 0
    assert "1 skipped, 2 rerun" in said


def test_what_a_failed_attempt_leaves_open_is_nobodys_fault(tmp_path: Path) -> None:
    body = "import socket\nheld = socket.socket()\nif len(attempts) < 2:\n    pause()\n    assert False\nheld.close()"
    status, said = attempts(tmp_path, body)
    assert status == 0
    assert "1 passed, 1 rerun" in said


@pytest.mark.parametrize("mark", ["", "@pytest.mark.real_time"])
def test_others_are_not_looked_at(tmp_path: Path, mark: str) -> None:
    watched = bool(mark)
    body = f"import threading\nassert any('pause' in t.name for t in threading.enumerate()) is {watched}"
    assert attempts(tmp_path, body, mark=mark)[0] == 0
