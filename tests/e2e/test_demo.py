"""`cloudmatrix demo` as a user runs it, without the simulation: a report, and no leftovers."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

SAME = "tests/tools/demo/test_run.py::test_steps_come_one_after_the_other_and_say_how_they_ended"
pytestmark = [pytest.mark.slow, pytest.mark.nightly(SAME)]


def test_everything_works_and_leaves_a_report(tmp_path: Path) -> None:
    # A folder for all temporary files, separate from other tests' systems; socket paths below it have a limit.
    with tempfile.TemporaryDirectory(prefix="c", dir="/tmp") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "serving.cli", "demo", "--skip", "simulate", "--out", str(tmp_path / "out")],
            env={**os.environ, "TMPDIR": folder},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=550,
            check=False,
        )
        assert [path.name for path in Path(folder).glob("cloudmatrix-*")] == []
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("✓") == 5
    assert "tokens are those of the undisturbed answer" in done.stdout
    assert "the stream that ran at the same time never waited longer" in done.stdout
    shown = (tmp_path / "out" / "report.html").read_text()
    assert "5 things shown, nothing failed" in shown
    for chart in ("turns", "kill"):
        assert f'id="{chart}"' in shown
    assert (tmp_path / "out" / "load" / "report.html").exists()
