"""What a worker process is started from."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import loadgen

_START = "from loadgen.driver.worker_process import WorkerProcess; print(WorkerProcess(0, 1).end())"


def test_a_worker_runs_the_package_of_its_parent(tmp_path: Path) -> None:
    """Not another one that happens to be installed: of two checkouts the halves of a run would differ."""
    copy = tmp_path / "loadgen"
    shutil.copytree(Path(loadgen.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__", "pictures"))
    (copy / "driver" / "worker.py").write_text("def main(*_):\n    raise SystemExit(17)\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [sys.executable, "-c", _START], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert ran.stdout == "exit status 17\n", ran.stderr
