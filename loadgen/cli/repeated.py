"""A run, or several repetitions of it, with its files: result.json, report.html, vLLM's flat file."""

import datetime
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loadgen.cli.bench import Bench
from loadgen.cli.build_load import LoadSchedule
from loadgen.cli.one_run import Measured, Watch, run_once
from loadgen.cli.vllm_file import flat_result
from loadgen.errors import INTERRUPTED
from loadgen.metrics.repetitions import merge
from loadgen.output import explained
from loadgen.result import RunResult
from loadgen.run_folder import REPORT, write_result
from loadgen.run_report.report_file import write_report


@dataclass(frozen=True)
class Finished:
    """One point: a run or its repetitions taken together.

    Attributes:
        runs: its repetitions. stopped: exit status of the run that was stopped early, after which no other run starts.
        aborted: why a watch did, else empty.
    """

    result: RunResult
    runs: list[Measured]
    stopped: int

    @property
    def aborted(self) -> str:
        """Why a watch stopped it early; empty if none did."""
        return next((run.aborted for run in self.runs if run.aborted), "")


def run_repeated(
    bench: Bench,
    load: LoadSchedule,
    *,
    seed: int,
    folder: Path | None,
    label: str = "",
    make_watch: Callable[[], Watch] | None = None,
) -> Finished:
    """Run `--repeats` times, each with another seed, and write the files.

    Args:
        make_watch: a watch for each repetition, since it remembers what it saw.
    Raises: as `run_once`; OutputError.
    """
    repeats = bench.flags.repeats
    runs: list[Measured] = []
    stopped = 0
    for number in range(repeats):
        if number and not rested(bench.flags.pause):
            stopped = INTERRUPTED
            break
        own_folder = folder / f"repetition-{number + 1}" if folder and repeats > 1 else folder
        name = f"{label or load.label}, repetition {number + 1} of {repeats}" if repeats > 1 else label or load.label
        run = run_once(
            bench, load, seed=seed + number, folder=own_folder, label=name, watch=make_watch() if make_watch else None
        )
        runs.append(run)
        stopped = run.stopped
        if own_folder:
            _write(bench, load, own_folder, run.result, [run])
        if run.stopped or run.aborted:
            break
    if repeats == 1:
        return Finished(runs[0].result, runs, stopped)
    result = merge([run.result for run in runs], [run.records for run in runs])
    result.label = label or load.label
    if folder:
        _write(bench, load, folder, result, runs)
    return Finished(result, runs, stopped)


def rested(pause_s: float) -> bool:
    """Wait between runs; False if the user ends the series."""
    try:
        time.sleep(pause_s)
    except KeyboardInterrupt:
        return False
    return True


def _write(bench: Bench, load: LoadSchedule, folder: Path, result: RunResult, runs: list[Measured]) -> None:
    """A folder's result and report.

    Raises: OutputError.
    """
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    today = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    flat = flat_result(bench, load, result, [run.records for run in runs], date=today, detailed=False)
    write_result(folder, result, flat)
    if bench.flags.report:
        one = runs[0] if len(runs) == 1 else None
        write_report(
            folder / REPORT, result, records=one.records if one else None, server_series=one.series if one else None
        )
