"""What a run says while it lasts, to whoever reads it."""

import os

import pytest

from serving.tools.chaos.progress import ChaosProgress


def test_a_run_goes_on_when_nobody_reads_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr("sys.stderr", pipe)
        with ChaosProgress(10.0, quiet=False) as progress:
            os.close(reading)
            progress.stage("waiting for what is under way")
            progress.stage("looking for leaks")
        assert os.path.samestat(os.fstat(pipe.fileno()), os.stat(os.devnull)), "what is still said goes nowhere"
