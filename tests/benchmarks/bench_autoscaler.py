"""The autoscaler in virtual time: what it keeps of the promises, what it costs, beside a baseline and the best split.

Each load is played under `[autoscaler] policy = "slo"`, under "requests" (replicas follow the requests under way), and
on the best static split: the fewest NPUs that, kept from the first to the last request, keep both promises for as many
requests as `[slo] attainment` asks, or as the SLO policy kept if that is fewer. It is found by simulation.
NPU-hours count every instance that serves, comes up or leaves, while requests arrive. The pools are those of
deploy/cloudmatrix384-autoscaled.toml.

  python -m tests.benchmarks.bench_autoscaler --traces DIR [--plot day.svg]
  python -m tests.benchmarks.bench_autoscaler --traces DIR --quick

DIR holds servegen_deepseek_r1/ (github.com/alibaba/ServeGen, data/reason/deepseek-r1), azure_llm_2023/ (github.com/
Azure/AzurePublicDataset) and mooncake/conversation_trace.jsonl (github.com/kvcache-ai/Mooncake). Without it only the
made-up loads are played.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import numpy as np

from serving.sim.result import SimResult
from tests.benchmarks.autoscaling.best_split import best_split
from tests.benchmarks.autoscaling.loads import Load, steady_loads, trace_loads
from tests.benchmarks.autoscaling.plot import write_plot
from tests.benchmarks.autoscaling.trial import Split, Trial, autoscaled, static
from tests.benchmarks.conditions import conditions, progress, show_conditions

GOAL_RATIO = 0.75
GOAL_CHANGES = 1.0
_MOSTLY = 80
"""Percent of the time."""
_HEAD = ("load", "way", "requests", "attained", "TTFT", "TPOT", "NPU-h", "÷ static", "changes/h", "instances")


def main() -> int:
    """Play and print."""
    arguments = _arguments()
    loads = _loads(arguments)
    found = conditions(None, loads={load.name: load.said for load in loads})
    show_conditions(found)
    print(_line(_HEAD), flush=True)
    told: dict[str, dict[str, object]] = {}
    for load in loads:
        trials = _play(load, arguments.plot if load is loads[0] else None, baseline=not arguments.slo_only)
        told[load.name] = {trial.way: dataclasses.asdict(trial) for trial in trials}
    print(json.dumps({"benchmark": "autoscaler", "conditions": found, "trials": told}, default=str))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.bench_autoscaler",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--traces", type=Path, metavar="DIR", help="folder of the traces")
    parser.add_argument("--quick", action="store_true", help="half of an evening instead of the day; under a minute")
    parser.add_argument("--load", action="append", metavar="NAME", help="only loads whose name begins like this")
    parser.add_argument("--day-speed", type=float, default=8.0, help="the R1 day so many times as fast (default 8)")
    parser.add_argument("--day-sample", type=int, default=8, help="keep one of so many of its requests (default 8)")
    parser.add_argument("--day-volume", type=float, default=1.0, help="so many times its requests in the same time")
    parser.add_argument("--slo-only", action="store_true", help="neither baseline nor static splits")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the first load's run, SVG or PNG")
    return parser.parse_args()


def _loads(arguments: argparse.Namespace) -> list[Load]:
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


if __name__ == "__main__":
    sys.exit(main())
