"""Streams of one seed: repeatable in any process, independent of each other."""

import subprocess
import sys

import numpy as np

from loadgen.arrivals import stream


def test_equal_paths_give_equal_numbers_and_others_do_not() -> None:
    assert stream(1, "a", 2).random(4).tolist() == stream(1, "a", 2).random(4).tolist()
    others = [stream(1), stream(1, "a"), stream(1, "a", "2"), stream(1, "a", 3), stream(2, "a", 2), stream(1, 2, "a")]
    firsts = {generator.random() for generator in others} | {stream(1, "a", 2).random()}
    assert len(firsts) == len(others) + 1


def test_streams_are_uncorrelated() -> None:
    draws = np.array([stream(9, "arrivals", index).standard_normal(4000) for index in range(12)])
    correlations = np.corrcoef(draws)[np.triu_indices(12, 1)]
    assert np.max(np.abs(correlations)) < 0.06


def test_another_process_draws_the_same() -> None:
    code = "from loadgen.arrivals import stream; print(stream(5, 'workload', 1).integers(2**63))"
    other = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "77"}, capture_output=True, text=True, check=True
    )
    assert int(other.stdout) == stream(5, "workload", 1).integers(2**63)
