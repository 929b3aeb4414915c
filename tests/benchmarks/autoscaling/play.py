"""Every load of the autoscaler's benchmark, played in all ways, and its printed results."""

import argparse
import dataclasses

import numpy as np

from serving.virtual.result import SimResult
from tests.benchmarks.autoscaling.best_split import best_split
from tests.benchmarks.autoscaling.loads import Load, file_load, resized, steady_load, trace_loads, wave_loads
from tests.benchmarks.autoscaling.trial import Split, Trial, autoscaled, static
from tests.benchmarks.conditions import progress

_MOSTLY = 80
"""Percent of the time."""
_HEAD = ("load", "way", "requests", "attained", "TTFT", "TPOT", "NPU-h", "÷ static", "resizes", "instances")
_WIDTHS = (14, 16, 9, 9, 8, 8, 8, 9, 8, 0)


def play_all(loads: list[Load], *, baseline: bool) -> dict[str, object]:
    """Play and print a line for each; `baseline` adds the simple rule, policy "requests" and the best static split.

    Returns: load -> way -> figures.
    """
    print(_line(_HEAD), flush=True)
    return {load.name: {trial.way: dataclasses.asdict(trial) for trial in _play(load, baseline)} for load in loads}


def chosen_loads(arguments: argparse.Namespace) -> list[Load]:
    """Loads selected on the command line."""
    if arguments.trace is not None:
        return [resized(file_load(arguments.trace, arguments.block_tokens), arguments.decode_npus)]
    loads: list[Load] = []
    if arguments.traces is not None:
        speed, sample = (16.0, 32) if arguments.quick else (arguments.day_speed, arguments.day_sample)
        whole = not (arguments.quick or arguments.evening)
        volume = arguments.day_volume
        loads += trace_loads(arguments.traces, day_speed=speed, day_sample=sample, day_volume=volume, whole_day=whole)
    loads.append(steady_load(0.25 if arguments.quick else 3.0))
    if arguments.quick:
        loads = [load for load in loads if not load.name.startswith(("Azure", "Mooncake"))]
    loads = [*wave_loads(), *(resized(load, arguments.decode_npus) for load in loads)]
    names = tuple(arguments.load or ())
    return [load for load in loads if not names or load.name.startswith(names)]


def _play(load: Load, baseline: bool) -> list[Trial]:
    """All runs of one load."""
    progress(f"{load.name}: slo")
    slo, result = autoscaled(load, "slo")
    print_trial(load, slo)
    trials, best = [slo], None
    if baseline and load.searched:
        best = _search(load, result, load.config.slo.attainment)
        if best is None and slo.attainment < load.config.slo.attainment:
            best = _search(load, result, slo.attainment)
        if best is not None:
            print_trial(load, best, best)
            print_trial(load, slo, best)
            trials.append(best)
    for way in ("rule", "requests") if baseline else ():
        progress(f"{load.name}: {way}")
        trials.append(autoscaled(load, way)[0])
        print_trial(load, trials[-1], best)
    return trials


def _search(load: Load, result: SimResult, needed: float) -> Trial | None:
    """The best static split, starting from the sizes that the autoscaler rarely exceeded."""
    sizes = Split(load.config.prefill.npus_per_instance, load.config.decode.npus_per_instance)
    prefill = np.percentile([point.prefill_npus for point in result.timeline], _MOSTLY) / sizes.prefill
    decode = np.percentile([point.decode_npus for point in result.timeline], _MOSTLY) / sizes.decode

    def probe(split: Split) -> Trial:
        progress(f"{load.name}: {split.prefill} + {split.decode}")
        return static(load, split, needed)[0]

    best, _ = best_split(probe, Split(round(prefill), round(decode)), sizes, load.config.cluster.npus, needed)
    return best


def print_trial(load: Load, trial: Trial, best: Trial | None = None) -> None:
    """A line of the table; NPU-hours also as a share of the best split's."""
    ratio = "" if best is None else f"{trial.npu_hours / best.npu_hours:.2f}"
    shares = [f"{share:.2%}" for share in (trial.attainment, trial.ttft, trial.tpot)]
    figures = [f"{trial.npu_hours:.1f}", ratio, str(trial.resizes), trial.sizes]
    print(_line((load.name, trial.way, f"{trial.requests:,}", *shares, *figures)), flush=True)


def _line(cells: tuple[str, ...]) -> str:
    return "".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()
