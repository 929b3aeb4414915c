"""A run, or several repetitions of it, with its files: result.json, report.html, vLLM's flat file."""

import datetime
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from loadgen.cli.bench import Bench
from loadgen.cli.build_load import LoadSchedule
from loadgen.cli.one_run import Measured, Watch, run_once
from loadgen.errors import OutputError, explained
from loadgen.exit_codes import ExitCode
from loadgen.metrics.repetitions import merge
from loadgen.metrics.vllm_keys import flat as vllm_keys
from loadgen.record import RequestRecord
from loadgen.result import RunResult
from loadgen.run_folder import REPORT, write_result
from loadgen.run_report.report_file import write_report


@dataclass(frozen=True)
class Finished:
    """One point: a run or its repetitions taken together.

    Attributes:
        result: of the single run, or of all repetitions merged.
        runs: the repetitions.
        stopped: exit code if the series was stopped early, so that no other run starts; else 0.
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
            stopped = ExitCode.INTERRUPTED
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


# The flat result of `vllm bench serve`: the same keys, the same file name, the same flags.


def flat_result(
    bench: Bench, load: LoadSchedule, result: RunResult, runs: list[list[RequestRecord]], *, date: str, detailed: bool
) -> dict[str, object]:
    """vLLM's keys for one result."""
    flags = bench.flags
    flat = vllm_keys(
        result,
        runs,
        percentile_metrics=[name.strip() for name in flags.percentile_metrics.split(",") if name.strip()],
        percentiles=flags.metric_percentiles,
        detailed=detailed,
        request_rate=load.rate_per_s,
        burstiness=flags.burstiness,
        max_concurrency=load.concurrency,
        num_prompts=load.conversations or result.requests,
        backend=flags.backend,
        tokenizer=None if flags.tokenizer in ("server", "none") else flags.tokenizer,
        date=date,
    )
    return {**flat, **dict(flags.metadata), "label": flags.label}


def save_flat_file(bench: Bench, load: LoadSchedule, result: RunResult, runs: list[list[RequestRecord]]) -> Path | None:
    """Write the file for `--save-result` or `--append-result`, with vLLM's naming.

    Returns: its path; None if neither flag is set.
    Raises: OutputError.
    """
    flags = bench.flags
    if not (flags.save_result or flags.append_result or flags.result_filename):
        return None
    date = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    flat = flat_result(bench, load, result, runs, date=date, detailed=flags.save_detailed)
    path: Path = flags.result_dir / (flags.result_filename or _name(bench, load, date))
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder")
    mode: Literal["ab", "wb"] = "ab" if flags.append_result else "wb"
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode) as file:
            file.write((b"\n" if file.tell() else b"") + msgspec.json.encode(flat))
    return path


def _name(bench: Bench, load: LoadSchedule, date: str) -> str:
    """vLLM's file name."""
    flags = bench.flags
    cap = f"-concurrency{load.concurrency}" if load.concurrency is not None else ""
    model = bench.endpoint.model.rsplit("/", maxsplit=1)[-1]
    rate = "inf" if load.rate_per_s is None else str(load.rate_per_s)
    if flags.ramp_up_strategy:
        rate = f"ramp-up-{flags.ramp_up_strategy}-{flags.ramp_up_start_rps}qps-{flags.ramp_up_end_rps}"
    return f"{flags.label or flags.backend}-{rate}qps{cap}-{model}-{date}.json"
