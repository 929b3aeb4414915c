"""A day of the autoscaler's benchmark: every load played all ways, and what is printed of it."""

import argparse
import dataclasses
from pathlib import Path

import numpy as np

from serving.virtual.result import SimResult
from tests.benchmarks.autoscaling.best_split import best_split
from tests.benchmarks.autoscaling.loads import Load, file_load, resized, steady_loads, trace_loads
from tests.benchmarks.autoscaling.plot import write_plot
from tests.benchmarks.autoscaling.trial import Split, Trial, autoscaled, static
from tests.benchmarks.conditions import progress

_MOSTLY = 80
"""Percent of the time."""
_HEAD = ("load", "way", "requests", "attained", "TTFT", "TPOT", "NPU-h", "÷ static", "changes/h", "instances")


def play_all(loads: list[Load], plot: Path | None, *, baseline: bool) -> dict[str, object]:
    """Play and print, a line for each.

    Args:
        plot: where the first load's run is drawn.
        baseline: also under "requests", and on the best static split.
    Returns: load -> way -> figures.
    """
    print(_line(_HEAD), flush=True)
    told: dict[str, object] = {}
    for load in loads:
        trials = _play(load, plot if load is loads[0] else None, baseline=baseline)
        told[load.name] = {trial.way: dataclasses.asdict(trial) for trial in trials}
    return told


def chosen_loads(arguments: argparse.Namespace) -> list[Load]:
    """Those that the command line asks for."""
    if arguments.trace is not None:
        return [resized(file_load(arguments.trace, arguments.block_tokens), arguments.decode_npus)]
    loads: list[Load] = []
    if arguments.traces is not None:
        speed, sample = (16.0, 32) if arguments.quick else (arguments.day_speed, arguments.day_sample)
        loads += trace_loads(
            arguments.traces, day_speed=speed, day_sample=sample, day_volume=arguments.day_volume,
            whole_day=not arguments.quick,
        )  # fmt: skip
    loads += steady_loads(0.25 if arguments.quick else 3.0)
    if arguments.quick:
        loads = [load for load in loads if not load.name.startswith(("Azure", "Mooncake"))]
    loads = [resized(load, arguments.decode_npus) for load in loads]
    names = tuple(arguments.load or ())
    return [load for load in loads if not names or load.name.startswith(names)]


def _play(load: Load, plot: Path | None, *, baseline: bool) -> list[Trial]:
    """Everything about one load."""
    progress(f"{load.name}: slo")
    slo, result = autoscaled(load, "slo")
    _print(load, slo, None)
    trials, best = [slo], None
    if load.searched and baseline:
        needed = min(load.config.slo.attainment, slo.attainment)
        best = _search(load, result, needed)
        if best is not None:
            _print(load, best, best)
            _print(load, slo, best)
            trials.append(best)
    if baseline:
        progress(f"{load.name}: requests")
        trials.append(autoscaled(load, "requests")[0])
        _print(load, trials[-1], best)
    if plot is not None:
        npus = None if best is None else round(best.npu_hours / best.hours)
        write_plot(plot, load, result, npus)
    return trials


def _search(load: Load, result: SimResult, needed: float) -> Trial | None:
    """The best static split; sizes that the autoscaler hardly ever exceeded are a good guess."""
    sizes = Split(load.config.prefill.npus_per_instance, load.config.decode.npus_per_instance)
    prefill = np.percentile([point.prefill_npus for point in result.timeline], _MOSTLY) / sizes.prefill
    decode = np.percentile([point.decode_npus for point in result.timeline], _MOSTLY) / sizes.decode

    def probe(split: Split) -> Trial:
        progress(f"{load.name}: {split.prefill} + {split.decode}")
        return static(load, split, needed)[0]

    best, _ = best_split(probe, Split(round(prefill), round(decode)), sizes, load.config.cluster.npus, needed)
    return best


def _print(load: Load, trial: Trial, best: Trial | None) -> None:
    ratio = f"{trial.npu_hours / best.npu_hours:.2f}" if best is not None else ""
    print(
        _line(
            (
                load.name, trial.way, f"{trial.requests:,}", f"{trial.attainment:.2%}", f"{trial.ttft:.2%}",
                f"{trial.tpot:.2%}", f"{trial.npu_hours:.1f}", ratio, f"{trial.changes_per_hour:.1f}", trial.sizes,
            )
        ),
        flush=True,
    )  # fmt: skip


def _line(cells: tuple[str, ...]) -> str:
    widths = (14, 16, 9, 9, 8, 8, 8, 9, 10, 0)
    return "".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
