"""Commands that steps run: their failures, and their end when a step is skipped."""

import io
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from serving.tools.demo.children import run_module
from serving.tools.demo.keys import Interrupts
from serving.tools.demo.result_file import read_result_file
from serving.tools.demo.step import StepError
from tests.tools.demo.staging import narrator_to


def test_a_command_that_fails_is_named_with_its_exit_code(tmp_path: Path) -> None:
    narrator = narrator_to(io.StringIO())
    run_module(narrator, "json.tool", ["--help"])
    with pytest.raises(StepError, match=r"`json .*nothing.json` has ended with exit code \d"):
        run_module(narrator, "json.tool", [str(tmp_path / "nothing.json")])


def test_a_command_ends_with_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    plain = subprocess.Popen

    def popen(*arguments: Any, **options: Any) -> "subprocess.Popen[bytes]":
        started.append(plain(*arguments, **options))
        threading.Timer(0.2, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", popen)
    with Interrupts(), pytest.raises(KeyboardInterrupt):
        run_module(narrator_to(io.StringIO()), "http.server", ["0"])
    assert started[0].returncode is not None


@pytest.mark.parametrize("content", [None, "{", "[1]"])
def test_a_result_that_is_none_is_told(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "result.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(StepError, match=r"result\.json (cannot be read|holds no JSON object)"):
        read_result_file(path)
