"""Every run or sweep that is held against the first one, with both sides' results."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadgen.compare.comparison import RunComparison, Side, compare, read_side, sweep_sides
from loadgen.errors import UsageError
from loadgen.run_folder import read_sweep
from loadgen.run_report.sweep_charts import load_text


@dataclass(frozen=True)
class ComparedPair:
    """Two sides and their comparison.

    Attributes:
        baseline_name, other_name: as the user typed them.
        group: index of the other path among those compared with the first, from 0.
        parameter, value: the load at which two sweeps are compared: `rate` or `concurrency`, and its value; empty and
            None if both are runs.
    """

    baseline_name: str
    other_name: str
    group: int
    baseline: Side
    other: Side
    comparison: RunComparison
    parameter: str = ""
    value: float | None = None


def compare_paths(paths: Sequence[Path], *, seed: int = 0) -> list[ComparedPair]:
    """Compare every path with the first; sweeps point by point, where both have the same load.

    Args:
        paths: at least two: folders of runs, `result.json` files, folders of several runs, or folders of sweeps.
        seed: of the bootstrap.
    Raises: UsageError if there are fewer than two, if one holds no run, or if sweeps have no load in common;
        TraceFormatError if a file is not what it should be.
    """
    if len(paths) < 2:
        raise UsageError("compare needs at least two runs: loadgen compare BASELINE OTHER")
    rng = np.random.default_rng(seed)
    name = str(paths[0])
    sweeps = [sweep_sides(path) for path in paths]
    if not any(sweeps):
        baseline = read_side(paths[0])
        sides = [read_side(path) for path in paths[1:]]
        return [
            ComparedPair(name, side.name, group, baseline, side, compare(baseline, side, rng))
            for group, side in enumerate(sides)
        ]
    if not all(sweeps):
        raise UsageError("a sweep can be compared with a sweep only, a run with a run")
    parameter = read_sweep(paths[0]).parameter
    found = []
    for group, sweep in enumerate(sweeps[1:]):
        for value, baseline in sweeps[0].items():
            if value in sweep:
                label = load_text(parameter, value)
                comparison = compare(baseline, sweep[value], rng, label=label)
                other = str(paths[group + 1])
                found.append(ComparedPair(name, other, group, baseline, sweep[value], comparison, parameter, value))
    if not found:
        raise UsageError("the sweeps have no load in common; give both the same --sweep-values")
    return found
